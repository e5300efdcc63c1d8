"""Tests of sums whose sizes are decided during the run, within the bounds of the plan."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Literal

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from privirec.data import Interactions
from privirec.errors import FederationError, PrivirecError, UsageError
from privirec.federated.contributions import (
    Contribution,
    LaterSum,
    NoiseShare,
    NoisyHeadGram,
    NoisyPairs,
    NoisyPopularity,
    NoisyPowerStep,
    PlannedSum,
)
from privirec.federated.dp.loss import Loss
from privirec.federated.programs import Protected, ProtectedSettings, protected, protected_ways
from privirec.federated.programs.calibration import Promise
from privirec.federated.programs.protected_ways import (
    Gram,
    Power,
    Released,
    Way,
    Wishes,
    choose,
    concentration,
    popularity_share,
    usual_popularity,
)
from privirec.models import Denoised
from privirec.runtime.execute import execute, execute_steps
from privirec.runtime.local.client import clients_of
from privirec.runtime.local.secure import DropOuts, SecureInProcess
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.spec import Assumptions
from privirec.secagg import ServerModel

ITEMS, USERS, CLIENTS = 40, 60, 20


def program(**changes: Any) -> Protected:
    given = {"clients": CLIENTS, "contributors": 15, "corrupt": 1, "epsilon": 8.0}
    return Protected(ProtectedSettings(**(given | changes)), USERS, ITEMS)


def people(seed: int = 0) -> Interactions:
    rng = np.random.default_rng(seed)
    return Interactions.from_matrix(sp.csr_array((rng.random((USERS, ITEMS)) < 0.2).astype(float)))


def by_curve(released: Released, wishes: Wishes) -> Way:
    """Choose by the released curve alone, so that other noise gives other sizes."""
    head = 2 + int((released.popularity > released.popularity.mean()).sum())
    sizes = released.n_items, released.n_users
    if released.popularity[0] > np.median(released.popularity):
        return Gram(*sizes, head)
    return Power(*sizes, head, (0.3, 0.3, 0.4), columns=3, pairs=head)


def through_masks(made: Protected, seed: int, gone: tuple[int, ...] = ()) -> SecureInProcess:
    return SecureInProcess(
        clients_of(people(), CLIENTS, seed),
        made.sums(),
        "secagg+",
        assumptions=Assumptions(drop_share=0.2, server_model=ServerModel.SEMI_HONEST),
        dropouts=DropOuts(at_sums={1: {"input": gone}}),
    )


@pytest.mark.parametrize("protocol", ["secagg+", "lightsecagg"])
def test_masks_hide_sums_whose_length_was_decided_during_the_run(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that a run with real masks gives the bits of a simulation, for sizes that follow from
    released noise, and that both ways occur."""
    monkeypatch.setattr(protected, "choose", by_curve)
    ways = set()
    for seed in range(4 if protocol == "secagg+" else 1):
        made, again = program(), program()
        simulated, ledger = execute(made.steps(), Simulation(people(), CLIENTS, seed))
        federation = SecureInProcess(
            clients_of(people(), CLIENTS, seed),
            again.sums(),
            protocol,
            assumptions=Assumptions(drop_share=0.2, server_model=ServerModel.SEMI_HONEST),
        )
        real, real_ledger = execute(again.steps(), federation)
        np.testing.assert_array_equal(simulated.item_degrees, real.item_degrees)
        scores = [Denoised().use(each).score(people().matrix) for each in (simulated, real)]
        np.testing.assert_array_equal(*scores)
        found = made.found()["sizes"]
        assert found == again.found()["sizes"]
        ways.add((found["way"], found["head"]))
        lengths = [row["entries"] for row in ledger.as_rows()]
        assert lengths == [row["entries"] for row in real_ledger.as_rows()]
        assert ledger.sums < len(made.sums()) or found["way"] == "power"
        assert ledger.bytes_up <= made.bounds.upload_bytes
    assert len(ways) > 1 or protocol != "secagg+"


def test_sums_after_the_first_have_no_noise_for_clients_that_might_drop_out() -> None:
    """Test both kinds of runs: the noise covers the corrupt clients, and in a run with drop-outs
    those that are left add as much more."""
    for gone in ((), (3, 4, 11, 19)):
        made = program(way="gram", head=6)
        asked: list[Any] = []
        runtime = through_masks(made, 1, gone)
        steps, answer = made.steps(), None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration:
                break
            if isinstance(step, Contribution):
                asked.append(step)
            answer = execute_one(step, runtime)
        left = CLIENTS - len(gone)
        assert (asked[0].clients, asked[0].contributors) == (CLIENTS, 15)
        assert (asked[1].clients, asked[1].contributors) == (left, left - 1)
        losses = [one.protected.loss for one in asked]
        assert Loss.together(losses).fits(made.promise.cap)
        assert Loss.together(losses).mu > 0.98 * made.promise.mu
        assert made.found()["sizes"]["epsilon"] == Loss.together(losses).epsilon(made.delta)


