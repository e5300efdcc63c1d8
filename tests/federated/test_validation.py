"""Tests of validation with the clients: equal to the evaluator, however users are grouped."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from privirec import threads
from privirec.data import Dataset, Interactions
from privirec.errors import FederationError, UsageError
from privirec.evaluation import evaluate
from privirec.federated import wire
from privirec.federated.contributions import (
    Candidate,
    ClientContext,
    Histories,
    PlannedSum,
    ValidationMetrics,
    base,
    validation,
)
from privirec.federated.contributions.validation import (
    FRACTION_BITS,
    INFINITY,
    MOST_CANDIDATES,
    ONE,
    pack_candidates,
)
from privirec.federated.programs import (
    SpectralValidation,
    SpectralValidationSettings,
    program_of,
    settings_of,
)
from privirec.federated.programs.spectral_validation import usual_candidates
from privirec.federated.randomness import ClientRandomness
from privirec.filters.eigen import orthonormalize
from privirec.filters.spectral import KeptBasis
from privirec.models.spectral import Spectral, SpectralConfig
from privirec.privacy.cohorts import PolicyRefusal
from privirec.privacy.ledger import Ledger
from privirec.privacy.policy import Policy
from privirec.runtime.execute import Runtime, execute_steps
from privirec.runtime.local.client import clients_of, split_as_dealt
from privirec.runtime.local.in_process import InProcess
from privirec.runtime.local.secure import SecureInProcess
from privirec.runtime.local.simulation import Simulation

RANK = 12
RESOLUTION = 2.0 ** -(FRACTION_BITS + 1)
"""Maximum change of a mean by the rounding of all clients' metrics."""


def candidate(rank: int = 1, a: float = 0.5, b: float = 0.5, **more: Any) -> Candidate:
    return Candidate(rank=rank, history_exponent=a, item_exponent=b, **more)


