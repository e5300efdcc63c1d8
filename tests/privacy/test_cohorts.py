"""Tests of the cohort rules: no combination of the sums of all runs is about only a few people."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privirec.privacy import cohorts
from privirec.privacy.cohorts import (
    Demands,
    Pledge,
    PolicyRefusal,
    Rule,
    check_people,
    check_sum,
    newcomers,
)

LEAST = 3
ASKS = Demands(2, 0, LEAST)


def members(
    people: Iterable[int], known: dict[int, set[int]] | None = None, demands: Demands = ASKS
) -> dict[int, Pledge]:
    """Return clients 0, 1, ... with these numbers of people and these known past peers."""
    sets = {client: frozenset(one) for client, one in (known or {}).items()}
    return {
        client: Pledge(n, demands, *[sets.get(client, frozenset())] * 2)
        for client, n in enumerate(people)
    }


def refused(rule: Rule, *given: Any) -> str:
    with pytest.raises(PolicyRefusal) as error:
        check_sum(*given)
    assert error.value.rule is rule
    assert "\n" not in str(error.value)
    return str(error.value)


# --- people in one sum ----------------------------------------------------------------------------


def test_a_client_without_people_counts_for_nobody() -> None:
    inside = members([5, 0, 0, 5], demands=Demands(3, 0, 1))
    with pytest.raises(PolicyRefusal, match="2 clients with people; client 0 asks for smallest_c"):
        check_people(inside, 0)
    check_people(members([5, 0, 1, 5], demands=Demands(3, 0, 1)), 0)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=7),
    st.integers(0, 3),
    st.integers(0, 12),
)
def test_other_people_are_counted_as_the_definition_says(
    people: list[int], corrupt: int, least: int
) -> None:
    enough = all(
        sum(sorted(people[:one] + people[one + 1 :], reverse=True)[corrupt:]) >= least
        for one in range(len(people))
    )
    inside = members(people, demands=Demands(0, least, 1))
    if enough:
        check_people(inside, corrupt)
        return
    with pytest.raises(PolicyRefusal) as refusal:
        check_people(inside, corrupt)
    assert refusal.value.rule is Rule.PEOPLE


def test_the_strictest_client_of_a_sum_decides() -> None:
    """Test that a lax client does not open a sum that a strict client in it would refuse."""
    inside = members([4, 4, 4], demands=Demands(0, 0, 1))
    check_people(inside, 0)
    inside[1] = Pledge(4, Demands(0, 9, 1))
    with pytest.raises(PolicyRefusal, match="client 1 asks for fewest_other_people = 9"):
        check_people(inside, 0)


# --- sums of several runs -------------------------------------------------------------------------


EVERYBODY = frozenset(range(6))
TOGETHER = {client: set(EVERYBODY) for client in EVERYBODY}


def test_the_same_clients_and_more_people_are_fine() -> None:
    check_sum(EVERYBODY, members([1] * 6, TOGETHER), 0)
    check_sum(frozenset(range(9)), members([1] * 9, TOGETHER), 0)
    check_sum(EVERYBODY, members([1] * 6), 0)


def test_fewer_clients_are_refused_and_a_few_more_people_too() -> None:
    said = refused(Rule.COHORT, EVERYBODY - {1}, members([1] * 6, TOGETHER), 0)
    assert "the same clients as before, or with more people" in said
    said = refused(Rule.COHORT, frozenset(range(8)), members([1] * 8, TOGETHER), 0)
    assert "smallest_change = 3" in said
    refused(Rule.COHORT, frozenset(range(9)), members([1] * 9, TOGETHER), 1)
    check_sum(frozenset(range(7)), members([1] * 6 + [3], TOGETHER), 0)


def test_two_families_may_grow_together_but_not_around_one_person() -> None:
    """Test A, B, then A + B + v: no client of A knows of B's sum, but the pledges of B show it."""
    known = {0: {0, 1, 2}, 1: {0, 1, 2}, 2: {0, 1, 2}, 3: {3, 4, 5}, 4: {3, 4, 5}, 5: {3, 4, 5}}
    check_sum(EVERYBODY, members([1] * 6, known), 0)
    refused(Rule.COHORT, frozenset(range(7)), members([1] * 7, known), 0)


def test_a_client_unknowingly_left_out_of_a_sum_is_not_singled_out() -> None:
    """Test client 5, which sent its vector and was left out of the opened sum. It knows only who
    might have been in it; the pledges of the others show that it is alone."""
    inside = members([1] * 6, {client: set(range(5)) for client in range(5)})
    inside[5] = Pledge(1, ASKS, frozenset(), EVERYBODY)
    refused(Rule.COHORT, EVERYBODY, inside, 0)
    assert newcomers(inside, 0) == ({5}, frozenset())