def execute_one(step: Any, runtime: Any) -> Any:
    def once() -> Any:
        return (yield step)

    return execute_steps(once(), runtime)


CURVES = arrays(np.float64, ITEMS, elements=st.floats(-50, 500))


@settings(max_examples=40)
@given(
    CURVES,
    st.floats(0.1, 16),
    st.integers(15, CLIENTS),
    st.integers(2_000, 20_000),
    st.sampled_from(["auto", "gram", "power"]),
)
def test_whatever_is_released_the_choice_keeps_every_bound(
    popularity: np.ndarray, epsilon: float, clients: int, limit: int, way: Any
) -> None:
    made = program(epsilon=epsilon, upload_limit=limit, way=way)
    released = made._released(popularity, clients)
    chosen = choose(released, made.settings.wishes)
    assert released.fits(chosen)
    assert abs(sum(chosen.shares) - 1) < 1e-9
    spent, sent, places = Loss(), 0, iter(made.sums())
    for planned in [made._popularity, *made._sums_of(chosen, released.promise)]:
        ask = example_of(planned)
        next(places).check(ask)
        made.bounds.check(ask, spent, sent)
        assert ask.protected is not None
        spent = Loss.together((spent, ask.protected.loss))
        sent += planned.payload_bytes
    assert spent.mu > 0.9 * made.promise.mu


def example_of(planned: PlannedSum) -> Contribution:
    """Return a request of a planned size; its contents do not matter here."""
    if planned.kind is NoisyPopularity:
        return planned.ask()
    length = planned.shape.length
    if planned.kind is NoisyHeadGram:
        head = int((np.sqrt(8 * length + 1) - 1) / 2)
        return planned.ask(items=np.arange(head), weights=np.ones(head, np.int64))
    if planned.kind is NoisyPairs:
        places = np.zeros(length, np.int64)
        return planned.ask(items=np.arange(2), first=places, second=places)
    block = np.zeros((1, length), np.int32)
    return planned.ask(items=np.arange(1), weights=np.ones(1, np.int64), block=block)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([NoisyHeadGram, NoisyPowerStep, NoisyPairs]),
            st.integers(1, 900),
            st.integers(8, 100_000),
            st.integers(0, 30),
            st.integers(1, CLIENTS),
        ),
        max_size=6,
    )
)
def test_a_server_that_picks_any_sizes_and_noise_gets_no_more_than_the_promise(
    lies: list[tuple[Any, int, int, int, int]],
) -> None:
    """Test a client that answers whatever passes its checks: all of it keeps the promise."""
    made = program(upload_limit=20_000)
    spent, sent, places = Loss(), 0, iter(made.sums())
    first = next(places).ask()
    made.bounds.check(first, spent, sent)
    assert first.protected is not None
    spent, sent = first.protected.loss, first.encoding.payload_bytes(first.length)
    place = next(places, None)
    for kind, length, deviation, bits, few in lies:
        if place is None:
            break
        try:
            share = NoiseShare(deviation, CLIENTS, few, bits)
            fixed = {"n_items": ITEMS, "n_users": USERS, **asdict(share)}
            fixed["ring_bits"] = made._ring_bits
            asked = PlannedSum(kind, replace(place.shape, length=length), fixed)
            ask = example_of(asked)
            place.check(ask)
            made.bounds.check(ask, spent, sent)
        except PrivirecError:
            continue
        assert ask.protected is not None
        spent = Loss.together((spent, ask.protected.loss))
        sent += ask.encoding.payload_bytes(ask.length)
        place = next(places, None)
    assert spent.fits(made.promise.cap)
    assert spent.epsilon(made.delta) <= 8.0
    assert sent <= 20_000


def later(made: Protected, place: int = 1) -> LaterSum:
    found = made.sums()[place]
    assert isinstance(found, LaterSum)
    return found