CANDIDATES = (
    candidate(RANK, 0.5, 0.5),
    candidate(RANK, 0.3, 0.4),
    candidate(RANK // 2, 0.5, 0.3),
    candidate(RANK, 0.4, 0.3, response="power", power=0.2),
    candidate(RANK // 2, 0.4, -0.1, response="heat", time=4.0),
)


def program(train: Interactions, **changes: Any) -> SpectralValidation:
    given = {"rank": RANK, "columns": (10, 10), "candidates": CANDIDATES} | changes
    made = program_of(SpectralValidationSettings(**given), train.n_users, train.n_items)
    assert isinstance(made, SpectralValidation)
    return made


def validated(train: Interactions, runtime: Runtime, **changes: Any) -> list[dict[str, Any]]:
    made = program(train, **changes)
    execute_steps(made.validated(), runtime)
    return made.measured


def ask_of(histories: Histories, rank: int = RANK, seed: int = 1, **changes: Any) -> Any:
    """Return a request with a basis that an honest run could have."""
    degrees = histories.item_degrees
    x = np.random.default_rng(seed).standard_normal((histories.n_items, rank))
    basis, _ = orthonormalize(x * (degrees > 0)[:, None])
    kept = KeptBasis.of(np.linspace(1, 0.1, rank), basis)
    packed = pack_candidates(changes.pop("candidates", CANDIDATES))
    n_users = changes.pop("n_users", histories.n_users)
    return replace(ValidationMetrics.of(kept, degrees, n_users, packed), **changes)


@pytest.fixture(scope="module")
def people(small: Dataset) -> Histories:
    """Return all histories with a fifth of the items held out."""
    return split_as_dealt(Histories(small.train.matrix), 0.2, None, 0)


# --- held-out items -------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 0.5), st.integers(1, 12))
def test_everybody_keeps_something_and_keeps_back_a_share(
    seed: int, share: float, clients: int
) -> None:
    rng = np.random.default_rng(seed)
    touched = rng.random((12, 30)) < rng.random((12, 1))
    whole = sp.csr_array(touched.astype(np.float32))
    split = split_as_dealt(Histories(whole), share, clients, seed)
    assert split.held_out is not None
    np.testing.assert_array_equal((split.matrix + split.held_out).toarray(), whole.toarray())
    lengths, back = touched.sum(axis=1), np.diff(split.held_out.indptr)
    assert (np.diff(split.matrix.indptr)[lengths > 0] >= 1).all()
    assert (np.abs(back - share * lengths) <= 1).all()
    one_by_one = clients_of(Interactions.from_matrix(whole), clients, seed, share)
    for part in ("matrix", "held_out"):
        stacked = sp.vstack([getattr(client.histories, part) for client in one_by_one])
        np.testing.assert_array_equal(stacked.toarray(), getattr(split, part).toarray())


def test_what_is_kept_back_is_a_client_s_own_secret() -> None:
    """Test that held-out items depend only on the client's secret seed, not on the server."""
    first, second = (ClientRandomness(bytes([i]) * 32).held_out_words(9, 40) for i in range(2))
    assert not set(first[1].tolist()) & set(second[1].tolist())
    assert not set(first[0].tolist()) & set(second[0].tolist())
    noise = ClientRandomness(bytes(32)).stream(1, "held-out").words(0, 49)
    assert not set(noise.tolist()) & set(np.concatenate(first).tolist())


def test_if_a_server_chose_who_keeps_back_what_it_would_read_histories() -> None:
    """Test an item that only one person holds out: the degrees show whether she has it. For this
    reason the words of `held_out_words` come from the client alone."""
    for has in (True, False):
        touched = np.random.default_rng(3).random((20, 10)) < 0.5
        touched[:, 0] = True
        touched[7, 3] = has
        everybody = Histories(sp.csr_array(touched.astype(np.float32)))
        rows = np.repeat(np.arange(20), touched.sum(axis=1))
        hers = (rows == 7) & (everybody.matrix.indices == 3)
        of_others = (rows != 7) & (everybody.matrix.indices == 3)
        chosen = np.where(hers, 0, np.where(of_others, 2**63, 2**62)).astype(np.uint64)
        up = np.full(20, 2**64 - 1, np.uint64)
        split = everybody.holding_out(0.1, [(up, chosen)])
        assert int(everybody.item_degrees[3] - split.item_degrees[3]) == has


# --- the numbers ----------------------------------------------------------------------------------


def test_means_are_what_the_evaluator_computes_centrally(small: Dataset) -> None:
    """Test against the evaluator on the same held-out items and the model on devices, to 2^-21."""
    train = small.train
    made = program(train)
    components = execute_steps(made.validated(), Simulation(train, held_out=made.held_out))
    split = split_as_dealt(Histories(train.matrix), made.held_out, None, 0)
    kept, held_out = (
        Interactions.from_matrix(matrix, train.user_ids, train.item_ids)
        for matrix in (split.matrix, split.held_out)
    )
    np.testing.assert_array_equal(components.item_degrees, kept.item_degrees)
    sent = KeptBasis.of(*components.eigenpairs(RANK))
    assert [point["config"] for point in made.measured] == [one.model_dump() for one in CANDIDATES]
    for point in made.measured:
        model = Spectral(SpectralConfig(**point["config"]))
        rank = model.config.low_pass_rank
        derived = {
            "vectors": sent.vectors[:, :rank],
            "units": sent.units,
            "eigenvalues": sent.eigenvalues[:rank],
        }
        found = evaluate(model._take(components, derived), Dataset("kept", kept, held_out))
        assert point["users"] == found.users
        assert point["ndcg@20"] == pytest.approx(found.ndcg, abs=RESOLUTION)
        assert point["recall@20"] == pytest.approx(found.recall, abs=RESOLUTION)
    assert len({point["ndcg@20"] for point in made.measured}) == len(CANDIDATES)


@pytest.mark.parametrize("clients", [5, None])
def test_a_simulation_is_the_clients_one_by_one_bit_for_bit(
    small: Dataset, clients: int | None
) -> None:
    train = small.train.rows(0, 40)
    simulated = validated(train, Simulation(train, clients, 3, held_out=0.2))
    assert validated(train, InProcess(clients_of(train, clients, 3, 0.2))) == simulated
    secure = SecureInProcess(clients_of(train, clients, 3, 0.2), program(train).sums(), "secagg+")
    assert validated(train, secure) == simulated
    assert validated(train, Simulation(train, clients, 4, held_out=0.2)) != simulated


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 14), max_size=4))
def test_sums_do_not_depend_on_who_sits_with_whom_and_stay_in_the_ring(
    seed: int, cuts: list[int]
) -> None:
    """Test any invented model, also one that no check would accept."""
    rng = np.random.default_rng(seed)
    touched = rng.random((15, 25)) < rng.random((15, 1))
    everybody = split_as_dealt(Histories(sp.csr_array(touched.astype(np.float32))), 0.3, 15, seed)
    honest = ask_of(everybody, n_users=int(rng.integers(15, 40)))
    made_up = replace(
        honest,
        vectors=rng.integers(-32768, 32767, honest.vectors.shape, np.int16, endpoint=True),
        units=rng.choice([0, 1, ONE, INFINITY - 1, INFINITY], 25).astype(np.int64),
        eigenvalues=rng.choice([0, ONE, INFINITY - 1], RANK).astype(np.int64),
    )
    edges = [0, *sorted(set(cuts)), 15]
    for ask in (honest, made_up):
        with np.errstate(all="ignore"):
            total = ask.total(everybody)
            parts = [
                ask.total(Histories(everybody.matrix[a:b], a, everybody.held_out[a:b]))
                for a, b in pairwise(edges)
            ]
            blocks = np.concatenate(list(ask.blocks(everybody)))
        np.testing.assert_array_equal(sum(parts), total)
        np.testing.assert_array_equal(blocks, total)
        assert total[-1] == np.count_nonzero(np.diff(everybody.held_out.indptr))
        for part in (*parts, total):
            assert part.min() >= 0
            assert part[:-1].max() <= int(part[-1]) << FRACTION_BITS
        assert ask.n_users << FRACTION_BITS <= 2**ask.encoding.width - 1
        np.testing.assert_array_equal(ask.encoding.wrapped(total), total)


