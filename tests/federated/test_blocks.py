"""Tests of blocks chosen by a server: measured aim, and counted openings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from privirec.data import Dataset
from privirec.errors import FederationError
from privirec.federated.contributions import (
    ClientContext,
    HeadItemItem,
    Histories,
    ItemDegrees,
    ItemItem,
    PowerStep,
    SeededStep,
)
from privirec.federated.programs import PrivirecKSettings, program_of
from privirec.filters.eigen import orthonormalize
from privirec.privacy.cohorts import PolicyRefusal
from privirec.privacy.policy import Policy


def context(histories: Histories) -> ClientContext:
    settings = PrivirecKSettings(rank=4, rounds=2)
    return ClientContext(histories.n_users, histories.n_items, settings, histories)


def step(x: NDArray[np.float64], histories: Histories) -> PowerStep:
    return PowerStep.of(x, histories.item_degrees, 32)


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 30), st.integers(1, 8))
def test_every_block_that_an_honest_server_sends_is_orthonormal(
    seed: int, users: int, items: int, columns: int
) -> None:
    """Test items of any degree, and linearly dependent columns."""
    rng = np.random.default_rng(seed)
    matrix = sp.csr_array((rng.random((users, items)) < rng.random(items)).astype(np.float32))
    histories = Histories(matrix)
    start = SeededStep(histories.item_degrees, bytes(32), columns)
    image = start.encoding.decode(start.total(histories))
    degrees = histories.item_degrees
    scale = np.divide(1, np.sqrt(degrees), out=np.zeros(items), where=degrees > 0)
    basis, _ = orthonormalize(image * scale[:, None])
    ask = step(basis, histories)
    ask.check(context(histories))
    squares = basis**2
    aim = ask.aim
    assert (aim.items, aim.columns) == (items, columns)
    assert aim.share == pytest.approx(squares.max(), abs=1e-5)
    assert aim.leverage == pytest.approx(squares.sum(axis=1).max(), abs=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x * 1.001,
        lambda x: x * 0.6,
        lambda x: x * [1, 1, 1, 1e-3],
        lambda x: x[:, [0, 1, 2, 2]],
        lambda x: x + 1e-4,
    ],
)
def test_other_blocks_are_refused(change: object, small: Dataset) -> None:
    histories = Histories(small.train.matrix)
    basis, _ = orthonormalize(np.random.default_rng(1).standard_normal((histories.n_items, 4)))
    step(basis, histories).check(context(histories))
    with pytest.raises(FederationError, match="not orthonormal"):
        step(change(basis), histories).check(context(histories))  # type: ignore[operator]


def test_units_so_coarse_that_anything_would_pass_are_refused(small: Dataset) -> None:
    """Test that too coarse units are refused: they bound the rounding of a block, and the server
    names them."""
    histories = Histories(small.train.matrix)
    basis, _ = orthonormalize(np.random.default_rng(1).standard_normal((histories.n_items, 4)))
    fine = step(basis, histories)
    coarse = replace(fine, block=fine.block >> 24, block_bits=fine.block_bits - 24)
    with pytest.raises(FederationError, match="coarser units"):
        coarse.check(context(histories))
    nothing = replace(fine, block=np.zeros_like(fine.block))
    nothing.check(context(histories))


def test_a_block_does_not_lie_on_items_that_nobody_is_said_to_have(small: Dataset) -> None:
    """Test a row that the claimed degrees give no weight, so that its size would be unlimited."""
    histories = Histories(small.train.matrix)
    degrees = histories.item_degrees
    target = int(degrees.argmax())
    claimed = np.where(np.arange(len(degrees)) == target, 0, degrees)
    basis, _ = orthonormalize(np.random.default_rng(1).standard_normal((histories.n_items, 4)))
    basis[target] = 0
    basis, _ = orthonormalize(basis)
    honest = PowerStep.of(basis, claimed, 32)
    honest.check(context(histories))
    block = honest.block.copy()
    block[target, 0] = 1 << 29
    aimed = replace(honest, block=block)
    assert aimed.aim.share < 0.25  # by its claim, it aims at nothing
    with pytest.raises(FederationError, match="on items which nobody has"):
        aimed.check(context(histories))


def test_claiming_that_few_items_are_in_use_gives_no_room_to_aim(small: Dataset) -> None:
    histories = Histories(small.train.matrix)
    degrees = histories.item_degrees
    claimed = np.where(np.arange(len(degrees)) < 20, degrees, 0)
    aimed = PowerStep.of(np.eye(len(degrees), 1), claimed, 32)
    aimed.check(context(histories))
    with pytest.raises(PolicyRefusal, match="aimed at single items"):
        Policy().check_aim(aimed.aim)
    Policy().check_aim(replace(aimed.aim, items=20))  # its aim if the claim counted


def test_honest_blocks_aim_at_nothing(small: Dataset) -> None:
    """Test every block of a run under the default policy."""
    train = small.train
    histories = Histories(train.matrix)
    program = program_of(PrivirecKSettings(rank=16, rounds=5), train.n_users, train.n_items)
    steps, total, seen = program.steps(), None, 0
    while True:
        try:
            ask = steps.send(total)
        except StopIteration:
            break
        total = ask.total(histories) if hasattr(ask, "total") else None
        if isinstance(ask, PowerStep):
            Policy().check_aim(ask.aim)
            seen += 1
    assert seen == 4


def test_what_is_left_a_block_with_small_powers_of_two_beside_large_entries() -> None:
    """Test the limit of the defence. The bound on an item's share stops blocks that are plainly
    aimed. A block that hides powers of two in the low bits of an even block passes, and reads the
    history of a single person. Exact sums are not safe for any block, so no client computes them by
    default."""
    rng = np.random.default_rng(4)
    items, watched = 400, 12
    touched = rng.random((300, items)) < 0.03
    touched[:, :watched] = rng.random((300, watched)) < 0.2
    touched[:, -1] = False
    touched[0, -1] = True  # only one person has the last item
    histories = Histories(sp.csr_array(touched.astype(np.float32)))
    degrees = histories.item_degrees
    even = 2.0**14
    w = np.where(np.arange(items) < watched, 2.0 ** np.arange(items).clip(max=watched), even)
    w[degrees == 0] = 0
    x = w * np.sqrt(degrees)
    norm = np.linalg.norm(x)
    ask = step(x[:, None] / norm, histories)
    ask.check(context(histories))
    Policy().check_aim(ask.aim)
    mean = float(ask.encoding.decode(ask.total(histories))[-1, 0]) * norm
    length = int(touched[0].sum())
    low = round(mean * length) % int(even)
    read = [item for item in range(watched) if low >> item & 1]
    assert read == np.flatnonzero(touched[0, :watched]).tolist()


def test_what_a_sum_opens_is_measured_by_the_items_in_use() -> None:
    degrees = ItemDegrees.planned(100, 7)
    assert (degrees.opened(100, 10).numbers, degrees.opened(100, 10).unknowns) == (10, 55)
    seeded = SeededStep.planned(100, 4, 32, bytes(32))
    assert seeded.opened(100, 10).share == 40 / 55
    assert seeded.opened(100, 100).share == 400 / 5050
    assert seeded.opened(100, 0).share == 0
    for matrix in (ItemItem.planned(100, 0.5, 32), HeadItemItem.planned(100, 5, 0.5, 32)):
        assert matrix.opened(100, 10).share == 0
    program = program_of(PrivirecKSettings(rank=4, rounds=2), 7, 100)
    assert program.opened_share() == pytest.approx(900 / 5050)
