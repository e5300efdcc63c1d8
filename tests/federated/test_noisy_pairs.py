"""Tests of the noisy sum over candidate pairs, and of the protected program that ends with it."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from math import ceil, isqrt
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from privirec.data import Interactions
from privirec.errors import FederationError
from privirec.federated import wire
from privirec.federated.contributions import ClientContext, Histories, NoiseShare, NoisyPairs
from privirec.federated.contributions import noisy_pairs as module
from privirec.federated.programs import Protected, ProtectedSettings, program_of
from privirec.federated.programs.protected_ways import (
    LARGEST_PAIRS_SHARE,
    PAIRS_FROM,
    PAIRS_PER_SIGNAL,
    SMALLEST_PAIRS_SHARE,
    Power,
    similar_pairs,
)
from privirec.models import Denoised
from privirec.runtime.execute import execute
from privirec.runtime.local.client import clients_of
from privirec.runtime.local.in_process import InProcess
from privirec.runtime.local.simulation import Simulation

SHARE = NoiseShare(deviation=40, clients=10, contributors=9, fraction_bits=12)
HEAD = np.array([1, 3, 4, 8, 9])
PAIRS = [(0, 1), (0, 4), (1, 2), (2, 4), (3, 4)]
FULL_RANK = 4


def pairs_of(pairs: list[tuple[int, int]] = PAIRS, bits: int = 12) -> NoisyPairs:
    share = replace(SHARE, fraction_bits=bits)
    first, second = (np.array(side, np.int64) for side in zip(*pairs, strict=True))
    found = NoisyPairs.planned(10, 100, share, len(HEAD), len(pairs)).ask(
        items=HEAD, first=first, second=second
    )
    assert isinstance(found, NoisyPairs)
    return found


def expected(ask: NoisyPairs, rows: np.ndarray) -> list[int]:
    total = [0] * len(ask.first)
    for row in rows:
        have = [
            number
            for number, (i, j) in enumerate(zip(ask.first, ask.second, strict=True))
            if row[HEAD[i]] and row[HEAD[j]]
        ]
        for number in have:
            total[number] += isqrt(4**ask.fraction_bits // len(have))
    return total


@given(st.integers(0, 2**31), st.integers(1, 40), st.integers(8, 30), st.integers(1, 9))
def test_it_counts_the_people_of_each_pair(seed: int, people: int, bits: int, most: int) -> None:
    rows = (np.random.default_rng(seed).random((people, 10)) < 0.5).astype(np.float64)
    ask = pairs_of(bits=bits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LOOK_UPS", most)
        (block,) = ask.exact_blocks(Histories(sp.csr_array(rows)))
    assert block.tolist() == expected(ask, rows)
    for row in rows:
        (alone,) = ask.exact_blocks(Histories(sp.csr_array(row[None])))
        assert sum(int(entry) ** 2 for entry in alone) <= 4**bits


def test_it_travels_as_bytes() -> None:
    ask = pairs_of()
    assert wire.encode(wire.decode(wire.encode(ask))) == wire.encode(ask)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(0, 5)], "not in the head"),
        ([(-1, 2)], "not in the head"),
        ([(2, 2)], "not in ascending order"),
        ([(3, 1)], "not in ascending order"),
        ([(0, 1), (0, 1)], "named twice"),
        ([(1, 2), (0, 1)], "not in ascending order"),
    ],
)
def test_bad_pairs_are_refused(pairs: list[tuple[int, int]], message: str) -> None:
    context = ClientContext(100, 10, ProtectedSettings(), Histories(sp.csr_array((1, 10))))
    pairs_of().check(context)
    with pytest.raises(FederationError, match=message):
        pairs_of(pairs).check(context)


def test_a_missing_item_is_refused() -> None:
    with pytest.raises(FederationError, match="a missing item"):
        replace(pairs_of(), second=np.array([1]))


def test_similar_items_become_candidates() -> None:
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(20), 5)
    basis = np.eye(20)[group] + 0.01 * rng.standard_normal((100, 20))
    first, second = similar_pairs(basis, np.ones(100), 200)
    assert (group[first] == group[second]).all()
    assert len(set(zip(first.tolist(), second.tolist(), strict=True))) == 200
    assert (np.diff(first * 100 + second) > 0).all()
    every = similar_pairs(basis[:FULL_RANK], np.ones(FULL_RANK), 6)
    assert list(zip(*(side.tolist() for side in every), strict=True)) == list(
        combinations(range(FULL_RANK), 2)
    )


@pytest.mark.parametrize("silos", [None, 3])
def test_runtimes_agree_on_a_run_with_pairs(silos: int | None) -> None:
    rows = (np.random.default_rng(1).random((40, 12)) < 0.3).astype(np.float64)
    train = Interactions.from_matrix(sp.csr_array(rows))
    clients: Any = silos or 40
    settings = ProtectedSettings(
        way="power", head=6, columns=3, pairs_share=0.3, clients=clients, contributors=clients - 1
    )
    program = program_of(settings, 40, 12)
    assert isinstance(program.way, Power)
    assert program.forecast()[-2].name == "noisy-pairs"
    simulated, ledger = execute(program.steps(), Simulation(train, clients))
    real, _ = execute(program.steps(), InProcess(clients_of(train, clients)))
    assert (simulated.item_item.matrix != real.item_item.matrix).nnz == 0
    np.testing.assert_array_equal(simulated.basis, real.basis)
    assert len(ledger.as_rows()) == 6
    assert np.isfinite(Denoised().use(real).score(train.matrix)).all()


def test_pairs_are_summed_where_there_is_signal() -> None:
    """Test the rule: no pairs below a signal, a share that grows above it, up to the largest."""
    settings = ProtectedSettings(way="power", epsilon=8)
    of_one = settings.promise(1).signal(1)

    def share(signal: float) -> float:
        way = Protected(settings, ceil(signal / of_one), 5000).way
        assert isinstance(way, Power)
        return way.parts[-1] if way.pairs else 0.0

    pays, enough = (
        PAIRS_FROM + least / PAIRS_PER_SIGNAL
        for least in (SMALLEST_PAIRS_SHARE, LARGEST_PAIRS_SHARE)
    )
    assert PAIRS_FROM < pays < enough
    for signal in (PAIRS_FROM / 2, PAIRS_FROM, (PAIRS_FROM + pays) / 2):
        assert share(signal) == 0
    between = [share(signal) for signal in np.linspace(pays, enough, 5)]
    assert all(less < more for less, more in pairwise(between))
    assert between[0] >= SMALLEST_PAIRS_SHARE
    assert between[0] == pytest.approx(SMALLEST_PAIRS_SHARE, abs=of_one * PAIRS_PER_SIGNAL)
    assert between[-1] == share(10 * enough) == LARGEST_PAIRS_SHARE