def test_threads_and_pieces_do_not_change_a_bit(
    people: Histories, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = ask_of(people)
    total = ask.total(people)
    assert total.dtype == np.int64
    with threads.limit(min(2, threads.available())):
        np.testing.assert_array_equal(ask.total(people), total)
    monkeypatch.setattr(validation, "SCORES_AT_ONCE", 1)
    monkeypatch.setattr(base, "BLOCK_ENTRIES", 4)
    pieces = list(ask.blocks(people))
    assert [len(piece) for piece in pieces] == [4, 4, 3]
    np.testing.assert_array_equal(ask.collect(pieces), total)


def test_who_keeps_nothing_back_adds_nothing(people: Histories) -> None:
    ask = ask_of(people)
    assert not ask.total(Histories(people.matrix)).any()
    alone = sp.csr_array(people.matrix.shape, dtype=np.float32)
    assert not ask.total(Histories(people.matrix, 0, alone)).any()


def test_nobody_to_validate_on_is_said_in_one_line(holes: Interactions) -> None:
    alone = Interactions.from_matrix(np.eye(6, dtype=np.float32))
    given = {"rank": 2, "columns": (2,), "candidates": (candidate(2),)}
    with pytest.raises(FederationError, match="nobody has two items"):
        validated(alone, Simulation(alone, held_out=0.2), **given)


# --- plans ----------------------------------------------------------------------------------------


def planned_and_asked(people: Histories) -> tuple[PlannedSum, Any]:
    planned = ValidationMetrics.planned(people.n_items, people.n_users, RANK, CANDIDATES)
    return planned, ask_of(people)


def test_the_ask_is_the_planned_one_and_survives_the_wire(people: Histories) -> None:
    planned, ask = planned_and_asked(people)
    planned.check(ask)
    assert ask.shape == planned.shape
    assert planned.shape.length == 2 * len(CANDIDATES) + 1
    again = wire.decode(wire.encode(ask))
    assert wire.encode(again) == wire.encode(ask)
    planned.check(again)
    np.testing.assert_array_equal(again.total(people), ask.total(people))
    assert planned.protection is None
    assert planned.opened(300, 10).numbers == 2 * len(CANDIDATES) + 1


def test_other_candidates_than_planned_are_refused(people: Histories) -> None:
    planned, _ = planned_and_asked(people)
    others = (*CANDIDATES[:-1], candidate(RANK, 0.1, 0.1))
    with pytest.raises(FederationError, match="another candidates than planned"):
        planned.check(ask_of(people, candidates=others))
    with pytest.raises(FederationError, match="another length"):
        planned.check(ask_of(people, candidates=CANDIDATES[:-1]))
    with pytest.raises(FederationError, match="another number of users"):
        planned.check(ask_of(people, n_users=people.n_users - 1))


def test_the_metrics_are_a_small_part_of_a_run() -> None:
    """Test the share of the metrics in the 60 MB of Gowalla."""
    made = SpectralValidation(SpectralValidationSettings(columns="8x119", rank=571), 29_858, 40_981)
    metrics = made.sums()[-1]
    assert len(made.candidates) == 108
    assert metrics.payload_bytes == 950
    ledger = Ledger.planned(made.validation_outline())
    assert metrics.payload_bytes < 2e-5 * ledger.bytes_up


def test_settings_survive_a_plan() -> None:
    settings = SpectralValidationSettings(rank=RANK, candidates=CANDIDATES, held_out=0.3)
    assert settings_of(settings.model_dump(mode="json")) == settings
    assert program_of(settings, 9, 30).held_out == 0.3


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"candidates": ()}, "candidates: "),
        ({"candidates": (candidate(2), candidate(2))}, "given twice"),
        ({"candidates": [{"rank": 2, "history_exponent": 0.123, "item_exponent": 0}]}, "hundredth"),
        ({"candidates": [{"rank": 2, "history_exponent": 9, "item_exponent": 0}]}, "less than"),
        ({"candidates": [candidate(2).model_dump() | {"time": 2.0}]}, "a parameter of heat"),
        ({"held_out": 0.0}, "held_out: "),
        ({"held_out": 0.9}, "held_out: "),
    ],
)
def test_settings_that_cannot_be(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as error:
        SpectralValidation.settings_from({"rank": 2} | given)
    assert "\n" not in str(error.value)


def test_candidates_of_another_rank_than_the_program(small: Dataset) -> None:
    with pytest.raises(UsageError, match="candidates up to rank 12 for a basis of 13 columns"):
        program(small.train, rank=13)


@given(st.integers(1, 3000))
def test_usual_candidates_are_candidates(rank: int) -> None:
    found = usual_candidates(rank)
    assert Candidate.unpack_all(pack_candidates(found)) == found
    assert max(one.rank for one in found) == rank


# --- checks by a client ---------------------------------------------------------------------------


def context(people: Histories) -> ClientContext:
    settings = SpectralValidationSettings(rank=RANK)
    return ClientContext(people.n_users, people.n_items, settings, people)


def with_entry(ask: ValidationMetrics, field: str, place: Any, value: int) -> ValidationMetrics:
    changed = getattr(ask, field).copy()
    changed[place] = value
    return replace(ask, **{field: changed})


def packed(*numbers: int) -> bytes:
    return Candidate._FORMAT.pack(*numbers)


GOOD = (RANK, 50, 50, 0, 100, 100)
HOSTILE: dict[str, tuple[Any, str]] = {
    "no candidates": (lambda ask: replace(ask, candidates=b""), "0 candidates: between 1 and 128"),
    "too many candidates": (
        lambda ask: replace(
            ask, candidates=b"".join(packed(i, *GOOD[1:]) for i in range(1, MOST_CANDIDATES + 2))
        ),
        "129 candidates: between 1 and 128",
    ),
    "a candidate cut off": (
        lambda ask: replace(ask, candidates=ask.candidates[:-1]),
        "candidates: between",
    ),
    "the same question twice": (
        lambda ask: replace(ask, candidates=packed(*GOOD) * 2),
        "a candidate that is asked for twice",
    ),
    "a rank of nothing": (
        lambda ask: replace(ask, candidates=packed(*GOOD) + packed(0, *GOOD[1:])),
        "settings that cannot be",
    ),
    "a rank beyond the basis": (
        lambda ask: replace(ask, candidates=packed(RANK + 1, *GOOD[1:])),
        "candidates of other ranks than the basis has columns",
    ),
    "a basis beyond the ranks": (
        lambda ask: replace(ask, candidates=packed(1, *GOOD[1:])),
        "candidates of other ranks than the basis has columns",
    ),
    "an exponent that leaves one item": (
        lambda ask: replace(ask, candidates=packed(RANK, 50, 30_000, 0, 100, 100)),
        "settings that cannot be",
    ),
    "an unknown response": (
        lambda ask: replace(ask, candidates=packed(RANK, 50, 50, 3, 100, 100)),
        "settings that cannot be",
    ),
    "the same question in other words": (
        lambda ask: replace(ask, candidates=packed(*GOOD) + packed(RANK, 50, 50, 0, 99, 100)),
        "settings that cannot be",
    ),
    "entries that no model has": (
        lambda ask: with_entry(ask, "vectors", (5, 0), -128),
        "entries that no model has",
    ),
    "a unit that is no number": (lambda ask: with_entry(ask, "units", 5, INFINITY), "units that"),
    "a unit below nothing": (lambda ask: with_entry(ask, "units", 5, -1), "units that cannot be"),
    "an eigenvalue above one": (
        lambda ask: with_entry(ask, "eigenvalues", 0, ONE + 1),
        "eigenvalues that cannot be",
    ),
    "eigenvalues out of order": (
        lambda ask: with_entry(ask, "eigenvalues", RANK - 1, ONE),
        "eigenvalues that cannot be",
    ),
    "columns that are not orthonormal": (
        lambda ask: replace(ask, vectors=ask.vectors[:, [0, *range(RANK - 1)]]),
        "columns are not orthonormal",
    ),
    "columns of another length": (
        lambda ask: replace(ask, units=ask.units + (1 << 23)),
        "columns are not orthonormal",
    ),
    "degrees of other people": (
        lambda ask: with_entry(ask, "item_degrees", 5, 10**6),
        "more than there are users",
    ),
    "a basis of nothing": (
        lambda ask: replace(ask, vectors=np.zeros_like(ask.vectors)),
        "a basis of nothing",
    ),
    "nothing but eigenvalues of zero": (
        lambda ask: replace(ask, eigenvalues=np.zeros_like(ask.eigenvalues)),
        "a basis of nothing",
    ),
}


NOT_EVEN_READ = frozenset(
    name for name, (_, says) in HOSTILE.items() if "cannot be" in says or "candidate" in says
) - {"a unit below nothing", "an eigenvalue above one", "eigenvalues out of order"}
"""Requests that cannot be answered at all: meaningless candidates or an impossible basis."""


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_asks_are_refused_in_one_line(kind: str, people: Histories) -> None:
    """Test that only the check refuses them: without it, a client would answer."""
    change, says = HOSTILE[kind]
    honest = ask_of(people)
    honest.check(context(people))
    with pytest.raises(FederationError, match=says) as error:
        change(honest).check(context(people))
    assert "\n" not in str(error.value)
    if kind not in NOT_EVEN_READ:
        with np.errstate(all="ignore"):
            assert len(np.concatenate(list(change(honest).blocks(people)))) == honest.length


def test_without_a_bound_any_number_of_candidates_is_answered(
    people: Histories, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [candidate(1 + i % RANK, i // RANK / 100) for i in range(MOST_CANDIDATES + 1)]
    some = Histories(people.matrix[:3], 0, people.held_out[:3])  # type: ignore[index]
    with pytest.raises(FederationError, match="129 candidates: between 1 and 128"):
        list(ask_of(people, candidates=many).blocks(some))
    monkeypatch.setattr(validation, "MOST_CANDIDATES", 1000)
    ask = ask_of(people, candidates=many)
    ask.check(context(people))
    assert len(np.concatenate(list(ask.blocks(some)))) == 259


def test_a_basis_on_items_that_nobody_has_is_refused(people: Histories) -> None:
    degrees = people.item_degrees
    target = int(degrees.argmax())
    touched = people.matrix.toarray()
    touched[:, target] = 0
    without = Histories(sp.csr_array(touched), 0, people.held_out)
    honest = ask_of(without)
    honest.check(context(without))
    units = honest.units.copy()
    units[target] = units.max()
    with pytest.raises(FederationError, match="a basis that lies on items which nobody has"):
        replace(with_entry(honest, "vectors", (target, 0), 127), units=units).check(
            context(without)
        )


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("vectors", np.zeros((300, RANK), np.int32), "16-bit"),
        ("vectors", np.zeros((300, RANK - 1), np.int16), "of another number"),
        ("units", np.zeros(299, np.int64), "of another number"),
        ("item_degrees", np.zeros(299, np.int64), "for another catalogue"),
    ],
)
def test_arrays_that_do_not_fit_are_not_even_an_ask(
    people: Histories, field: str, value: NDArray, says: str
) -> None:
    assert people.n_items == 300
    with pytest.raises(FederationError, match=says):
        replace(ask_of(people), **{field: value})


def test_honest_bases_aim_at_nothing(small: Dataset) -> None:
    train = small.train
    made = program(train)
    runtime, steps, total, seen = Simulation(train, held_out=0.2), made.validated(), None, 0
    while not seen:
        step = steps.send(total)
        total = runtime.sum(step, Ledger()) if hasattr(step, "total") else None
        if isinstance(step, ValidationMetrics):
            step.check(replace(context(Histories(train.matrix[:0])), n_users=train.n_users))
            Policy().check_aim(step.aim)
            seen += 1


# --- attacks with an invented model ---------------------------------------------------------------

VICTIM, ACCOMPLICE, RARE, TARGET, DECOY = 7, 11, 0, 1, 2
"""Only the victim has RARE, and the server wants to know if she has TARGET. An accomplice of the
server has TARGET and DECOY, so that both are in use."""


def crowd(has: bool) -> Histories:
    """Return 60 people and 200 items; the victim holds TARGET out if she has it."""
    rng = np.random.default_rng(5)
    touched = rng.random((60, 200)) < 0.5 / (1 + np.arange(200) / 20)
    touched[:, [RARE, TARGET, DECOY]] = False
    touched[VICTIM, RARE] = touched[ACCOMPLICE, TARGET] = touched[ACCOMPLICE, DECOY] = True
    held_out = (rng.random((60, 200)) < 0.2) & touched
    held_out[:, [RARE, TARGET, DECOY]] = False
    kept = touched & ~held_out
    held_out[VICTIM, TARGET] = has
    first, second = (sp.csr_array(part.astype(np.float32)) for part in (kept, held_out))
    return Histories(first, 0, second)


def made_up(people: Histories, target: int, bluntly: bool) -> ValidationMetrics:
    """Return a model of one vector: it recommends the target to users with RARE, and popular items
    to all others."""
    degrees = people.item_degrees
    x = np.where(degrees > 0, -1.0, 0.0)
    x[[RARE, target]] = 0
    x /= np.linalg.norm(x)
    aimed = 0.99 if bluntly else 0.48
    x *= np.sqrt(1 - aimed)
    x[[RARE, target]] = np.sqrt([0.9 * aimed, 0.1 * aimed] if bluntly else [aimed / 2] * 2)
    basis = KeptBasis.of(np.ones(1), x[:, None])
    packed_one = pack_candidates([candidate(1, 0.5, 0.5)])
    return ValidationMetrics.of(basis, degrees, people.n_users, packed_one)


@pytest.mark.parametrize("bluntly", [True, False])
def test_what_is_left_a_made_up_model_asks_one_person(bluntly: bool) -> None:
    """Test two runs whose models differ in their recommendation to users with RARE: the difference
    shows if the victim has TARGET. A model that does little else is aimed, and refused. A model
    that looks like others passes. Exact sums are not safe, so no client computes them by default, a
    policy limits the number of requests, and the held-out items are secret."""
    differences = []
    for has in (True, False):
        people = crowd(has)
        asks = [made_up(people, target, bluntly) for target in (TARGET, DECOY)]
        for ask in asks:
            ask.check(context(people))
            if bluntly:
                with pytest.raises(PolicyRefusal, match="aimed at single items"):
                    Policy().check_aim(ask.aim)
            else:
                Policy().check_aim(ask.aim)
        first, second = (ask.total(people)[0] for ask in asks)
        differences.append(int(first - second))
    assert differences[0] > 1 << (FRACTION_BITS - 4)
    assert differences[1] == 0
