"""Tests of every contribution: the same bits for any split of the users, and no sum that wraps."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from privirec import threads
from privirec.data import Dataset, Interactions
from privirec.errors import FederationError, OverflowRefused
from privirec.extra.likely_links import LinkDegrees, LinkItemItem, ScoreHistogram
from privirec.federated.contributions import (
    REGISTRY,
    ClientContext,
    Contribution,
    HeadItemItem,
    Histories,
    ItemDegrees,
    ItemItem,
    PowerStep,
    RowReach,
    ScaledStep,
    SeededScaledStep,
    SeededStep,
    UserStart,
    base,
    outer,
    start_signs,
)
from privirec.federated.contributions.noisy import NormedSum
from privirec.federated.contributions.scaled_step import CoarseBlock
from privirec.federated.programs import HeadGramSettings
from privirec.filters import exact, factored
from privirec.filters.normalize import degree_power

SEED = bytes(range(32))
FROZEN_SIGNS = "668bdd7a6a4269dc3abfd99a3e011a09e69e3349756e7a24d3adba5bc87fb248"
KINDS = sorted(
    name
    for name, kind in REGISTRY.items()
    if not issubclass(kind, NormedSum) and not kind.counts_hits  # test_protected, test_validation
)
"""Kinds without noise; test_protected.py tests the others."""
COUNTS = {"item-degrees", "score-histogram", "link-degrees", "row-reach"}
"""Kinds that sum whole numbers, in a ring of their own."""
FITTED = {"scaled-step", "seeded-scaled-step"}
"""Kinds that scale each row until it fits, however narrow the ring."""


def ask_of(
    kind: str, train: Interactions, x: NDArray[np.float64], width: int, alpha: float = 0.5
) -> Contribution:
    """Return a contribution of this kind that the cohort could be asked for; x has enough rows."""
    degrees = train.item_degrees
    made: dict[str, Any] = {
        "item-degrees": lambda: ItemDegrees(train.n_items, train.n_users),
        "head-item-item": lambda: HeadItemItem(
            train.n_items, degrees, -(-train.n_items // 2), alpha, width
        ),
        "score-histogram": lambda: ScoreHistogram(**stages(train, alpha, width, 1), upper=-1),
        "link-degrees": lambda: LinkDegrees(**stages(train, alpha, width, 2)),
        "link-item-item": lambda: LinkItemItem(**stages(train, alpha, width, 2)),
        "item-item": lambda: ItemItem(train.n_items, int(degrees.max()), alpha, width),
        "power-step": lambda: PowerStep.of(x[: train.n_items], degrees, width),
        "seeded-step": lambda: SeededStep(degrees, SEED, x.shape[1], width),
        "user-start": lambda: UserStart.of(x[: train.n_users], degrees, width),
        "row-reach": lambda: RowReach.of(CoarseBlock.of(x[: train.n_items], degrees, 4), degrees),
        "scaled-step": lambda: scaled_step(train, x[: train.n_items], width),
        "seeded-scaled-step": lambda: SeededScaledStep(degrees, SEED, x.shape[1], width, 1),
    }
    ask: Contribution = made[kind]()
    return ask


def scaled_step(train: Interactions, x: NDArray[np.float64], width: int) -> ScaledStep:
    """Return a scaled step with the reaches of this cohort."""
    degrees = train.item_degrees
    block = CoarseBlock.of(x, degrees, 4)
    reach = RowReach.of(block, degrees)
    reaches = reach.decode(reach.total(Histories(train.matrix)))
    return ScaledStep.of(block, degrees, reaches, width, fine_rows=1)


def stages(train: Interactions, alpha: float, width: int, decided: int) -> dict[str, Any]:
    """Return two stages of likely links; `decided` of them have a threshold that some scores
    reach."""
    degrees = train.item_degrees
    ask = ItemItem(train.n_items, int(degrees.max()), alpha, width)
    matrix = ask.total(Histories(train.matrix))
    reached = int(np.float32(0.1).view(np.int32))
    return {
        "n_items": train.n_items,
        "n_users": train.n_users,
        "alpha": 0.34,
        "left": 0.5,
        "right": 0.25,
        "user_exponent": 2 * alpha,
        "width": width,
        "item_degrees": np.concatenate((degrees, np.minimum(degrees + 1, train.n_users))),
        "indptr": matrix.indptr,
        "indices": matrix.indices,
        "entries": np.concatenate((matrix.data, matrix.data // 2)),
        "thresholds": np.full(decided, reached, np.int64),
    }


def silos(train: Interactions, cuts: list[int]) -> list[Histories]:
    """Return the users in consecutive groups."""
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < train.n_users}), train.n_users]
    return [Histories(train.matrix[a:b], a) for a, b in pairwise(edges)]


def ring_sum(ask: Contribution, cohort: list[Histories]) -> Iterator[NDArray[np.int64]]:
    """Yield the opened sum: blocks summed in the ring, then decoded."""
    for blocks in zip(*(ask.blocks(silo) for silo in cohort), strict=True):
        total = np.zeros(len(blocks[0]), np.uint64)
        for block in blocks:
            total += ask.encoding.to_ring(block)
        yield ask.encoding.from_ring(total)


def assert_identical(first: Any, second: Any) -> None:
    if sp.issparse(first):
        assert first.shape == second.shape
        for part in ("indptr", "indices", "data"):
            np.testing.assert_array_equal(getattr(first, part), getattr(second, part))
    else:
        np.testing.assert_array_equal(first, second)
    assert first.dtype == second.dtype == np.int64


@st.composite
def cohorts(draw: st.DrawFn) -> Interactions:
    shape = draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    share = draw(st.sampled_from([0.1, 0.5, 0.9, 1.0]))
    dice = draw(arrays(np.float32, shape, elements=st.floats(0, 1, width=16)))
    return Interactions.from_matrix((dice < share).astype(np.float32))


numbers = st.floats(-8, 8) | st.sampled_from([-1.0, 1.0, 0.0])
blocks_of_x = arrays(np.float64, st.tuples(st.just(9), st.integers(1, 5)), elements=numbers)


@pytest.mark.parametrize("seed", range(12))
def test_the_bound_by_norm_is_no_less_than_the_exact_one(seed: int) -> None:
    """Test in rationals: rounding of squares, sums and roots must not make the bound too small."""
    rng = np.random.default_rng(seed)
    block = rng.integers(-(2**31), 2**31, (300, 2)).astype(np.int32)
    degrees = rng.integers(1, 1000, 300)
    ask = PowerStep(degrees, block, 30)
    for weights in (None, degrees):
        rows = zip(block.tolist(), np.ones(300, int) if weights is None else weights, strict=True)
        squares = [[int(weight) * entry**2 for entry in row] for row, weight in rows]
        largest = max(map(sum, zip(*squares, strict=True)))
        exact = Fraction(int(degrees.max()) * largest, 4**30)
        assert exact <= Fraction(ask.bound_by_norm(weights)) ** 2 <= exact * Fraction(1 + 1e-8)


@pytest.mark.parametrize("kind", KINDS)
@given(
    train=cohorts(),
    x=blocks_of_x,
    cuts=st.lists(st.integers(1, 8)),
    width=st.integers(12, 64),
    alpha=st.sampled_from([0.5, 0.6, 0.0, 1.0]),
    entries=st.sampled_from([1, 3, 10, 1 << 22]),
)
def test_any_split_gives_the_total_bit_for_bit(
    *,
    kind: str,
    train: Interactions,
    x: NDArray[np.float64],
    cuts: list[int],
    width: int,
    alpha: float,
    entries: int,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # A histogram is long: do not cut it into tens of thousands of pieces.
        least = 1 << 14 if kind == "score-histogram" else 1
        patch.setattr(base, "BLOCK_ENTRIES", max(entries, least))
        try:
            ask = ask_of(kind, train, x, width, alpha)
            total = ask.total(Histories(train.matrix))
        except OverflowRefused:
            assume(False)
        assert_identical(ask.collect(ring_sum(ask, silos(train, cuts))), total)


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"score-histogram"}))  # long, and only counts
@given(train=cohorts(), x=blocks_of_x, width=st.integers(8, 64))
def test_no_sum_leaves_its_ring(
    kind: str, train: Interactions, x: NDArray[np.float64], width: int
) -> None:
    try:
        ask = ask_of(kind, train, x, width)
        encoding = ask.encoding
    except OverflowRefused:
        assume(False)
    users = silos(train, list(range(train.n_users)))
    sent = [np.concatenate(list(ask.blocks(user))).astype(object) for user in users]
    assert {len(vector) for vector in sent} == {ask.length}
    reduced = np.concatenate(list(ring_sum(ask, users)))
    assert reduced.tolist() == sum(sent[1:], sent[0]).tolist()
    assert encoding.payload_bytes(ask.length) >= ask.length * width // 8 or kind in COUNTS


@pytest.mark.parametrize("width", [12, 16, 31, 32, 53, 60, 63, 64])
@pytest.mark.parametrize("users", [1, 2, 31, 32, 64])
def test_the_worst_cohort_fits(users: int, width: int) -> None:
    """Test users that all hold the same single item, so that every bound is reached."""
    train = Interactions.from_matrix(np.ones((users, 1), np.float32))
    x = np.ones((max(users, 1), 1))
    for kind in {*KINDS} - {"score-histogram", "link-degrees"}:  # no user has an unseen item
        ask = ask_of(kind, train, x, width)
        total = np.concatenate(list(ring_sum(ask, silos(train, list(range(users))))))
        every = [np.concatenate(list(ask.blocks(user))) for user in silos(train, [*range(users)])]
        assert total.tolist() == sum(every[1:], every[0]).tolist()
        assert total[0] > 0


@settings(max_examples=150)
@given(users=st.integers(1, 64), width=st.integers(8, 20), top=st.integers(2**29, 2**30))
@example(users=8, width=9, top=round(0.99375 * 2**30))
def test_roundings_that_all_go_up_fit_too(users: int, width: int, top: int) -> None:
    """Test 8 * 31.8, which fits below 256, although 8 * 32 does not."""
    train = Interactions.from_matrix(np.ones((users, 1), np.float32))
    block = np.full((users, 1), top, np.int32)
    for ask in (
        PowerStep(train.item_degrees, block[:1], 30, width),
        UserStart(train.item_degrees, block, 30, width),
    ):
        try:
            sent = ask.rows_per_user(Histories(train.matrix))
        except OverflowRefused:
            continue
        assert users * int(sent[0, 0]) < 2 ** (width - 1)


def test_a_ring_too_narrow_for_the_cohort_is_refused() -> None:
    train = Interactions.from_matrix(np.ones((300, 2), np.float32))
    for kind in {*KINDS} - COUNTS - FITTED:
        with pytest.raises(OverflowRefused, match="8-bit ring is too narrow"):
            list(ask_of(kind, train, np.ones((300, 2)), 8).blocks(Histories(train.matrix)))


@pytest.mark.parametrize("entries", [1, 7, 40])
def test_streams_go_in_pieces(
    monkeypatch: pytest.MonkeyPatch, holes: Interactions, entries: int
) -> None:
    monkeypatch.setattr(base, "BLOCK_ENTRIES", entries)
    x = np.random.default_rng(0).standard_normal((30, 5))
    for kind in KINDS:
        ask = ask_of(kind, holes, x, 32)
        pieces = list(ask.blocks(Histories(holes.matrix)))
        assert (len(pieces) > 1) == (ask.length > entries)
        # A row of a matrix is never cut, whatever its length.
        whole = {"item-item": holes.n_items, "link-item-item": holes.n_items, "head-item-item": 9}
        row = 1 if kind in COUNTS else whole.get(kind, 5)
        assert max(map(len, pieces)) <= max(entries, row)
        assert sum(map(len, pieces)) == ask.length


def test_a_stream_that_ends_early_is_not_taken_for_whole(
    monkeypatch: pytest.MonkeyPatch, holes: Interactions
) -> None:
    monkeypatch.setattr(base, "BLOCK_ENTRIES", 20)
    for kind in {*KINDS} - COUNTS:
        ask = ask_of(kind, holes, np.ones((30, 3)), 32)
        pieces = list(ask.blocks(Histories(holes.matrix)))
        with pytest.raises(ValueError, match=r"zip|reshape"):
            ask.collect(pieces[:-1])


def test_threads_do_not_change_a_bit(small: Dataset) -> None:
    if threads.available() < 2:
        pytest.skip("needs two threads")
    train = small.train
    x = np.random.default_rng(0).standard_normal((train.n_items, 70))
    for kind in KINDS:
        ask = ask_of(kind, train, x, 32)
        totals = []
        for number in (1, 2):
            with threads.limit(number):
                totals.append(ask.total(Histories(train.matrix)))
        assert_identical(*totals)


# --- likely links ---------------------------------------------------------------------------------


@pytest.mark.check
def test_histograms_count_every_unseen_pair_that_scores(holes: Interactions) -> None:
    public = stages(holes, 0.5, 40, 1)
    own = Histories(holes.matrix)
    upper = ScoreHistogram(**public, upper=-1).total(own)
    scores = ScoreHistogram(**public, upper=-1).operators[1].rows(holes.matrix)
    seen = holes.matrix.toarray() > 0
    assert upper.sum() == np.count_nonzero(scores[~seen] > 0) > 50
    for half in np.flatnonzero(upper):
        lower = ScoreHistogram(**public, upper=int(half)).total(own)
        assert lower.sum() == upper[half]


@pytest.mark.check
def test_likely_links_make_users_weigh_less(holes: Interactions) -> None:
    own = Histories(holes.matrix)
    before = ItemItem(holes.n_items, int(holes.item_degrees.max()), 0.5, 40).total(own)
    after = LinkItemItem(**stages(holes, 0.5, 40, 2)).total(own)
    links = LinkDegrees(**stages(holes, 0.5, 40, 2)).total(own)
    assert links.sum() > 0
    assert (after.diagonal() <= before.diagonal()).all()
    assert (after.diagonal() < before.diagonal()).any()


LIES: dict[str, dict[str, Any]] = {
    "no stage": {"item_degrees": np.zeros(0, np.int64)},
    "degrees cut off": {"item_degrees": np.ones(30, np.int64)},
    "entries cut off": {"entries": np.ones(3, np.int64)},
    "rows cut off": {"indptr": np.zeros(3, np.int64)},
    "rows beyond the end": {"indptr": np.arange(18)},
    "an item outside": {"indices": "outside"},
    "negative entries": {"entries": "negative"},
    "more users than there are": {"item_degrees": np.full(34, 31)},
    "a threshold too many": {"thresholds": np.ones(3, np.int64)},
    "a threshold too few": {"thresholds": np.ones(1, np.int64)},
    "a threshold that is no number": {"thresholds": np.full(2, 0x7F800001)},
}


@pytest.mark.check
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_stages_that_cannot_be_are_refused(holes: Interactions, lie: dict[str, Any]) -> None:
    public = stages(holes, 0.5, 32, 2)
    LinkDegrees(**public)
    for name, value in lie.items():
        changed = {"outside": public[name] + 17, "negative": -public[name]}
        public[name] = changed[value] if isinstance(value, str) else value
    with pytest.raises(FederationError):
        LinkDegrees(**public)


@pytest.mark.check
def test_clients_hold_a_server_to_its_stages(holes: Interactions) -> None:
    own = Histories(holes.matrix[:10])
    context = ClientContext(30, 17, HeadGramSettings(), own)
    public = stages(holes, 0.5, 32, 2)
    LinkDegrees(**public).check(context)
    LinkItemItem(**public).check(context)
    other = {
        "entries": public["entries"] + 1,
        "thresholds": public["thresholds"] + 1,
        "item_degrees": np.tile(holes.item_degrees, 2),
    }
    for name, value in other.items():
        with pytest.raises(FederationError, match="than in an earlier sum of this run"):
            LinkDegrees(**public | {name: value}).check(context)
    fresh = ClientContext(30, 17, HeadGramSettings(), own)
    smaller = np.concatenate((holes.item_degrees, (holes.item_degrees - 1).clip(0)))
    with pytest.raises(FederationError, match="made smaller"):
        LinkDegrees(**public | {"item_degrees": smaller}).check(fresh)
    histogram = ScoreHistogram(**stages(holes, 0.5, 32, 1), upper=0x7F80)
    with pytest.raises(FederationError, match="no score has"):
        histogram.check(ClientContext(30, 17, HeadGramSettings(), own))


def test_the_head_follows_from_degrees_that_a_client_checks(holes: Interactions) -> None:
    own = Histories(holes.matrix[:10])
    context = ClientContext(30, 17, HeadGramSettings(), own)
    HeadItemItem(17, holes.item_degrees, 5).check(context)
    with pytest.raises(FederationError, match="other item degrees than"):
        HeadItemItem(17, holes.item_degrees + 1, 5).check(context)
    fresh = ClientContext(30, 17, HeadGramSettings(), own)
    HeadItemItem(17, holes.item_degrees * 0, 5).check(fresh)
    assert fresh.contradictions == ["item degrees below this client's own"]
    for wrong, said in (
        (holes.item_degrees[:-1], "another catalogue"),
        (-own.item_degrees, "below zero"),
    ):
        with pytest.raises(FederationError, match=said):
            HeadItemItem(17, wrong, 5).check(ClientContext(30, 17, HeadGramSettings(), own))


# --- meaning of the integers ----------------------------------------------------------------------


def test_degrees(holes: Interactions) -> None:
    total = ItemDegrees(holes.n_items, holes.n_users).total(Histories(holes.matrix))
    assert total.tolist() == holes.matrix.toarray().sum(axis=0).tolist()


@given(st.integers(1, 5000), st.integers(8, 50), st.integers(1, 9))
def test_a_share_is_rounded_once_to_the_nearest(degree: int, width: int, largest: int) -> None:
    ask = ItemItem(10, largest, width=width)
    weight = ask.weights(np.array([degree, 0]))
    assert weight.tolist() == [round(Fraction(2**ask.encoding.fraction_bits, degree)), 0]


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 0.6, 1.0])
def test_item_item_is_the_matrix_within_rounding(small: Dataset, alpha: float) -> None:
    train = small.train
    ask = ItemItem(train.n_items, int(train.item_degrees.max()), alpha)
    decoded = ask.encoding.decode(ask.total(Histories(train.matrix)).toarray())
    r = train.matrix.toarray().astype(np.float64)
    exact = r.T @ (degree_power(train.user_degrees, -2 * alpha)[:, None] * r)
    # Every common user adds at most half a unit.
    allowed = (r.T @ r) * (0.5 + 1e-6) * 2.0**-ask.encoding.fraction_bits
    assert (np.abs(decoded - exact) <= allowed).all()


def test_item_item_weights_are_those_of_any_machine() -> None:
    """Test powers to 60 digits: libraries round powers of doubles differently."""
    ask = ItemItem(10, 1, alpha=0.6, width=53)
    assert ask.encoding.fraction_bits == 52
    assert ask.weights(np.arange(5)).tolist() == [
        *(0, 2**52, 1960305596233800, 1205075532806062, 853272570516940)
    ]
    powers = exact.powers(np.array([20, 0, 20]), -2 * 0.6)
    assert powers.tolist() == [0.02746401358265295, 0.0, 0.02746401358265295]


@pytest.mark.parametrize("alpha", [-0.5, float("nan")])
def test_weights_above_one_are_refused(alpha: float) -> None:
    with pytest.raises(OverflowRefused, match="alpha"):
        _ = ItemItem(10, 3, alpha=alpha).encoding


def p_tilde(train: Interactions) -> NDArray[np.float64]:
    r = train.matrix.toarray().astype(np.float64)
    users = degree_power(train.user_degrees, -0.5)[:, None]
    items = degree_power(train.item_degrees, -0.5)[None, :]
    scaled = users * r * items
    return scaled.T @ scaled


def test_power_step_multiplies_with_the_matrix(small: Dataset) -> None:
    train = small.train
    x = np.linalg.qr(np.random.default_rng(3).standard_normal((train.n_items, 70)))[0]
    ask = PowerStep.of(x, train.item_degrees, 32)
    image = ask.encoding.decode(ask.total(Histories(train.matrix)))
    image *= degree_power(train.item_degrees, -0.5)[:, None]
    # In P' space an entry of row i gathers V_i half units, and V_i |W| half units of the block.
    unit = 2.0**-ask.encoding.fraction_bits + 2.0**-ask.block_bits
    allowed = 0.5 * unit * np.sqrt(train.item_degrees)[:, None] * (1 + 1e-6)
    assert (np.abs(image - p_tilde(train) @ x) <= allowed).all()
    assert unit < 1e-6
    # the float operator agrees, so both sides of the design mean the same matrix
    np.testing.assert_allclose(factored(train).times(x.astype(np.float32)), image, atol=1e-5)


def test_seeded_step_multiplies_the_public_signs(small: Dataset) -> None:
    train = small.train
    ask = SeededStep(train.item_degrees, SEED, 5)
    image = ask.encoding.decode(ask.total(Histories(train.matrix)))
    image *= degree_power(train.item_degrees, -0.5)[:, None]
    assert set(np.unique(ask.start())) == {-1.0, 1.0}
    np.testing.assert_allclose(image, p_tilde(train) @ ask.start(), atol=1e-4)
    assert ask.broadcast_bytes == 32


def test_user_start_is_the_paper_s_first_sum(small: Dataset) -> None:
    train = small.train
    x = np.linalg.qr(np.random.default_rng(4).standard_normal((train.n_users, 20)))[0]
    ask = UserStart.of(x, train.item_degrees, 32)
    total = ask.encoding.decode(ask.total(Histories(train.matrix)))
    r = train.matrix.toarray().astype(np.float64)
    exact = r.T @ (degree_power(train.user_degrees, -0.5)[:, None] * x)
    unit = 2.0**-ask.encoding.fraction_bits + 2.0**-ask.block_bits
    allowed = 0.5 * unit * train.item_degrees[:, None] * (1 + 1e-6)
    assert (np.abs(total - exact) <= allowed).all()
    assert unit < 1e-6


def test_a_user_beyond_the_start_block_is_refused(holes: Interactions) -> None:
    ask = UserStart.of(np.ones((5, 2)), holes.item_degrees, 32)
    with pytest.raises(OverflowRefused, match="user 29 has no row"):
        ask.total(Histories(holes.matrix))


def test_a_block_of_another_catalogue_is_refused(holes: Interactions) -> None:
    """Test that a client refuses such a block: compiled loops do not check array bounds."""
    short = np.zeros((holes.n_items - 1, 2), np.int32)
    with pytest.raises(FederationError, match="16 rows for 17 items"):
        PowerStep(holes.item_degrees, short, 30)
    with pytest.raises(FederationError, match="32-bit integers"):
        PowerStep(holes.item_degrees, np.zeros((holes.n_items, 2)), 30)  # type: ignore[arg-type]


@given(blocks_of_x)
@example(np.array([[1.0], [-1.0]]))
@example(np.array([[np.nextafter(1.0, 0.0)], [0.5]]))
@example(np.array([[-5e-324], [0.0]]))
def test_broadcast_blocks_are_as_fine_as_32_bits_allow(x: NDArray[np.float64]) -> None:
    block, bits = outer.quantize(x)
    assert block.dtype == np.int32
    largest = np.abs(block.astype(np.int64)).max()
    assert largest == 0 or 2**29 <= largest <= 2**30
    np.testing.assert_allclose(np.ldexp(block.astype(float), -bits), x, atol=0.5 * 2.0**-bits)


# --- the public start block -----------------------------------------------------------------------


def test_start_signs_are_frozen() -> None:
    """Test against fixed values: every client derives them, so a change would break the
    protocol."""
    signs = start_signs(SEED, 1001, 7)
    assert hashlib.sha256(signs.tobytes()).hexdigest() == FROZEN_SIGNS


def test_start_signs_nest_and_depend_on_the_seed() -> None:
    signs = start_signs(SEED, 100, 6)
    np.testing.assert_array_equal(signs[:, :4], start_signs(SEED, 100, 4))
    np.testing.assert_array_equal(signs[:50], start_signs(SEED, 50, 6))
    assert (signs != start_signs(SEED[::-1], 100, 6)).any()
    assert abs(start_signs(SEED, 4000, 3).mean()) < 0.05
