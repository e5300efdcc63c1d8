"""Tests that no refusal depends on histories: clients that differ only in their histories accept or
refuse every request alike, in the same words."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from hypothesis import example, given
from hypothesis import strategies as st

from privirec.errors import PrivirecError
from privirec.extra.likely_links import LinkDegrees
from privirec.federated.contributions import (
    Candidate,
    ClientContext,
    Contribution,
    HeadItemItem,
    Histories,
    ItemItem,
    PowerStep,
    SeededStep,
    UserStart,
    ValidationMetrics,
    answer,
)
from privirec.federated.fixed_point import FixedPoint
from privirec.federated.programs import PrivirecKSettings
from privirec.federated.randomness import NO_RANDOMNESS
from privirec.filters.spectral import KeptBasis
from privirec.runtime.local.client import split_as_dealt

ITEMS, USERS, PEOPLE = 6, 9, 4
"""Sizes of the catalogue, of the cohort and of the client."""


def asks(rng: np.random.Generator, degrees: np.ndarray) -> dict[str, Any]:
    """Return one request of each kind with these degrees, built on first access."""
    basis = np.linalg.qr(rng.standard_normal((ITEMS, 2)))[0]
    rows, entries = np.arange(0, 3 * ITEMS + 1, 3), 3 * ITEMS
    public = {
        **{"n_items": ITEMS, "n_users": USERS, "alpha": 0.5, "left": 0.5, "right": 0.5},
        **{"user_exponent": 1.0, "width": 32, "item_degrees": degrees, "indptr": rows},
        "indices": rng.integers(0, ITEMS, entries),
        "entries": rng.integers(0, 1 << 20, entries),
        "thresholds": np.array([int(rng.integers(0, 0x7F800001))]),
    }
    return {
        "item-item": lambda: ItemItem(ITEMS, int(degrees.max(initial=0))),
        "head": lambda: HeadItemItem(ITEMS, degrees, 3),
        "power": lambda: PowerStep.of(basis, degrees, 32),
        "seeded": lambda: SeededStep(degrees, bytes(32), 2),
        "users": lambda: UserStart.of(rng.standard_normal((USERS, 2)), degrees, 32),
        "links": lambda: LinkDegrees(**public),
        "validation": lambda: ValidationMetrics.of(
            KeptBasis.of(np.array([1.0, 0.5]), basis * (degrees > 0)[:, None]),
            degrees,
            USERS,
            Candidate(rank=2, history_exponent=0.5, item_exponent=0.5).pack(),
        ),
    }


def outcome(ask: Contribution, histories: Histories) -> tuple[str, int]:
    """Return what the server sees: a refusal, or the length of a vector within the ring."""
    context = ClientContext(USERS, ITEMS, PrivirecKSettings(rank=2, rounds=2), histories)
    try:
        ask.check(context)
        vector = np.concatenate(list(answer(ask, histories, NO_RANDOMNESS)))
    except PrivirecError as error:
        return str(error), 0
    most = 2 ** (ask.encoding.width - ask.encoding.signed) - 1
    assert -most * ask.encoding.signed <= vector.min()
    assert vector.max() <= most
    return "answered", len(vector)


@given(
    st.integers(0, 2**32 - 1), st.lists(st.integers(0, USERS + 1), min_size=ITEMS, max_size=ITEMS)
)
def test_clients_with_other_histories_do_not_differ_in_what_they_refuse(
    seed: int, claimed: list[int]
) -> None:
    rng = np.random.default_rng(seed)
    clients = [
        split_as_dealt(
            Histories(sp.csr_array((rng.random((PEOPLE, ITEMS)) < share).astype(np.float32))),
            *(0.2, None, seed),
        )
        for share in (0.0, 0.3, 1.0)
    ]
    for kind, make in asks(rng, np.array(claimed)).items():
        try:
            ask = make()
        except PrivirecError:
            continue  # cannot be encoded at all
        assert len({outcome(ask, histories) for histories in clients}) == 1, kind


@given(st.integers(1, 64), st.booleans(), st.integers(-(2**62), 2**62))
@example(8, True, -128)
@example(8, True, 128)
@example(32, True, -(2**31))
def test_wrapping_keeps_what_fits_and_the_sum_of_what_does_not(
    width: int, signed: bool, value: int
) -> None:
    if width == 1 and signed:
        return  # no plan has this ring
    unit = FixedPoint(width, 0, signed)
    most = 2 ** (min(width, 63) - signed) - 1
    low = -most if signed else 0
    wrapped = int(unit.wrapped(np.array([value]))[0])
    if low <= value <= most:
        assert wrapped == value
    if signed and (value + 2 ** (width - 1)) % 2**width == 0:
        assert wrapped == low  # one unit off: what lies opposite has no place
    else:
        assert (wrapped - value) % 2**width == 0
    assert low <= wrapped or width == 64
