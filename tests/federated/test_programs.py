"""Tests of PriviRec and PriviRec-k, driven by hand."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from privirec.data import Dataset, Interactions
from privirec.errors import UsageError
from privirec.federated.contributions import Histories, ItemItem
from privirec.federated.programs import (
    Broadcast,
    Privirec,
    PrivirecK,
    PrivirecSettings,
    program_of,
    settings_of,
)
from privirec.federated.programs.privirec import item_item_sum, normalized
from privirec.filters import Components, LowRankOperator, SparseOperator
from privirec.filters.normalize import Normalisation, degree_power


def drive(train: Interactions, steps: Any) -> Any:
    """Answer every request with its total, and return the result of the generator."""
    answer = None
    while True:
        try:
            wanted = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = None if isinstance(wanted, Broadcast) else wanted.total(Histories(train.matrix))


def components_of(train: Interactions, **settings: Any) -> Components:
    found = drive(train, program_of(settings_of(settings), train.n_users, train.n_items).steps())
    assert isinstance(found, Components)
    return found


def p_tilde(train: Interactions, alpha: float = 0.5) -> NDArray[np.float64]:
    r = train.matrix.toarray().astype(np.float64)
    users = degree_power(train.user_degrees, -alpha)[:, None]
    items = degree_power(train.item_degrees, alpha - 1)[None, :]
    scaled = users * r * items
    return np.asarray(scaled.T @ scaled)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"method": "privirec", "rank": 18}, "rank 18 does not fit a catalogue of 17 items"),
        ({"method": "privirec-k", "rank": 18}, "rank 18 does not fit a catalogue of 17 items"),
        ({"method": "privirec", "rank": 4, "alpha": 0.6}, "alpha = 1/2"),
        ({"method": "privirec-k", "rank": 4, "alpha": 0.6}, "alpha = 1/2"),
        ({"method": "privirec-k", "rank": 0}, "rank of at least 1"),
        ({"method": "privirec-k", "rank": 4, "rounds": 1}, "at least 2 rounds"),
        (
            {"method": "privirec-k", "rank": 4, "rounds": 1, "eigenvalues": "diagonal"},
            "at least 2 rounds",
        ),
        ({"method": "privirec-k", "rank": 4, "rounds": 1, "start": "users"}, "at least 2 rounds"),
    ],
)
def test_what_cannot_run_is_refused_before_the_first_ask(
    holes: Interactions, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        program_of(settings_of(settings), holes.n_users, holes.n_items)


def test_a_federation_of_nobody_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one user"):
        program_of(PrivirecSettings(rank=1), 0, 5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"roundz": 3},
        {"rounds": 0},
        {"rank": -1},
        {"ring_bits": 65},
        {"ring_bits": 0},
        {"alpha": -0.1},
        {"alpha": 1.1},
        {"alpha": float("nan")},
        {"seed": -1},
        {"start": "somewhere"},
    ],
)
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PrivirecSettings(**wrong)
    with pytest.raises(UsageError, match=next(iter(wrong))):
        settings_of({"method": "privirec"} | wrong)


def test_the_paper_s_settings() -> None:
    for program in (Privirec, PrivirecK):
        settings = program.preset("paper", rank=256)
        assert settings.rounds == 2
        assert settings.start == "users"
        assert settings.multiplications == 1
    assert PrivirecK.preset("paper").eigenvalues == "diagonal"
    assert Privirec.preset("paper").low_pass_from == "clients"
    assert Privirec.preset("paper", rank=8, rounds=4).multiplications == 3


@pytest.mark.parametrize("alpha", [0.0, 0.4, 0.5, 0.6, 1.0])
def test_the_released_matrix_is_p_tilde(small: Dataset, alpha: float) -> None:
    train = small.train
    planned = ItemItem.planned(train.n_items, alpha, 32)
    released = drive(train, item_item_sum(planned, train.item_degrees)).toarray()
    exact = p_tilde(train, alpha)
    np.testing.assert_allclose(released, exact, atol=1e-5 * exact.max())
    np.testing.assert_array_equal(released, released.T)
    np.testing.assert_array_equal(released > 0, exact > 0)


def test_normalizing_undoes_the_encoding(holes: Interactions) -> None:
    ask = ItemItem(holes.n_items, int(holes.item_degrees.max()), width=48)
    total = ask.total(Histories(holes.matrix))
    matrix = normalized(total, ask.encoding, holes.item_degrees, Normalisation.symmetric())
    np.testing.assert_allclose(matrix.toarray(), p_tilde(holes), atol=1e-12)


@pytest.mark.parametrize("start", ["users", "items"])
def test_power_rounds_are_the_power_method(
    small: Dataset, start: Literal["users", "items"]
) -> None:
    train = small.train
    settings = PrivirecSettings(rank=8, rounds=4, start=start)
    program = Privirec(settings, train.n_users, train.n_items)
    seen: list[tuple[int, NDArray[np.float64]]] = []
    steps = program.power_rounds(
        program.power_sums(), train.item_degrees, lambda n, x, _: seen.append((n, x.copy()))
    )
    found = drive(train, steps)
    assert [number for number, _ in seen] == [1, 2, 3, 4]
    np.testing.assert_array_equal(seen[-1][1], found.basis)
    np.testing.assert_array_equal(seen[-2][1], found.before)
    np.testing.assert_allclose(found.image, p_tilde(train) @ found.before, atol=1e-6)
    np.testing.assert_allclose(found.basis @ found.triangle, found.image, atol=1e-9)
    np.testing.assert_allclose(found.basis.T @ found.basis, np.eye(8), atol=1e-9)
    # A shorter run is a prefix of a longer one.
    again = drive(train, program.power_rounds(program.power_sums()[:2], train.item_degrees))
    np.testing.assert_array_equal(again.basis, seen[1][1])


def test_the_paper_s_algorithm_step_by_step(small: Dataset) -> None:
    """Test L = 2: orthonormal Omega per user, Y = A^T Omega, QR, Y = A^T A X, QR: S and diag(T)."""
    train = small.train
    r = train.matrix.toarray().astype(np.float64)
    a = degree_power(train.user_degrees, -0.5)[:, None] * r
    a *= degree_power(train.item_degrees, -0.5)[None, :]
    omega = np.random.Generator(np.random.Philox(5)).standard_normal((6, train.n_users)).T
    x, _ = np.linalg.qr(a.T @ np.linalg.qr(omega)[0])
    basis, triangle = np.linalg.qr(a.T @ (a @ x))
    wanted = PrivirecK.preset("paper", rank=6, seed=5)
    found = drive(train, program_of(wanted, train.n_users, train.n_items).steps())
    assert isinstance(found.item_item, LowRankOperator)
    assert found.basis is found.item_item.basis
    np.testing.assert_allclose(
        found.item_item.eigenvalues, np.abs(np.diagonal(triangle)), atol=1e-5
    )
    assert found.basis is not None
    np.testing.assert_allclose(found.basis @ found.basis.T, basis @ basis.T, atol=1e-4)


def test_rayleigh_ritz_values_are_eigenvalues_from_below(small: Dataset) -> None:
    train = small.train
    true = np.linalg.eigvalsh(p_tilde(train))[::-1][:8]
    by_rounds = []
    for rounds in (2, 4, 40):
        found = components_of(train, method="privirec-k", rank=8, rounds=rounds)
        assert isinstance(found.item_item, LowRankOperator)
        values = found.item_item.eigenvalues
        assert (np.diff(values) <= 0).all()
        assert (values <= true + 1e-5).all()
        by_rounds.append(values)
    np.testing.assert_allclose(by_rounds[-1], true, atol=1e-3)
    assert by_rounds[0].sum() < by_rounds[1].sum() < by_rounds[2].sum()


def test_more_vectors_than_users_leave_zeros_not_noise() -> None:
    train = Interactions.from_matrix(np.array([[1, 1, 0, 0, 1], [0, 1, 1, 0, 0]]))
    for settings in (
        {"method": "privirec-k", "rank": 5, "rounds": 3},
        {"method": "privirec-k", "rank": 5, "rounds": 3, "start": "users"},
    ):
        found = components_of(train, **settings)
        dense = found.item_item.times(np.eye(5, dtype=np.float32))
        np.testing.assert_allclose(dense, p_tilde(train), atol=1e-4)
    wanted = PrivirecK.preset("paper", rank=5)
    found = drive(train, program_of(wanted, train.n_users, train.n_items).steps())
    assert (np.abs(found.item_item.eigenvalues[2:]) < 1e-6).all()


def test_the_server_can_find_the_vectors_alone(small: Dataset) -> None:
    train = small.train
    alone = components_of(train, **{"method": "privirec", "rank": 8, "low_pass_from": "server"})
    values, vectors = np.linalg.eigh(p_tilde(train))
    assert alone.basis is not None
    assert values[-8] - values[-9] > 1e-4  # otherwise the subspace is not defined
    leading = vectors[:, -8:]
    np.testing.assert_allclose(alone.basis @ alone.basis.T, leading @ leading.T, atol=1e-3)
    assert isinstance(alone.item_item, SparseOperator)


def test_the_seed_decides_the_start(small: Dataset) -> None:
    runs = [
        components_of(small.train, method="privirec-k", rank=4, rounds=2, seed=seed).basis
        for seed in (0, 0, 1)
    ]
    assert runs[0] is not None
    np.testing.assert_array_equal(runs[0], runs[1])
    assert (runs[0] != runs[2]).any()
