"""Hash tree over the fresh keys of all participants, with a short inclusion proof for each client.

The graph is drawn from the root. The root is unpredictable until every honest client has sent its
keys, and a client verifies this by finding its own keys in the tree.

The tree has one leaf per client, in ascending order of id. Adjacent nodes are hashed together level
by level. If a level has an odd number of nodes, its last node moves up unchanged.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence

from privirec.secagg.errors import KeysNotInGraph
from privirec.secagg.keys import LABEL

HASH_BYTES = 32


def key_leaf(client: int, sealing_key: bytes, mask_keys: bytes) -> bytes:
    """Return the leaf of a client, a hash of its id and all its advertised keys."""
    return hashlib.sha256(
        LABEL + b"leaf" + struct.pack(">I", client) + sealing_key + mask_keys
    ).digest()


class KeyTree:
    """The hash tree over the leaves of all clients; the server builds it."""

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
        """Return the siblings on the path from a leaf to the root, lowest first."""
        return tuple(
            self._levels[level][sibling]
            for level, sibling in enumerate(_siblings(place, len(self._levels[0])))
            if sibling is not None
        )


def path_hashes(size: int) -> int:
    """Return the total number of hashes in the paths of all leaves of a tree with `size` leaves."""
    found, nodes, below = 0, size, 1
    while nodes > 1:
        # The last of an odd number of nodes has no sibling, so the leaves below it need no hash
        # here.
        alone = size - (nodes - 1) * below if nodes % 2 else 0
        found += size - alone
        nodes, below = (nodes + 1) // 2, 2 * below
    return found


def check_path(leaf: bytes, place: int, size: int, path: Sequence[bytes], root: bytes) -> None:
    """Raise KeysNotInGraph unless `path` leads from leaf number `place` of `size` to the root."""
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
    """Yield the place of the sibling on each level, or None if there is no sibling."""
    while size > 1:
        yield place ^ 1 if place ^ 1 < size else None
        place, size = place // 2, (size + 1) // 2


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(LABEL + b"node" + left + right).digest()
