"""One hash over the fresh keys of all who take part, with a short proof for each of them.

The graph is drawn from this hash. Nobody can know it before every honest client has answered, and a
client that finds its own keys in it knows that: a leaf for each client in ascending order of id,
neighbouring nodes hashed together level by level, the last of an odd number going up as it is.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence

from privirec.secagg.errors import KeysNotInGraph
from privirec.secagg.keys import LABEL

HASH_BYTES = 32


def key_leaf(client: int, sealing_key: bytes, mask_keys: bytes) -> bytes:
    """The leaf of a client: its id and all keys it has advertised."""
    return hashlib.sha256(
        LABEL + b"leaf" + struct.pack(">I", client) + sealing_key + mask_keys
    ).digest()


class KeyTree:
    """The tree over the leaves of all clients, for whoever knows them all."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self._levels = [list(leaves)]
        while len(below := self._levels[-1]) > 1:
            pairs = zip(below[::2], below[1::2], strict=False)
            left_over = below[len(below) & ~1 :]
            self._levels.append([*(_node(*pair) for pair in pairs), *left_over])

    @property
    def root(self) -> bytes:
        return self._levels[-1][0]

    def path(self, place: int) -> tuple[bytes, ...]:
        """The siblings on the way from a leaf to the root, lowest first."""
        return tuple(
            self._levels[level][sibling]
            for level, sibling in enumerate(_siblings(place, len(self._levels[0])))
            if sibling is not None
        )


def path_hashes(size: int) -> int:
    """Hashes in the paths of all leaves of a tree of so many, together."""
    found, nodes, below = 0, size, 1
    while nodes > 1:
        # The last of an odd number of nodes has no sibling, and so have the leaves below it none.
        alone = size - (nodes - 1) * below if nodes % 2 else 0
        found += size - alone
        nodes, below = (nodes + 1) // 2, 2 * below
    return found


def check_path(leaf: bytes, place: int, size: int, path: Sequence[bytes], root: bytes) -> None:
    """Raise KeysNotInGraph unless the path leads from this leaf, one of so many, to the root."""
    siblings = list(_siblings(place, size))
    if len(path) != len(siblings) - siblings.count(None):
        raise KeysNotInGraph(f"{len(path)} hashes do not lead from a leaf to the root")
    hashes = iter(path)
    for sibling in siblings:
        if sibling is not None:
            other = next(hashes)
            leaf = _node(leaf, other) if sibling % 2 else _node(other, leaf)
    if leaf != root:
        raise KeysNotInGraph("the graph was not drawn from the keys of this client")


def _siblings(place: int, size: int) -> Iterator[int | None]:
    """Level by level the place of the sibling; None where there is none."""
    while size > 1:
        yield place ^ 1 if place ^ 1 < size else None
        place, size = place // 2, (size + 1) // 2


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(LABEL + b"node" + left + right).digest()
