"""Uploads of vectors: the client cuts them into messages, the server assembles and adds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from privirec.errors import UsageError
from privirec.secagg.errors import OutOfOrder, ReplayedMessage
from privirec.secagg.messages import Announce, Masked, encode
from privirec.secagg.protocol import ServerSettings, zeros
from privirec.secagg.ring import VectorShape, Words, rechunked

ChangeBlock = Callable[[int, Words], None]
"""(offset, block): adds or removes masks in entries offset ... offset + len(block), in place."""


def cut_into_messages(
    blocks: Iterable[NDArray[Any]],
    shape: VectorShape,
    terms: Announce,
    sum_number: int,
    client: int,
    hide: ChangeBlock,
) -> Iterator[bytes]:
    """Yield a client's vector as messages of the announced block size; input blocks have any sizes.

    `shape` is the shape of the vector on the wire. Raise BadContribution, before the last message
    is sent, unless the entries have its length and bound.
    """
    offset = 0
    for block in rechunked(blocks, shape, terms.block_entries):
        hide(offset, block)
        packed = shape.ring.pack(block)
        yield encode(Masked(terms.run, sum_number, client, offset, packed))
        offset += len(block)


@dataclass(slots=True)
class _Upload:
    """A vector of which only a part has arrived."""

    spool: BinaryIO | None
    received: int = 0


class Uploads:
    """Uploaded vectors of one sum, and their total modulo 2^width."""

    def __init__(self, sum_number: int, shape: VectorShape, settings: ServerSettings) -> None:
        self.shape = shape
        self.total = (settings.accumulator or zeros)(sum_number, shape)
        if self.total.shape != (shape.length,) or self.total.dtype != shape.ring.dtype:
            raise UsageError(f"the accumulator must hold {shape.length} {shape.ring.dtype} words")
        self.arrived: set[int] = set()
        """Clients whose complete vectors are in the total."""
        self._block_entries = settings.block_entries
        self._new_spool = settings.spool
        self._unfinished: dict[int, _Upload] = {}

    def take(self, message: Masked) -> None:
        """Add a block to the total, or store it until its vector is complete."""
        client, shape = message.client, self.shape
        if client in self.arrived:
            raise ReplayedMessage(f"client {client} has sent its vector")
        upload = self._unfinished.get(client)
        begun = upload.received if upload else 0
        if message.offset < begun:
            raise ReplayedMessage(f"client {client} has sent this block")
        if message.offset > begun:
            raise OutOfOrder(f"client {client} has not sent the block before")
        count = min(self._block_entries, shape.length - begun)
        block = self.read(message.packed, count)
        last = begun + count == shape.length
        if upload is None and not last:
            spool = self._new_spool() if self._new_spool else None
            upload = self._unfinished[client] = _Upload(spool)
        if upload is None or upload.spool is None:
            self.add(begun, block)
        else:
            upload.spool.write(message.packed)
        if upload:
            upload.received += count
        if last:
            if upload and upload.spool:
                self._add_spooled(upload.spool)
            self._unfinished.pop(client, None)
            self.arrived.add(client)

    def read(self, packed: bytes, entries: int) -> Words:
        """Return the entries of a packed block; raise MalformedMessage if it is invalid."""
        return self.shape.ring.unpack(packed, entries)

    def add(self, offset: int, block: Words) -> None:
        """Add a block to the total, in place."""
        part = self.total[offset : offset + len(block)]
        np.add(part, block, out=part)

    @property
    def broken(self) -> bool:
        """True if the total contains a part of an incomplete vector."""
        return any(upload.spool is None for upload in self._unfinished.values())

    def discard_unfinished(self) -> None:
        """Discard the stored blocks of incomplete vectors."""
        for upload in self._unfinished.values():
            if upload.spool:
                upload.spool.close()
        self._unfinished.clear()

    def opened_blocks(self, unmask: ChangeBlock) -> Iterator[Words]:
        """Apply `unmask` to the total in place and yield it block by block, reduced to the ring."""
        for offset in range(0, self.shape.length, self._block_entries):
            block = self.total[offset : offset + self._block_entries]
            unmask(offset, block)
            yield self.shape.ring.reduce(block)

    def _add_spooled(self, spool: BinaryIO) -> None:
        shape = self.shape
        spool.seek(0)
        for offset in range(0, shape.length, self._block_entries):
            count = min(self._block_entries, shape.length - offset)
            packed = spool.read(shape.ring.packed_bytes(count))
            self.add(offset, self.read(packed, count))
        spool.close()
