"""Tests of the program `spectral`: its error against the exact solver, by ring."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from privirec.data import Dataset, Interactions, load_dataset
from privirec.errors import OverflowRefused, UsageError
from privirec.evaluation import evaluate
from privirec.federated.programs import (
    SpectralProgram,
    SpectralSettings,
    SpectralValidationSettings,
    program_of,
)
from privirec.filters import Components, centralized
from privirec.filters.eigen import leading_eigenpairs
from privirec.models import Spectral
from privirec.privacy.ledger import Ledger
from privirec.runtime.execute import execute
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.run import known_rows

RANK = 12


def computed(train: Interactions, **settings: Any) -> tuple[Components, Ledger]:
    usual = {"rank": RANK, "columns": (12,) * 6, "pairs": "rayleigh-ritz"}
    wanted = SpectralSettings(**usual | settings)
    steps = program_of(wanted, train.n_users, train.n_items).steps()
    return execute(steps, Simulation(train))


def eigenvalue_error(found: Components, train: Interactions) -> float:
    exact = leading_eigenpairs(centralized(train).item_item, RANK)[0]
    return float(np.abs(found.eigenpairs(RANK)[0] - exact).max())


def test_errors_of_rings_against_the_exact_solver(small: Dataset) -> None:
    """Test the largest error of the leading twelve eigenvalues, the largest of which is one. The
    error in a wide ring is due to the limit of eight rounds; twelve bits add nothing to it."""
    errors = {
        bits: eigenvalue_error(
            computed(small.train, ring_bits=bits, columns=(16,) * 8)[0], small.train
        )
        for bits in (8, 10, 12, 16, 32, 64)
    }
    assert errors[64] < 3e-4
    assert errors[32] == pytest.approx(errors[64], abs=1e-6)
    assert errors[16] == pytest.approx(errors[64], abs=1e-4)
    assert errors[12] == pytest.approx(errors[64], abs=2e-4)
    assert errors[10] < 1e-3
    assert 1e-3 < errors[8] < 5e-3


def test_coarse_blocks_cost_nothing_of_what_is_computed(small: Dataset) -> None:
    """Test that four bits do as well as sixteen: eigenvalues are those of the blocks as sent."""
    four, sixteen = (
        eigenvalue_error(computed(small.train, ring_bits=32, block_bits=bits)[0], small.train)
        for bits in (4, 16)
    )
    assert four < 3e-3
    assert sixteen < 3e-3


@pytest.mark.parametrize("pairs", ["rayleigh-ritz", "nystrom"])
def test_as_good_as_centralised(small: Dataset, pairs: str) -> None:
    central = evaluate(Spectral(rank=RANK).fit(small.train), small)
    found, _ = computed(small.train, pairs=pairs)
    ours = evaluate(Spectral(rank=RANK).use(found), small)
    assert ours.ndcg == pytest.approx(central.ndcg, abs=0.01)


def test_what_it_costs_is_what_was_planned(small: Dataset) -> None:
    """Test the bytes. Up: twelve bits per number, four bytes per reach. Down: half a byte twice per
    column."""
    train = small.train
    _, ledger = computed(train)
    program = program_of(
        SpectralSettings(rank=RANK, columns=(12,) * 6), train.n_users, train.n_items
    )
    planned = Ledger.planned(program.outline())
    assert (ledger.bytes_up, ledger.bytes_down) == (planned.bytes_up, planned.bytes_down)
    degree_bits = train.n_users.bit_length()
    bits = degree_bits + 5 * 32
    twice = -(-train.n_items // 32)  # remainders of rounding, for the most popular items
    up = (train.n_items * bits + (train.n_items + twice) * 6 * 12 * 12) / 8
    assert ledger.bytes_up == pytest.approx(up, abs=20)
    blocks = 5 * (12 + 3 * 4)
    told = 4 + blocks + RANK + 4
    assert ledger.bytes_down == pytest.approx(train.n_items * told, abs=4 * RANK + 64)
    assert len(program.sums()) == 2 * 6


@pytest.mark.parametrize(
    ("given", "columns"),
    [
        ("8x128", (128,) * 8),
        ("256,128,64", (256, 128, 64)),
        ("2x64,32", (64, 64, 32)),
        ((5, 4), (5, 4)),
    ],
)
def test_columns_as_people_write_them(given: Any, columns: tuple[int, ...]) -> None:
    assert SpectralSettings(columns=given).columns == columns


@pytest.mark.parametrize("given", ["x8", "8y3", "", "0", "3x0", "-2", (0,)])
def test_columns_that_mean_nothing(given: Any) -> None:
    with pytest.raises(UsageError, match="columns"):
        SpectralProgram.settings_from({"columns": given})


def test_columns_by_the_rank_fit_any_catalogue() -> None:
    for items, rank in ((3, 3), (40, 7), (5000, 512)):
        program = program_of(SpectralSettings(rank=rank), 9, items)
        assert isinstance(program, SpectralProgram)
        assert sum(program.columns) >= rank
        assert sum(program.columns) <= max(1.6 * rank, 1.5 * rank + 8)


def test_settings_that_cannot_run(small: Dataset) -> None:
    with pytest.raises(UsageError, match="rank 301 does not fit a catalogue of 300 items"):
        computed(small.train, rank=301)
    with pytest.raises(UsageError, match="rank 12 needs as many columns; all rounds have 8"):
        computed(small.train, columns=(4, 4))
    with pytest.raises(UsageError, match="needs that basis"):
        computed(small.train, start="basis")


# --- the end of a run -----------------------------------------------------------------------------


def test_a_run_ends_when_its_ritz_values_have_settled(small: Dataset) -> None:
    """Test that the computed rounds equal those of a run planned without the others."""
    train, columns = small.train, (12,) * 8
    settled, ledger = computed(train, columns=columns, settle=0.02)
    rounds = ledger.sums // 2
    assert 2 <= rounds < 8
    shorter, short_ledger = computed(train, columns=columns[:rounds])
    np.testing.assert_array_equal(settled.eigenpairs(RANK)[1], shorter.eigenpairs(RANK)[1])
    assert ledger.as_rows() == short_ledger.as_rows()
    one_less = computed(train, columns=columns[: rounds - 1])[0].eigenpairs(RANK)[0].sum()
    found = settled.eigenpairs(RANK)[0].sum()
    assert 0 < found - one_less <= 0.02 * found


def test_what_a_run_that_may_end_early_can_cost_at_most(small: Dataset) -> None:
    """Test the maximum cost: clients agree to all rounds, and a run that never settles needs
    them."""
    train = small.train
    settings = {"rank": RANK, "columns": (12,) * 4}
    whole, ledger = computed(train, **settings, settle=1e-12)
    plain, plain_ledger = computed(train, **settings)
    np.testing.assert_array_equal(whole.eigenpairs(RANK)[1], plain.eigenpairs(RANK)[1])
    program = program_of(
        SpectralSettings(**settings, settle=1e-12, pairs="rayleigh-ritz"),
        train.n_users,
        train.n_items,
    )
    assert Ledger.planned(program.outline()).bytes_up == ledger.bytes_up == plain_ledger.bytes_up


def test_no_run_ends_with_fewer_columns_than_it_keeps(small: Dataset) -> None:
    _, ledger = computed(small.train, rank=30, columns=(12,) * 5, settle=0.9)
    assert ledger.sums // 2 == 3


def test_a_run_that_validates_does_not_end_early() -> None:
    with pytest.raises(UsageError, match="a run that validates computes all rounds"):
        program_of(SpectralValidationSettings(rank=4, settle=0.1), 30, 40)


# --- refits ---------------------------------------------------------------------------------------


def refit(train: Interactions, basis: np.ndarray, **settings: Any) -> tuple[Components, Ledger]:
    wanted = SpectralSettings(rank=basis.shape[1], start="basis", **settings)
    program = program_of(wanted, train.n_users, train.n_items)
    assert isinstance(program, SpectralProgram)
    program.start_from(basis)
    return execute(program.steps(), Simulation(train))


def test_a_warm_refit_in_one_round_is_a_fit_from_scratch() -> None:
    """Test a refit after 5 % of the interactions, with some new people and items: within 0.003 of a
    full fit (of 0.2), for well under half of its bytes."""
    data = load_dataset("synthetic:1200x1500", None)
    train, rank, columns = data.train, 48, (16,) * 8
    matrix = train.matrix.copy()
    matrix.data[np.random.default_rng(5).random(matrix.nnz) < 0.05] = 0
    matrix.eliminate_zeros()
    before = Interactions.from_matrix(matrix[:1190, :1490])
    earlier, _ = computed(before, rank=rank, columns=columns)
    old = Spectral(rank=rank).use(earlier, np.arange(1490))
    warm, warm_ledger = refit(train, known_rows(old.basis(), old.item_ids, train.item_ids))
    full, full_ledger = computed(train, rank=rank, columns=columns)
    ours, theirs = (evaluate(Spectral(rank=rank).use(one), data).ndcg for one in (warm, full))
    assert ours == pytest.approx(theirs, abs=0.003)
    assert warm_ledger.bytes_up < 0.45 * full_ledger.bytes_up


def test_rows_of_an_earlier_basis_are_found_by_item() -> None:
    basis = np.arange(6.0).reshape(3, 2)
    rows = known_rows(basis, np.array(["c", "a", "b"]), np.array(["a", "new", "b", "c"]))
    np.testing.assert_array_equal(rows, [[2, 3], [0, 0], [4, 5], [0, 1]])


def test_a_ring_that_rounds_most_people_away_is_refused() -> None:
    everybody = Interactions.from_matrix(np.ones((300, 8)))
    with pytest.raises(OverflowRefused, match="8 bits is too narrow for an item with 300 users"):
        computed(everybody, ring_bits=8, rank=2, columns=(4,))
    computed(everybody, ring_bits=9, rank=2, columns=(4,))
