"""Rules on the clients of a sum: enough people, and no small group isolated over all runs.

Every client signs a pledge for one run. It states how many people the client stands for, its
demands on a sum, and two sets of clients of the roster:

* *known*: the clients that it has been in a sum with, as it was told before it helped to open that
  sum;
* *past*: a superset of *known* that includes all clients that it may have been in a sum with. A
  client whose vector has left does not know who is in the sum until it is told, and it may never
  be told.

Pledges reach every client, so all honest clients judge a proposed sum over W by the same facts:

1. *Growth only.* W contains the whole past of every client in it. Of the sums that were ever
   opened, any two that share an honest client are therefore nested, and the others are disjoint:
   the sets of honest clients are a laminar family.
2. *Enough new people.* A client is new if it knows of no sum and no client claims to have been in a
   sum with it. If more clients claim it than may be corrupt, it has been in a sum. If only a few
   clients claim it, it is unsure: the claims may be true or false. For every choice of the claimed
   sets that are true, consider the new and unsure clients that are in none of them. There must be
   no such client, or they must have `smallest_change` people without the most populous clients
   that may be corrupt.

Why these rules suffice. The *atom* of a set of the family is the set without the sets inside it. In
a laminar family every set is a union of atoms, so any addition and subtraction of sums yields whole
atoms. It is enough that each atom contains either `smallest_change` honest people or none.

Call a sum *agreed* if an honest client has helped to open it; every opened sum is agreed. Let W be
opened, and let t be an honest client of its atom, which was in no opened sum before. There are two
cases.

If t was in no agreed sum before, it is new or unsure in W, and rule 2 held for the claims that are
true. Together with t, W then contains enough honest people who were in no agreed sum before. (If
one of them had been in an agreed sum, the honest client that agreed to it would be in W by rule 1,
since each is in the other's past, and would claim it.) All of these people are in the atom.

If t was in an agreed sum C before, and C was not opened, the same holds for C instead of W, and so
on back to the first such sum that t was in. The honest people who were new there together with t
sent their vectors, and have had t in their past ever since. None of them has been in an opened sum
without t, so they are all in the atom with t.

A client may waive the protection (`smallest_change` of 1). The past that it pledges then contains
only itself, so that it is not new, and the clients that an earlier pledge bound it to, since they
rely on it. From then on no client relies on it (`hiding`), and it has no guarantee.

The argument relies on three conditions. All clients in a sum were told the same participants and
the same clients in it, and received the same request; the protocol ensures this (`secagg`). No sum
is opened without at least one honest client. The people are those that were pledged: a client that
stands for others may invent them, as corrupt clients may.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from typing import NamedTuple, NoReturn

from privirec.errors import FederationError


class Rule(StrEnum):
    """Rules of a policy, by the names under which a client refuses."""

    POLICY = "policy"
    """A computation, an aggregator or a limit of one run."""
    PEOPLE = "too-few-people"
    COHORT = "cohort"
    """Sums of several runs would isolate a few people."""
    OPENED = "opened-too-much"
    """The sums of all runs would reveal too much in total."""
    AIMED = "aimed-block"
    BUDGET = "budget"
    """More epsilon than this client allows, or less noise than it relies on."""


class PolicyRefusal(FederationError):
    """Refusal of a request that this client does not answer for any server."""

    def __init__(self, reason: str, rule: Rule = Rule.POLICY) -> None:
        super().__init__(reason)
        self.rule = rule


def refuse(rule: Rule, asked: str) -> NoReturn:
    raise PolicyRefusal(f"asked for {asked}", rule)


WHAT_TO_DO = (
    "run with the same clients as before, or with more people; only sums with noise lift this"
)
MOST_CLAIMS = 6
"""Largest number of distinct sets that a few clients claim. Each is considered both true and
false."""


class Demands(NamedTuple):
    """Demands of a client on every sum that it is in; part of its pledge."""

    smallest_cohort: int
    """Smallest number of clients with people."""
    fewest_other_people: int
    """Smallest number of people besides its own, not counting the most populous clients that may be
    corrupt."""
    smallest_change: int
    """Smallest number of people that combinations of sums of all runs may isolate.

    At 1, this client waives the protection from now on.
    """


@dataclass(frozen=True)
class Pledge:
    """A client's statement for one run; its sets contain clients of the roster."""

    people: int
    demands: Demands
    known: frozenset[int] = frozenset()
    past: frozenset[int] = frozenset()
    period: str = ""
    """Start of the calendar period whose histories it uses; empty if it has no calendar."""

    @property
    def hiding(self) -> int:
        """Number of people that protect others over several runs.

        A client that waives the protection may later be in sums without the others, so it does not
        count.
        """
        return self.people if self.demands.smallest_change > 1 else 0


