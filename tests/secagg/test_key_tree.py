"""Tests of the tree over all keys: every leaf, and nothing else, has a path to the root."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privirec.secagg.errors import KeysNotInGraph
from privirec.secagg.key_tree import KeyTree, check_path, key_leaf


def leaves_of(size: int) -> list[bytes]:
    return [hashlib.sha256(bytes([place])).digest() for place in range(size)]


@given(st.integers(1, 70), st.data())
def test_every_leaf_leads_to_the_root_and_to_no_other(size: int, data: st.DataObject) -> None:
    leaves = leaves_of(size)
    tree = KeyTree(leaves)
    place = data.draw(st.integers(0, size - 1))
    path = tree.path(place)
    assert len(path) <= (size - 1).bit_length()
    check_path(leaves[place], place, size, path, tree.root)
    other = data.draw(st.integers(0, size - 1))
    wrong: list[tuple[bytes, int, tuple[bytes, ...], bytes]] = [
        (bytes(32), place, path, tree.root),
        (leaves[place], place, path, bytes(32)),
        (leaves[place], place, (*path, bytes(32)), tree.root),
    ]
    if path:
        wrong.append((leaves[place], place, path[1:], tree.root))
        wrong.append((leaves[place], place, (bytes(32), *path[1:]), tree.root))
    if other != place:
        wrong.append((leaves[other], place, path, tree.root))
        wrong.append((leaves[place], other, path, tree.root))
    for leaf, at, hashes, root in wrong:
        with pytest.raises(KeysNotInGraph):
            check_path(leaf, at, size, hashes, root)


def test_the_root_depends_on_every_leaf_and_on_their_order() -> None:
    roots = {KeyTree(leaves_of(7)).root, KeyTree(leaves_of(7)[::-1]).root}
    for place in range(7):
        leaves = leaves_of(7)
        leaves[place] = bytes(32)
        roots.add(KeyTree(leaves).root)
    assert len(roots) == 9


def test_a_leaf_is_of_one_client_and_all_its_keys() -> None:
    leaves = {key_leaf(1, b"s" * 32, b"m" * 64), key_leaf(2, b"s" * 32, b"m" * 64)}
    leaves |= {key_leaf(1, b"t" * 32, b"m" * 64), key_leaf(1, b"s" * 32, b"m" * 63 + b"n")}
    assert len(leaves) == 4
