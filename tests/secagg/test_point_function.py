"""Tests of point functions: both servers' leaves, proofs, payloads and the table of buckets."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from privirec.secagg.two_server import point_function as dpf
from privirec.secagg.two_server.placing import Table, buckets_for

CIPHER = dpf.ReportCipher(b"trees", b"payloads")
LOWEST = np.uint64(1)


def roots_of(rng: np.random.Generator, buckets: int) -> tuple[dpf.Seeds, dpf.Seeds]:
    roots = rng.integers(0, 2**63, (2, buckets, 2)).astype(np.uint64)
    roots[:, :, 0] &= ~LOWEST
    roots[1, :, 0] |= LOWEST
    return roots[0], roots[1]


def point_functions(
    seed: int, trees: dpf.Trees
) -> tuple[NDArray[np.int64], dpf.Corrections, list[dpf.Leaves], tuple[dpf.Leaves, dpf.Leaves]]:
    """Return the leaves alpha, the corrections, and the leaves that each server finds."""
    rng = np.random.default_rng(seed)
    alphas = rng.integers(0, trees.leaves, trees.buckets)
    roots = roots_of(rng, trees.buckets)
    corrections, own = dpf.generate(trees, alphas, CIPHER, roots)
    return alphas, corrections, [dpf.expand(trees, one, corrections, CIPHER) for one in roots], own


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 70))
def test_leaves_of_both_servers_are_equal_but_for_one_per_tree(
    seed: int, buckets: int, leaves: int
) -> None:
    trees = dpf.Trees(buckets, leaves)
    alphas, _, found, _ = point_functions(seed, trees)
    differ = (found[0].seeds != found[1].seeds).any(axis=1).reshape(buckets, leaves)
    assert (differ.sum(axis=1) == 1).all()
    assert (differ.argmax(axis=1) == alphas).all()
    assert (found[0].bits ^ found[1].bits == differ.reshape(-1)).all()


@given(
    st.integers(0, 2**32),
    st.integers(1, 5),
    st.integers(1, 40),
    st.integers(1, 20),
    st.sampled_from(["<u1", "<u2", "<u4", "<u8"]),
)
def test_payloads_add_up_to_the_rows(
    seed: int, buckets: int, leaves: int, entries: int, dtype: str
) -> None:
    trees = dpf.Trees(buckets, leaves)
    alphas, corrections, found, own = point_functions(seed, trees)
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 2**63, (buckets, entries)).astype(dtype)
    payloads = dpf.payload_corrections(rows, own, CIPHER)
    sums = [np.zeros((trees.all_leaves, entries), dtype) for _ in range(2)]
    for into, leaves_of in zip(sums, found, strict=True):
        dpf.add_payloads(into, trees, leaves_of, payloads, CIPHER)
    expected = np.zeros_like(sums[0])
    expected[np.arange(buckets) * leaves + alphas] = rows
    assert (sums[0] - sums[1] == expected).all()
    assert dpf.proof(trees, found[0], corrections, CIPHER) == dpf.proof(
        trees, found[1], corrections, CIPHER
    )


def test_hash_of_a_leaf_is_sha_256() -> None:
    seeds = np.random.default_rng(0).integers(0, 2**63, (37, 2)).astype(np.uint64)
    positions = np.arange(37, dtype=np.uint32) * 1000
    found = CIPHER.leaf_hashes(seeds, positions)
    key = hashlib.shake_256(b"privirec/point-function/trees/1\0trees").digest(64)[32:]
    for place in range(37):
        content = key + int(positions[place]).to_bytes(4, "big") + seeds[place].tobytes()
        assert found[place].tobytes() == hashlib.sha256(content).digest()


TREES = dpf.Trees(3, 20)


def spoil_seed(corrections: dpf.Corrections, roots: list[dpf.Seeds]) -> None:
    corrections.seeds[2, 1, 1] ^= np.uint64(4)


def spoil_bit(corrections: dpf.Corrections, roots: list[dpf.Seeds]) -> None:
    corrections.bits[3, 0, 0] ^= 1


def spoil_hash(corrections: dpf.Corrections, roots: list[dpf.Seeds]) -> None:
    corrections.hashes[2, 5] ^= 1


def spoil_root(corrections: dpf.Corrections, roots: list[dpf.Seeds]) -> None:
    roots[1][0, 1] ^= np.uint64(1)


def all_marked(corrections: dpf.Corrections, roots: list[dpf.Seeds]) -> None:
    """Give both servers equal seeds and different control bits, so that every leaf is a point."""
    roots[1][:] = roots[0]
    roots[1][:, 0] |= LOWEST
    corrections.seeds[:] = 0
    corrections.bits[:] = 1
    corrections.hashes[:] = 0


@pytest.mark.parametrize("spoil", [spoil_seed, spoil_bit, spoil_hash, spoil_root, all_marked])
def test_proofs_differ_unless_one_leaf_per_tree_differs(spoil: Any) -> None:
    rng = np.random.default_rng(5)
    roots = list(roots_of(rng, TREES.buckets))
    alphas = rng.integers(0, TREES.leaves, TREES.buckets)
    corrections, _ = dpf.generate(TREES, alphas, CIPHER, (roots[0], roots[1]))
    spoil(corrections, roots)
    found = [dpf.expand(TREES, one, corrections, CIPHER) for one in roots]
    proofs = [dpf.proof(TREES, one, corrections, CIPHER) for one in found]
    assert proofs[0] != proofs[1]


def test_payloads_of_two_sums_are_independent_on_one_tree() -> None:
    trees = dpf.Trees(1, 4)
    _, _, found, _ = point_functions(1, trees)
    streams = []
    for name in (b"first", b"second"):
        cipher = dpf.ReportCipher(b"trees", name)
        payloads = cipher.payloads(found[0].seeds, 8, np.dtype("<u8"))
        streams.append(np.concatenate([some.copy() for _, some in payloads]))
    assert not (streams[0] == streams[1]).any()


@given(st.integers(0, 2**32), st.integers(1, 300), st.integers(1, 40))
def test_each_row_gets_a_bucket_of_its_own(seed: int, rows: int, wanted: int) -> None:
    rng = np.random.default_rng(seed)
    table = Table(rows, buckets_for(wanted), rng.bytes(32))
    chosen = rng.choice(rows, min(wanted, rows), replace=False).tolist()
    placed = table.place(chosen)
    assert len(set(placed.values())) == len(placed)
    assert all(bucket in table.choices[row] for row, bucket in placed.items())
    assert all(0 <= table.leaf(bucket, row) < table.trees.leaves for row, bucket in placed.items())
    assert list(placed) == [row for row in placed if row in chosen]


def test_a_row_is_cut_only_without_a_way_to_place_it() -> None:
    """Compare the number of placed rows with the size of a maximum matching."""
    import scipy.sparse as sp
    from scipy.sparse.csgraph import maximum_bipartite_matching

    for seed in range(30):
        table = Table(60, 20, seed.to_bytes(32, "big"))
        placed = table.place(range(22))
        edges = np.zeros((22, 20), np.int8)
        np.put_along_axis(edges, table.choices[:22], 1, axis=1)
        matched = maximum_bipartite_matching(sp.csr_matrix(edges), perm_type="column")
        assert len(placed) == (matched >= 0).sum()


def test_hardly_any_row_is_cut() -> None:
    rng = np.random.default_rng(0)
    for most in (3, 20, 80):
        table = Table(5000, buckets_for(most), rng.bytes(32))
        rows = [rng.choice(5000, most, replace=False).tolist() for _ in range(100)]
        assert all(len(table.place(some)) == most for some in rows)


@given(st.integers(0, 2**32), st.integers(1, 90), st.integers(1, 20))
def test_leaves_fold_into_rows(seed: int, rows: int, buckets: int) -> None:
    rng = np.random.default_rng(seed)
    table = Table(rows, buckets, rng.bytes(32))
    values = rng.integers(0, 100, (rows, 2))
    leaves = np.zeros((table.trees.all_leaves, 2), np.int64)
    expected = np.zeros_like(values)
    for row in range(rows):
        for bucket in set(table.choices[row].tolist()):
            leaves[bucket * table.trees.leaves + table.leaf(bucket, row)] += values[row]
            expected[row] += values[row]
    assert (table.folded(leaves) == expected).all()
