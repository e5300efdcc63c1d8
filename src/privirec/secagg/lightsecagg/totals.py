"""What the server keeps of one sum: the masked total, and pieces on their way to their holders."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

import numpy as np

from privirec.secagg.lightsecagg.code import Decoder, MaskCode
from privirec.secagg.lightsecagg.field import Elements, ElementShape
from privirec.secagg.protocol import ServerSettings
from privirec.secagg.ring import Words
from privirec.secagg.uploads import ChangeBlock, Uploads


class ElementUploads(Uploads):
    """Vectors of field elements, and their total modulo the prime."""

    def __init__(self, sum_number: int, elements: ElementShape, settings: ServerSettings) -> None:
        super().__init__(sum_number, elements.carried, settings)
        self._elements = elements
        self._block = settings.block_entries

    def read(self, packed: bytes, entries: int) -> Words:
        return self._elements.field.unpack(packed, entries)

    def add(self, offset: int, block: Words) -> None:
        self._elements.field.add(self.total[offset : offset + len(block)], block)

    def remove_masks(self, code: MaskCode, answers: dict[int, Elements]) -> None:
        """Take the sum of all masks off the total, from the answers by place in the roster.

        Raises BadShare where answers do not fit together or the sum exceeds its bound.
        """
        places = sorted(answers)
        decoder = Decoder(code, places)
        payload = code.thresholds.payload
        for start, stop in code.column_blocks():
            pieces = np.stack([answers[place][start:stop] for place in places])
            first = start * payload
            part = self.total[first : stop * payload]
            code.field.subtract(part, decoder.decode(pieces)[: len(part)])
            self._elements.check_bound(part)

    def opened_blocks(self, unmask: ChangeBlock) -> Iterator[Words]:
        """The entries of the total, block by block, once the masks are off it."""
        per_element = self._elements.per_element
        for offset in range(0, self.shape.length, self._block):
            part = self.total[offset : offset + self._block]
            unmask(offset, part)
            entries = self._elements.entries.length - offset * per_element
            yield self._elements.split(part, min(entries, len(part) * per_element))


class PieceRelay:
    """Sealed pieces, from when they are dealt until the survivors are known.

    They are as long as all vectors together: a spool keeps them out of memory.
    """

    def __init__(self, spool: Callable[[], BinaryIO] | None) -> None:
        self._store = spool() if spool else io.BytesIO()
        self._dealt: dict[int, tuple[bytes, int, int]] = {}
        self._end = 0

    def put(self, sender: int, nonce: bytes, sealed: bytes, size: int) -> None:
        """Keep a client's pieces, each of `size` bytes, ascending by receiver."""
        self._store.seek(self._end)
        self._store.write(sealed)
        self._dealt[sender] = (nonce, self._end, size)
        self._end += len(sealed)

    def collect(self, receiver: int, receivers: Sequence[int], senders: Sequence[int]) -> bytes:
        """Nonce and piece that each of the senders dealt to a receiver, one after the other.

        `receivers` are all who were dealt pieces, ascending; a sender deals none to itself.
        """
        rank = int(np.searchsorted(receivers, receiver))
        parts: list[bytes] = []
        for sender in senders:
            nonce, start, size = self._dealt[sender]
            self._store.seek(start + size * (rank - (sender < receiver)))
            parts += (nonce, self._store.read(size))
        return b"".join(parts)

    def close(self) -> None:
        self._store.close()