def test_a_few_claims_are_taken_to_be_true_and_to_be_lies() -> None:
    """Test two clients, one of which has helped to open a sum over both. If it is honest, a third
    client is alone in the next sum; if it lies, all three are new."""
    one = {0: {0, 1, 2}}
    inside = {
        client: Pledge(2, ASKS, m.known, EVERYBODY) for client, m in members([2] * 6, one).items()
    }
    assert newcomers(inside, 1) == ({3, 4, 5}, {1, 2})
    check_sum(EVERYBODY, inside, 1)
    few = {client: inside[client] for client in range(4)}
    with pytest.raises(PolicyRefusal, match="first for 1 of its clients, of 0 people"):
        cohorts.check_new(few, 1)


def test_a_run_that_stopped_while_it_was_opened_can_be_repeated() -> None:
    """Test a client that has helped to open a sum that was never completed; no other was told its
    members."""
    inside = {
        client: Pledge(2, ASKS, EVERYBODY if client == 0 else frozenset(), EVERYBODY)
        for client in EVERYBODY
    }
    check_sum(EVERYBODY, inside, 1)


def test_a_client_without_demands_does_not_count_as_a_crowd() -> None:
    inside = members([1] * 6, TOGETHER) | {6: Pledge(1, ASKS), 7: Pledge(50, Demands(2, 0, 1))}
    refused(Rule.COHORT, frozenset(range(8)), inside, 0)
    del inside[6]
    check_sum(frozenset(range(6)) | {7}, inside, 0)


# --- any sequence of runs -------------------------------------------------------------------------

CLIENTS = 7


@dataclass
class Remembering:
    """An honest client with its own memory; some clients make no demands at times."""

    people: int
    changes_its_mind: bool
    lax: bool = False
    told: dict[frozenset[int], bool] = field(default_factory=dict)
    """Sums, and whether the client has pledged to their members."""
    not_told: dict[int, tuple[frozenset[int], bool]] = field(default_factory=dict)

    def pledge(self, client: int) -> Pledge:
        asks = Demands(2, 0, 1) if self.lax else ASKS
        known = [one for one, binds in self.told.items() if binds or not self.lax]
        maybe = [one for one, binds in self.not_told.values() if binds or not self.lax]
        alone = {client} if self.lax and (self.told or self.not_told) else set()
        return Pledge(
            self.people,
            asks,
            frozenset(alone.union(*known)),
            frozenset(alone.union(*known, *maybe)),
        )


some = st.frozensets(st.integers(0, CLIENTS - 1))


@st.composite
def liars(draw: st.DrawFn, clients: frozenset[int]) -> dict[int, Pledge]:
    """Return the pledges of corrupt clients, which suit the server."""
    pledged = {}
    for client in clients:
        past = draw(st.just(frozenset[int]()) | some.map(lambda s, c=client: s | {c}))
        known = draw(some) & past
        pledged[client] = Pledge(draw(st.integers(0, 9)), ASKS, known, past)
    return pledged


def run_once(
    number: int,
    clients: dict[int, Remembering],
    lies: dict[int, Pledge],
    corrupt: int,
    asked: tuple[frozenset[int], ...],
) -> frozenset[int] | None:
    """Simulate a run of a server that chooses the clients of each step.

    The steps are: take part, send a vector, be in the sum, help to open it. Return the sum if an
    honest client helps to open it.
    """
    participants, sending, summed, opening, lax = asked
    for client, one in clients.items():
        one.lax = one.changes_its_mind and client in lax
    pledges = lies | {client: one.pledge(client) for client, one in clients.items()}
    cohort = summed & participants
    sent = set()
    for client in participants & sending & clients.keys():
        with suppress(PolicyRefusal):
            check_sum(participants, pledges, corrupt)
            clients[client].not_told[number] = (participants, not clients[client].lax)
            sent.add(client)
    if not cohort & clients.keys() <= sent:
        return None
    opened = None
    for client in cohort & opening & clients.keys():
        with suppress(PolicyRefusal):
            check_sum(cohort, pledges, corrupt)
            del clients[client].not_told[number]
            one = clients[client]
            one.told[cohort] = one.told.get(cohort, False) or not one.lax
            opened = cohort
    return opened


