"""What the server keeps of one sum: the masked total, and pieces on their way to their holders."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from privirec.secagg.keys import NONCE_BYTES
from privirec.secagg.lightsecagg.code import Decoder, MaskCode
from privirec.secagg.lightsecagg.field import Elements, ElementShape
from privirec.secagg.protocol import ServerSettings
from privirec.secagg.ring import Words
from privirec.secagg.uploads import ChangeBlock, Uploads

# Pieces that are sorted by receiver at a time.
_RELAY_BYTES = 1 << 26


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

    def __init__(self, spool: Callable[[], BinaryIO] | None, holders: Sequence[int]) -> None:
        """`holders` are all to whom pieces are dealt, ascending."""
        self._store = spool() if spool else io.BytesIO()
        self._rank = {client: rank for rank, client in enumerate(holders)}
        self._dealt: dict[int, tuple[bytes, int]] = {}
        self._size = 0
        self._end = 0

    def put(self, sender: int, nonce: bytes, sealed: bytes) -> None:
        """Keep a client's pieces, ascending by holder: one for each but the client itself."""
        self._store.seek(self._end)
        self._store.write(sealed)
        self._dealt[sender] = (nonce, self._end)
        self._size = len(sealed) // (len(self._rank) - 1)
        self._end += len(sealed)

    def deliveries(
        self, receivers: Sequence[int], senders: Sequence[int]
    ) -> Iterator[tuple[int, bytes]]:
        """(receiver, nonce and piece that each of the senders but itself dealt to it), ascending.

        Several receivers at a time: what one client dealt to them lies side by side.
        """
        entry = NONCE_BYTES + self._size
        together = max(1, _RELAY_BYTES // (entry * max(1, len(senders))))
        place = {sender: number for number, sender in enumerate(senders)}
        for start in range(0, len(receivers), together):
            block = receivers[start : start + together]
            ranks = np.array([self._rank[receiver] for receiver in block])
            pieces = np.empty((len(senders), len(block), entry), np.uint8)
            for number, sender in enumerate(senders):
                self._read(sender, ranks, pieces[number])
            for number, receiver in enumerate(block):
                own = place.get(receiver)
                dealt = pieces[:, number]
                others = dealt if own is None else np.delete(dealt, own, axis=0)
                yield receiver, others.tobytes()

    def _read(self, sender: int, ranks: NDArray[np.int64], entries: NDArray[np.uint8]) -> None:
        """What a sender dealt to the holders of these ranks, ascending; nonsense for itself."""
        nonce, start = self._dealt[sender]
        own = self._rank[sender]
        places = np.minimum(ranks - (ranks > own), len(self._rank) - 2)
        first, last = int(places[0]), int(places[-1])
        self._store.seek(start + self._size * first)
        raw = self._store.read(self._size * (last + 1 - first))
        pieces = np.frombuffer(raw, np.uint8).reshape(-1, self._size)
        entries[:, :NONCE_BYTES] = np.frombuffer(nonce, np.uint8)
        entries[:, NONCE_BYTES:] = pieces[places - first]

    def close(self) -> None:
        self._store.close()
