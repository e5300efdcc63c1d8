"""Vectors of one sum on the server: each one is added to the total when it has arrived."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from privirec.errors import UsageError
from privirec.secagg.errors import MalformedMessage, ReplayedMessage
from privirec.secagg.protocol import ServerSettings, zeros
from privirec.secagg.ring import VectorShape, Words

ChangeBlock = Callable[[int, Words], None]
"""(offset, block): adds or removes masks in entries offset ... offset + len(block), in place."""


class Uploads:
    """Uploaded vectors of one sum, and their total modulo 2^width."""

    def __init__(self, sum_number: int, shape: VectorShape, settings: ServerSettings) -> None:
        self.shape = shape
        self.total = (settings.accumulator or zeros)(sum_number, shape)
        if self.total.shape != (shape.length,) or self.total.dtype != shape.ring.dtype:
            raise UsageError(f"the accumulator must hold {shape.length} {shape.ring.dtype} words")
        self.arrived: set[int] = set()
        """Clients whose vectors are in the total."""
        self._block_entries = settings.block_entries

    def take(self, client: int, packed: bytes | memoryview) -> None:
        """Add a packed vector to the total; raise a ProtocolError and add nothing if it is bad."""
        if client in self.arrived:
            raise ReplayedMessage(f"client {client} has sent its vector")
        size = self.shape.packed_bytes
        if len(packed) != size:
            raise MalformedMessage(f"a vector of {len(packed)} bytes, not {size}")
        added = 0
        try:
            for offset, block in self._blocks(packed):
                self.add(offset, block)
                added = offset + len(block)
        except MalformedMessage:
            for offset, block in self._blocks(packed, added):
                self.subtract(offset, block)
            raise
        self.arrived.add(client)

    def read(self, packed: bytes, entries: int) -> Words:
        """Return the entries of a packed block; raise MalformedMessage if it is invalid."""
        return self.shape.ring.unpack(packed, entries)

    def add(self, offset: int, block: Words) -> None:
        """Add a block to the total, in place."""
        part = self.total[offset : offset + len(block)]
        np.add(part, block, out=part)

    def subtract(self, offset: int, block: Words) -> None:
        """Subtract a block from the total, in place."""
        part = self.total[offset : offset + len(block)]
        np.subtract(part, block, out=part)

    def opened_blocks(self, unmask: ChangeBlock) -> Iterator[Words]:
        """Apply `unmask` to the total in place and yield it block by block, reduced to the ring."""
        for offset in range(0, self.shape.length, self._block_entries):
            block = self.total[offset : offset + self._block_entries]
            unmask(offset, block)
            yield self.shape.ring.reduce(block)

    def _blocks(
        self, packed: bytes | memoryview, stop: int | None = None
    ) -> Iterator[tuple[int, Words]]:
        """Yield (offset, entries) of each block of a packed vector, up to the entry `stop`."""
        view, ring, length = memoryview(packed), self.shape.ring, self.shape.length
        for offset in range(0, length if stop is None else stop, self._block_entries):
            count = min(self._block_entries, length - offset)
            start = ring.packed_bytes(offset)
            # A copy is aligned; the vector may start at any place of a file.
            block = bytes(view[start : start + ring.packed_bytes(count)])
            yield offset, self.read(block, count)
