"""Server data of one sum: the masked total, and the pieces to be delivered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from privirec.extra.lightsecagg.code import Decoder, MaskCode
from privirec.extra.lightsecagg.field import Elements, ElementShape
from privirec.secagg.keys import NONCE_BYTES
from privirec.secagg.protocol import ServerSettings
from privirec.secagg.ring import Words
from privirec.secagg.uploads import ChangeBlock, Uploads

# Bytes of short pieces that are sorted by receiver at a time, and the limit of a short piece.
_RELAY_BYTES = 1 << 26
_LONG_PIECE = 1 << 11


class ElementUploads(Uploads):
    """Vectors of field elements, and their total modulo the prime."""

    def __init__(self, sum_number: int, elements: ElementShape, settings: ServerSettings) -> None:
        super().__init__(sum_number, elements.carried, settings)
        self._elements = elements
        self._block = settings.block_entries
        # Reuse one buffer: allocating memory for every block would cost more than reading it.
        self._words = np.empty(min(self._block, self.shape.length), self.shape.ring.dtype)

    def read(self, packed: bytes, entries: int) -> Words:
        """Return the elements of a block; the next call overwrites them."""
        return self._elements.field.unpack(packed, entries, self._words)

    def add(self, offset: int, block: Words) -> None:
        self._elements.field.add(self.total[offset : offset + len(block)], block)

    def subtract(self, offset: int, block: Words) -> None:
        self._elements.field.subtract(self.total[offset : offset + len(block)], block)

    def remove_masks(self, code: MaskCode, answers: dict[int, Elements]) -> None:
        """Subtract the sum of all masks from the total, given the answers by place in the roster.

        Raise BadShare if answers are inconsistent or the sum exceeds its bound.
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
        """Yield the entries of the total block by block, after the masks were removed."""
        per_element = self._elements.per_element
        for offset in range(0, self.shape.length, self._block):
            part = self.total[offset : offset + self._block]
            unmask(offset, part)
            entries = self._elements.entries.length - offset * per_element
            yield self._elements.split(part, min(entries, len(part) * per_element))


class PieceRelay:
    """Storage of sealed pieces until the survivors are known.

    All pieces together are at least as large as all vectors; a spool keeps them out of memory.
    """

    def __init__(self, spool: Callable[[], BinaryIO] | None, holders: Sequence[int]) -> None:
        """Create a relay; `holders` are all clients that receive pieces, ascending."""
        self._spool = spool() if spool else None
        self._rank = {client: rank for rank, client in enumerate(holders)}
        self._nonces: dict[int, bytes] = {}
        self._size = 0
        self._in_memory: dict[int, bytes] = {}
        self._in_spool: dict[int, int] = {}
        self._end = 0

    def put(self, sender: int, nonce: bytes, sealed: bytes) -> None:
        """Store a client's pieces, ascending by holder: one for each but the client itself."""
        self._nonces[sender] = nonce
        self._size = len(sealed) // (len(self._rank) - 1)
        if self._spool is None:
            self._in_memory[sender] = sealed
            return
        self._spool.seek(self._end)
        self._spool.write(sealed)
        self._in_spool[sender] = self._end
        self._end += len(sealed)

    def deliveries(
        self, receivers: Sequence[int], senders: Sequence[int]
    ) -> Iterator[tuple[int, bytes]]:
        """Yield (receiver, nonces and pieces from all senders but itself), ascending by sender."""
        if self._size < _LONG_PIECE:
            yield from self._sorted_deliveries(receivers, senders)
            return
        for receiver in receivers:
            parts: list[bytes | memoryview] = []
            for sender in senders:
                if sender != receiver:
                    place = self._rank[receiver] - (sender < receiver)
                    parts += (self._nonces[sender], self._read(sender, place, place + 1))
            yield receiver, b"".join(parts)

    def _sorted_deliveries(
        self, receivers: Sequence[int], senders: Sequence[int]
    ) -> Iterator[tuple[int, bytes]]:
        """Yield deliveries of short pieces, for several receivers at a time.

        The pieces from one sender to these receivers are adjacent, so that one read fetches them.
        """
        entry = NONCE_BYTES + self._size
        together = max(1, _RELAY_BYTES // (entry * len(senders)))
        place = {sender: number for number, sender in enumerate(senders)}
        memory = np.empty((min(together, len(receivers)), len(senders), entry), np.uint8)
        for start in range(0, len(receivers), together):
            block = receivers[start : start + together]
            ranks = np.array([self._rank[receiver] for receiver in block])
            dealt = memory[: len(block)]
            for number, sender in enumerate(senders):
                dealt[:, number, :NONCE_BYTES] = np.frombuffer(self._nonces[sender], np.uint8)
                dealt[:, number, NONCE_BYTES:] = self._read_some(sender, ranks)
            for number, receiver in enumerate(block):
                own = place.get(receiver, len(senders))
                yield receiver, dealt[number, :own].tobytes() + dealt[number, own + 1 :].tobytes()

    def _read_some(self, sender: int, ranks: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the pieces from a sender to the holders with these ascending ranks.

        If the sender is one of the holders, its own row is meaningless.
        """
        places = np.minimum(ranks - (ranks > self._rank[sender]), len(self._rank) - 2)
        first, last = int(places[0]), int(places[-1])
        raw = self._read(sender, first, last + 1)
        pieces = np.frombuffer(raw, np.uint8).reshape(-1, self._size)
        # The pieces are adjacent unless a client has dropped out or the sender is among the
        # holders.
        return pieces if (np.diff(places) == 1).all() else pieces[places - first]

    def _read(self, sender: int, first: int, stop: int) -> bytes | memoryview:
        """Return pieces first ... stop of a sender."""
        start, size = self._size * first, self._size * (stop - first)
        if self._spool is None:
            return memoryview(self._in_memory[sender])[start : start + size]
        self._spool.seek(self._in_spool[sender] + start)
        return self._spool.read(size)

    def close(self) -> None:
        if self._spool is not None:
            self._spool.close()
        self._in_memory.clear()