def rank(rows: list[list[int]]) -> int:
    """Return the exact rank, by elimination."""
    left = [[Fraction(value) for value in row] for row in rows]
    found = 0
    for column in range(len(left[0]) if left else 0):
        pivot = next((row for row in left if row[column]), None)
        if pivot is None:
            continue
        left.remove(pivot)
        found += 1
        for row in left:
            factor = row[column] / pivot[column]
            for place in range(column, len(row)):
                row[place] -= factor * pivot[place]
    return found


def a_few_are_apart(
    sums: list[frozenset[int]], people: dict[int, int], lax: Iterable[int] = ()
) -> bool:
    """Return True if a combination of the sums is about fewer people than LEAST.

    Sums that are only about people who were lax at some time do not count.
    """
    clients = sorted(people)

    def rank_over(some: Iterable[int]) -> int:
        return rank([[int(client in one) for client in some] for one in sums])

    for size in range(1, len(clients) + 1):
        for few in combinations(clients, size):
            if sum(people[client] for client in few) < LEAST:
                rest = [client for client in clients if client not in few]
                if rank_over(rest) < rank_over([*rest, *(set(few) - set(lax))]):
                    return True
    return False


@st.composite
def histories(draw: st.DrawFn) -> tuple[Any, ...]:
    corrupt = draw(st.integers(0, 2))
    lying = draw(st.frozensets(st.integers(0, CLIENTS - 1), max_size=corrupt))
    lax = draw(st.frozensets(st.integers(0, CLIENTS - 1), max_size=2)) - lying
    people = {client: draw(st.integers(1, 4)) for client in range(CLIENTS) if client not in lying}
    many = some.map(lambda few: frozenset(range(CLIENTS)) - few)
    runs = draw(
        st.lists(
            st.tuples(
                liars(lying), st.tuples(*[some | many | st.just(frozenset(range(CLIENTS)))] * 5)
            ),
            max_size=6,
        )
    )
    return corrupt, lax, people, runs


def opened_sums(
    corrupt: int, lax: frozenset[int], people: dict[int, int], runs: list[Any]
) -> list[frozenset[int]]:
    clients = {client: Remembering(n, client in lax) for client, n in people.items()}
    found = [
        run_once(number, clients, lies, corrupt, asked) for number, (lies, asked) in enumerate(runs)
    ]
    return [one for one in found if one]


@settings(max_examples=150, deadline=None)
@given(histories())
def test_no_combination_of_all_opened_sums_is_about_a_few_people(given: tuple[Any, ...]) -> None:
    """Test any proposals to any clients, with any pledges of corrupt clients."""
    corrupt, lax, people, runs = given
    sums = opened_sums(corrupt, lax, people, runs)
    assert not a_few_are_apart(sums, people, lax)