def test_each_bound_refuses_what_exceeds_it() -> None:
    made = program(way="gram", head=6, upload_limit=400)
    bound = later(made)
    (planned,) = made._sums_of(made.way, made.settings.confirmed(USERS, CLIENTS))
    ask: Any = example_of(planned)
    bound.check(ask)
    spent = made._first.protection(ITEMS).loss
    sent = made._popularity.payload_bytes
    made.bounds.check(ask, spent, sent)
    longer = {"items": np.arange(7), "weights": np.ones(7, np.int64)}
    for lie, said in (
        (made._popularity.ask(), "not the noisy-head-gram of the plan"),
        (replace(ask, **longer), "28 entries, where the plan allows 1 to 21"),
        (replace(ask, items=np.arange(0), weights=np.arange(0)), "without entries"),
        (replace(ask, ring_bits=bound.shape.ring_bits + 1), "another ring"),
        (replace(ask, ring_bits=0), "another ring"),
        (replace(ask, n_users=USERS + 1), "number of users"),
        (replace(ask, mechanism="none"), "another mechanism"),
    ):
        with pytest.raises(FederationError, match=said):
            bound.check(lie)
    for other in ({"signed": not bound.shape.signed}, {"ring_bits": bound.shape.ring_bits - 1}):
        with pytest.raises(FederationError, match="in another ring than planned"):
            replace(bound, shape=replace(bound.shape, **other)).check(ask)
    for lie, said in (
        (replace(ask, deviation=ask.deviation * 9 // 10), "noise of noisy-head-gram is less"),
        (replace(ask, contributors=ask.contributors * 8 // 10), "noise of noisy-head-gram is less"),
        (replace(ask, deviation=7), "too coarse"),
        (replace(ask, deviation=0), "impossible"),
        (replace(ask, fraction_bits=99), "impossible"),
    ):
        with pytest.raises(FederationError, match=said):
            made.bounds.check(lie, spent, sent)
    with pytest.raises(FederationError, match="more than the 400 bytes of the plan"):
        made.bounds.check(ask, spent, 400)
    with pytest.raises(FederationError, match="noise of noisy-head-gram is less"):
        made.bounds.check(ask, Loss.together((spent, ask.protected.loss)), sent)


def test_a_program_that_chooses_more_than_its_plan_allows_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_long(released: Released, wishes: Wishes) -> Way:
        return Gram(released.n_items, released.n_users, released.n_items)

    monkeypatch.setattr(protected, "choose", too_long)
    with pytest.raises(FederationError, match=r"bytes of the plan|where the plan allows"):
        execute(program(upload_limit=1_000).steps(), Simulation(people(), CLIENTS))

    def too_thin(released: Released, wishes: Wishes) -> Way:
        return Power(released.n_items, released.n_users, 3, (0.999, 0.001), 2)

    monkeypatch.setattr(protected, "choose", too_thin)
    with pytest.raises(UsageError, match="of the budget"):
        execute(program().steps(), Simulation(people(), CLIENTS))


@settings(max_examples=40)
@given(
    st.integers(1, 10**7),
    st.integers(2, 10**6),
    st.floats(0.01, 20),
    st.floats(protected_ways.SMALLEST_PART, 0.99),
    st.integers(1, 10**6),
)
def test_the_ring_of_the_plan_holds_every_later_sum(
    n_users: int, n_items: int, epsilon: float, part: float, entries: int
) -> None:
    clients = min(n_users, 10**6)
    assumed = Assumptions(server_model=ServerModel.SEMI_HONEST)
    few = {"contributors": assumed.contributors(clients), "corrupt": assumed.corrupt(clients)}
    wanted = ProtectedSettings(epsilon=epsilon, clients=clients, **few)
    made = Protected(wanted, n_users, n_items)
    length = min(entries, made._longest)
    for left in (clients, max(1, clients * 4 // 5)):
        promise = wanted.confirmed(n_users, left)
        share = promise.divided(made._left, (part, 1 - part), (length, 1), made._most_sums)[0]
        ask: Any = NoisyPairs.planned(n_items, n_users, share, 2, 1, made._ring_bits)
        assert ask.shape.ring_bits == made._ring_bits


def test_sizes_that_somebody_set_win_over_the_limit() -> None:
    made = program(way="gram", head=30, upload_limit=None)
    assert made.way.head == 30
    assert program(head=5, columns=2, way="power").way == Power(
        ITEMS, USERS, 5, protected_ways.STEP_PARTS, 2
    )
    big = Protected(ProtectedSettings(way="gram", head=4_000, epsilon=8.0), 30_000, 5_000)
    assert big.way.head == 4_000
    assert big.bounds.upload_bytes > 20_000_000
    wanted = ProtectedSettings(way="gram", head=4_000, upload_limit=5_000_000)
    with pytest.raises(UsageError, match="an upload limit of 5,000,000 bytes, where"):
        _ = Protected(wanted, 30_000, 5_000).bounds


@pytest.mark.parametrize("way", ["gram", "power"])
def test_a_larger_limit_allows_a_larger_head(way: Literal["gram", "power"]) -> None:
    heads, ends = [], []
    for limit in (1_000_000, 5_000_000, 50_000_000):
        wanted = ProtectedSettings(way=way, epsilon=8.0, upload_limit=limit)
        made = Protected(wanted, 2_000_000, 100_000)
        heads.append(made.way.head)
        ends.append(
            sum(one.payload_bytes for one in made.forecast() if isinstance(one, PlannedSum))
        )
        assert 0.5 * limit < ends[-1] <= limit
    assert heads == sorted(set(heads))


def test_a_forecast_has_a_curve_of_usual_shape() -> None:
    curve = usual_popularity(1000, 500)
    assert len(curve) == 500
    assert (np.diff(curve) < 0).all()
    assert curve.sum() == pytest.approx(1000 * np.sqrt(20))


def released(popularity: np.ndarray, deviation: float = 0.0, limit: int = 5_000_000) -> Released:
    """Return a curve of popularity that 100,000 people released at epsilon 8."""
    promise = Promise(8.0, 1e-6, 1, 1)
    return Released(popularity, deviation, 100_000, promise, promise.mu, limit, 32)


def test_concentration_is_the_chance_of_two_equal_draws_in_units_of_noise() -> None:
    popularity = np.array([6.0, 3.0, 1.0, 0.0])
    curve = released(popularity)
    alike = 0.36 + 0.09 + 0.01
    assert concentration(curve) == pytest.approx(curve.promise.mu * 100_000 * alike**2)
    # More people with the same curve: only their number counts.
    assert concentration(released(7 * popularity)) == pytest.approx(concentration(curve))
    assert concentration(released(np.zeros(4))) == 0


def test_noise_does_not_look_like_concentration() -> None:
    rng = np.random.default_rng(0)
    flat = np.full(50_000, 20.0)
    exact = concentration(released(flat))
    for deviation in (1.0, 10.0, 30.0):
        noisy = flat + deviation * rng.standard_normal(len(flat))
        assert concentration(released(noisy, deviation)) == pytest.approx(exact, rel=0.15)
    for _ in range(20):
        pure = 1000 * rng.standard_normal(5000)
        assert isinstance(choose(released(pure, 1000.0), Wishes()), Power)


def test_the_curve_decides_the_way() -> None:
    """Test that few popular items lead to pairs of all of them, and a flat catalogue to steps."""
    for flat, way in ((10, Gram), (3000, Power)):
        curve = 300_000 / (flat + np.arange(12_000.0))
        assert isinstance(choose(released(curve), Wishes()), way)
        assert isinstance(choose(released(curve[::-1].copy()), Wishes()), way)


@pytest.mark.parametrize("way", ["gram", "power"])
def test_items_that_may_be_noise_are_not_in_the_head(way: str) -> None:
    curve = np.concatenate([np.full(300, 100.0), np.full(20_000, 15.0)])
    assert choose(released(curve, deviation=10.0), Wishes(way)).head == 300
    assert choose(released(curve, deviation=1.0), Wishes(way)).head > 1000
    assert choose(released(curve, deviation=10.0), Wishes(way, head=500)).head == 500
    assert choose(released(curve, deviation=1e9), Wishes(way)).head == 2


def test_the_limit_takes_columns_before_it_takes_items() -> None:
    curve = np.full(20_000, 100.0)
    heads, columns = [], []
    for limit in (50_000_000, 6_000_000, 3_000_000, 1_000_000):
        way = choose(released(curve, limit=limit), Wishes("power"))
        assert isinstance(way, Power)
        assert way.upload_bytes(32) <= limit
        heads.append(way.head)
        columns.append(way.columns)
    assert heads[0] == heads[1] > heads[2] > heads[3]
    assert columns[0] > columns[1] > columns[2] == columns[3] == protected_ways.LEAST_POWER_COLUMNS


def test_popularity_gets_more_where_there_is_less_signal_per_item() -> None:
    shares = [popularity_share(signal, 1000) for signal in (1, 100, 300, 1000, 2000, 1e5)]
    assert shares == sorted(shares, reverse=True)
    assert (shares[0], shares[3], shares[-1]) == (0.25, 0.1, 0.05)
