"""Tests of the ring graph: regular, symmetric, random, and the same for all clients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privirec.secagg.errors import (
    GraphNotRegular,
    GraphNotSymmetric,
    MalformedMessage,
)
from privirec.secagg.graph import RingGraph, check_neighbourhood, ranks_among_neighbours
from privirec.secagg.keys import Identity, Roster
from privirec.secagg.participants import read_participants, write_participants


@settings(max_examples=60)
@given(st.integers(3, 60), st.data(), st.binary(min_size=32, max_size=32))
def test_every_graph_is_regular_symmetric_and_connected(
    size: int, data: st.DataObject, seed: bytes
) -> None:
    degrees = [*range(2, size, 2), size - 1]
    graph = RingGraph(size, data.draw(st.sampled_from(degrees)), seed)
    rows = graph.all_neighbours()
    lists = {place: graph.neighbours(place).tolist() for place in range(size)}
    assert rows.tolist() == [lists[place] for place in range(size)]
    assert all(listed == sorted(set(listed)) for listed in lists.values())
    assert all(len(listed) == graph.degree for listed in lists.values())
    assert all(place in lists[peer] and peer != place for place in lists for peer in lists[place])
    ranks = ranks_among_neighbours(rows)
    for place in range(size):
        for peer, rank in zip(rows[place], ranks[place], strict=True):
            assert rows[peer][rank] == place
    reached, frontier = {0}, [0]
    while frontier:
        frontier = [peer for place in frontier for peer in lists[place] if peer not in reached]
        reached.update(frontier)
    assert len(reached) == size


def test_the_seed_decides_and_edges_are_spread_evenly() -> None:
    size, degree, trials = 12, 4, 600
    counts = np.zeros((size, size))
    for trial in range(trials):
        rows = RingGraph(size, degree, trial.to_bytes(32, "big")).all_neighbours()
        counts[np.arange(size)[:, None], rows] += 1
    off_diagonal = counts[~np.eye(size, dtype=bool)]
    expected = trials * degree / (size - 1)
    # A binomial count; six standard deviations.
    assert abs(off_diagonal - expected).max() < 6 * np.sqrt(expected)
    same = RingGraph(size, degree, b"x" * 32).all_neighbours()
    assert np.array_equal(same, RingGraph(size, degree, b"x" * 32).all_neighbours())


@pytest.mark.parametrize(("size", "degree"), [(5, 5), (6, 3), (4, 0)])
def test_impossible_degrees_are_refused(size: int, degree: int) -> None:
    with pytest.raises(ValueError, match="no ring graph"):
        RingGraph(size, degree, b"x" * 32)


def test_a_neighbourhood_that_is_not_the_public_one_is_refused() -> None:
    check_neighbourhood(0, [1, 2, 3, 4], 4, [1, 2, 3, 4])
    with pytest.raises(GraphNotRegular):
        check_neighbourhood(0, [1, 2, 3], 4, [1, 2, 3, 4])
    with pytest.raises(GraphNotSymmetric):
        check_neighbourhood(0, [1, 2, 3, 5], 4, [1, 2, 3, 4])
    with pytest.raises(GraphNotSymmetric):
        check_neighbourhood(0, [0, 1, 2, 3], 4, [1, 2, 3, 4])


def test_participants_travel_as_one_bit_each() -> None:
    roster = Roster({10 * number: Identity(bytes([number]) * 32).public for number in range(11)})
    bitmap = write_participants([0, 30, 100], roster)
    assert bitmap == bytes([0b1001, 0b100])
    assert read_participants(bitmap, roster).tolist() == [0, 30, 100]
    for bad in (bitmap[:1], bitmap + b"\0", bytes([0, 0b1000])):
        with pytest.raises(MalformedMessage):
            read_participants(bad, roster)