@pytest.mark.parametrize("rule", ["check_growth", "check_new"])
def test_without_either_rule_a_few_are_apart(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test A + B + v with A and B in either order, the attack that the rules prevent."""
    a, b, v = frozenset({0, 1, 2}), frozenset({3, 4, 5}), frozenset({6})
    orders = {"check_growth": (a | b | v, a, b), "check_new": (a, b, a | b | v)}
    people = dict.fromkeys(range(7), 1)
    runs = [({}, (one, one, one, one, frozenset())) for one in orders[rule]]
    assert not a_few_are_apart(opened_sums(0, frozenset(), people, runs), people)
    monkeypatch.setattr(cohorts, rule, lambda *_: None)
    sums = opened_sums(0, frozenset(), people, runs)
    assert len(sums) == 3
    assert a_few_are_apart(sums, people)


_pledge = Remembering.pledge


def _free(one: Remembering, client: int) -> Pledge:
    """Return the pledge of a client that is free once it makes no demands."""
    alone = frozenset({client} if one.told else set[int]())
    return (
        replace(_pledge(one, client), known=alone, past=alone) if one.lax else _pledge(one, client)
    )


NOBODY = frozenset[int]()
ALL_LAX = frozenset(range(1, 7))
LAX: dict[str, tuple[list[tuple[set[int], frozenset[int]]], dict[int, int], tuple[Any, ...]]] = {
    # Five clients that were in a sum with client 0 make no demands from then on.
    "whoever was bound stays bound": (
        [({0, 1, 2, 3, 4, 5}, NOBODY), ({1, 2, 3, 4, 5}, ALL_LAX)],
        dict.fromkeys(range(6), 1),
        (Remembering, "pledge", _free),
    ),
    # Client 2 would be hidden only by client 3, which is in another sum later.
    "who asks for nothing hides nobody": (
        [
            ({0, 1}, ALL_LAX),
            ({0, 1, 2, 3}, ALL_LAX),
            ({4, 5}, ALL_LAX),
            ({3, 4, 5}, ALL_LAX),
        ],
        {0: 2, 1: 2, 2: 1, 3: 4, 4: 2, 5: 2},
        (Pledge, "hiding", property(lambda one: one.people)),
    ),
}


@pytest.mark.parametrize("case", LAX)
def test_a_client_without_demands_does_not_expose_others(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposed, people, off = LAX[case]
    lax = ALL_LAX if case == "whoever was bound stays bound" else frozenset({3})
    runs = [({}, (*[frozenset(one)] * 4, now)) for one, now in proposed]
    assert not a_few_are_apart(opened_sums(0, lax, people, runs), people, lax)
    monkeypatch.setattr(*off)
    sums = opened_sums(0, lax, people, runs)
    assert len(sums) == len(proposed)
    assert a_few_are_apart(sums, people, lax)


# --- a seeded search finds an attack for each part of the rules -----------------------------------


def _drawn(rng: random.Random) -> tuple[Any, ...]:
    """Return a random sequence of runs, mostly with most clients, so that many sums are opened."""

    def clients() -> frozenset[int]:
        kind = rng.random()
        if kind < 0.3:
            return frozenset(range(CLIENTS))
        if kind < 0.65:
            return frozenset(range(CLIENTS)) - set(rng.sample(range(CLIENTS), rng.randint(1, 3)))
        return frozenset(rng.sample(range(CLIENTS), rng.randint(0, CLIENTS)))

    corrupt = rng.randint(0, 2)
    lying = frozenset(rng.sample(range(CLIENTS), rng.randint(0, corrupt)))
    lax = frozenset(rng.sample(range(CLIENTS), rng.randint(0, 2))) - lying
    people = {client: rng.randint(1, 4) for client in range(CLIENTS) if client not in lying}
    runs = []
    for _ in range(rng.randint(2, 6)):
        lies = {}
        for client in lying:
            past = frozenset[int]() if rng.random() < 0.4 else clients() | {client}
            lies[client] = Pledge(rng.randint(0, 9), ASKS, clients() & past, past)
        everybody = clients()
        sending = everybody if rng.random() < 0.6 else clients()
        summed = everybody if rng.random() < 0.4 else clients()
        runs.append((lies, (everybody, sending, summed, clients(), clients())))
    return corrupt, lax, people, runs


def _first_apart(sequences: int) -> int | None:
    """Return the number of the first random sequence that sets a few people apart."""
    rng = random.Random(1)
    for number in range(sequences):
        corrupt, lax, people, runs = _drawn(rng)
        sums = list(set(opened_sums(corrupt, lax, people, runs)))
        if len(sums) > 1 and a_few_are_apart(sums, people, lax):
            return number
    return None


WEAKER: dict[str, tuple[Any, str, Any]] = {
    "as it is": (cohorts, "check_sum", cohorts.check_sum),
    "the unsure count as known": (
        cohorts,
        "newcomers",
        lambda inside, corrupt: (newcomers(inside, corrupt)[0], frozenset()),
    ),
    "the unsure count as new": (
        cohorts,
        "newcomers",
        lambda inside, corrupt: (frozenset().union(*newcomers(inside, corrupt)), frozenset()),
    ),
    "nobody asks others who is new": (
        cohorts,
        "newcomers",
        lambda inside, _: (frozenset(c for c, m in inside.items() if not m.past), frozenset()),
    ),
    "corrupt clients count": (cohorts, "people_left", lambda people, _: sum(people)),
    "only what clients were told is pledged": (
        Remembering,
        "pledge",
        lambda one, client: replace(_pledge(one, client), past=_pledge(one, client).known),
    ),
}


@pytest.mark.parametrize("weaker", WEAKER)
def test_every_part_of_the_rules_is_needed(weaker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*WEAKER[weaker])
    found = _first_apart(2000)
    assert (found is None) is (weaker == "as it is")


@pytest.mark.parametrize("corrupt", [0, 1, 3])
def test_one_more_than_the_corrupt_are_believed(corrupt: int) -> None:
    """Test that claims of as many clients as may be corrupt prove nothing, and one more claim
    does."""
    for claiming in range(6):
        others = {
            client: Pledge(1, Demands(3, 0, 4), frozenset({0, client}), frozenset({0, client}))
            for client in range(1, 1 + claiming)
        }
        quiet = {client: Pledge(1, Demands(3, 0, 4)) for client in (0, 8, 9)}
        assert cohorts.is_forgotten(0, quiet | others, corrupt) == (claiming > corrupt)