def check_sum(cohort: frozenset[int], pledges: Mapping[int, Pledge], corrupt: int) -> None:
    """Refuse a sum over these clients if it breaks a rule.

    `corrupt` is the number of them that may work for the server.
    """
    inside = {client: pledges[client] for client in cohort}
    check_people(inside, corrupt)
    check_growth(cohort, {pledge.past for pledge in inside.values()})
    check_new(inside, corrupt)


def check_growth(cohort: Collection[int], pasts: Iterable[frozenset[int]]) -> None:
    """Refuse a sum that lacks a client of one of these pasts (rule 1)."""
    for past in pasts:
        if missing := past.difference(cohort):
            refuse(
                Rule.COHORT,
                f"a sum without {len(missing)} clients that were, or may have been, in an earlier "
                f"sum with others of it: their difference would show what only a few sent; "
                f"{WHAT_TO_DO}",
            )


def check_new(inside: Mapping[int, Pledge], corrupt: int) -> None:
    """Refuse a sum in which too few people are new, whichever clients lie (rule 2)."""
    new, unsure = newcomers(inside, corrupt)
    if not new | unsure:
        return
    strictest = max(new | unsure, key=lambda client: inside[client].demands.smallest_change)
    least = inside[strictest].demands.smallest_change
    if least == 1:
        return
    claimed = {pledge.known for pledge in inside.values() if not unsure.isdisjoint(pledge.known)}
    if len(claimed) > MOST_CLAIMS:
        refuse(Rule.COHORT, f"a sum whose clients disagree about earlier ones; {WHAT_TO_DO}")
    for count in range(len(claimed) + 1):
        for true in combinations(claimed, count):
            apart = new | unsure.difference(*true)
            people = people_left([inside[client].hiding for client in apart], corrupt)
            if apart and people < least:
                refuse(
                    Rule.COHORT,
                    f"a sum that is the first for {len(apart)} of its clients, of {people} people "
                    "without those that may be corrupt: their sum could be computed by subtracting "
                    f"earlier ones; client {strictest} asks for smallest_change = {least}; "
                    f"{WHAT_TO_DO}",
                )


def check_people(inside: Mapping[int, Pledge], corrupt: int) -> None:
    """Refuse a sum over too few people for one of the clients in it."""
    peopled = sum(pledge.people > 0 for pledge in inside.values())
    largest = sorted((pledge.people for pledge in inside.values()), reverse=True)
    total, top = sum(largest), sum(largest[:corrupt])
    next_one = largest[corrupt] if corrupt < len(largest) else 0
    for client, pledge in inside.items():
        demands = pledge.demands
        if peopled < demands.smallest_cohort:
            refuse(
                Rule.PEOPLE,
                f"a sum over {peopled} clients with people; client {client} asks for "
                f"smallest_cohort = {demands.smallest_cohort}",
            )
        # Leave out the most populous of the *other* clients. If this client is one of the most
        # populous, leave out the next one instead of it.
        is_top = corrupt > 0 and pledge.people >= largest[min(corrupt, len(largest)) - 1]
        others = total - top - (next_one if is_top else pledge.people)
        if others < demands.fewest_other_people:
            refuse(
                Rule.PEOPLE,
                f"a sum over {others} people beside those of client {client} and of {corrupt} "
                f"clients that may be corrupt; client {client} asks for fewest_other_people = "
                f"{demands.fewest_other_people}",
            )


def newcomers(inside: Mapping[int, Pledge], corrupt: int) -> tuple[frozenset[int], frozenset[int]]:
    """Return the clients that are new in a sum, and those for which that is uncertain."""
    claims: Counter[int] = Counter()
    for known, times in Counter(pledge.known for pledge in inside.values()).items():
        for client in known:
            claims[client] += times
    unknowing = [client for client, pledge in inside.items() if not pledge.known]
    new = frozenset(client for client in unknowing if not claims[client])
    return new, frozenset(client for client in unknowing if 0 < claims[client] <= corrupt)


def people_left(people: list[int], corrupt: int) -> int:
    """Return the number of people without the most populous clients, which may be corrupt."""
    return sum(sorted(people, reverse=True)[corrupt:])


def is_forgotten(client: int, pledges: Mapping[int, Pledge], corrupt: int) -> bool:
    """Return True if this client knows of no sum, but more clients than may lie claim that it was
    in one."""
    if pledges[client].past:
        return False
    claims = sum(client in pledge.known for pledge in pledges.values())
    return claims > corrupt
