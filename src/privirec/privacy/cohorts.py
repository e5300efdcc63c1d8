"""Which clients may be in a sum: enough people, and never a few of them apart, over all runs.

Every client pledges, signed and for one run, how many people it stands for, what it asks of a sum,
and two sets of clients of the roster:

* *known*: with whom it has been in a sum, as it was told before it helped to open that sum;
* *past*: the same, and everybody with whom it may have been in one: a client whose vector has left
  does not know who is in the sum until it is told, and may never be.

Pledges reach every client, so all honest clients judge a proposed sum over W by the same facts:

1. *Growth only.* W holds all of the past of everybody in it. So of the sums that were ever opened,
   any two that share an honest client are nested, and the others are disjoint: the sets of honest
   clients are a laminar family.
2. *Enough that is new.* A client that knows of no sum, and that nobody claims to have been in a sum
   with, is new. One that more clients claim than may be corrupt has been in one. One that only a
   few claim is unsure: perhaps it has, perhaps they lie. Whichever of the sets that they claim are
   true, those who are then in none of them must be nobody, or `smallest_change` people without the
   most populous clients that may be corrupt.

Why that is enough. The *atom* of a set of the family is what it has beside the sets inside it. In
a laminar family every set is a union of atoms, so whatever sums are added and subtracted, whole
atoms come out, and it is enough that each has `smallest_change` honest people in it or none.

Say that a sum is *agreed* if somebody honest has helped to open it; an opened one is. Let W be
opened, and t an honest client of its atom, in no opened sum before. If t was in no agreed sum
before, it is new or unsure in W, and rule 2 held for the claims that are true: with t there are
enough honest people in W who were in no agreed sum before (had one been in one, whoever agreed is
in W by rule 1, as each is in the other's past, and claims it). They are all in the atom. If t was
in an agreed sum C before, which then was not opened, the same holds for C in place of W, back to
one in which t was for the first time. The honest people who were new there with t sent their
vectors, and have t in their past ever since: none of them has been in an opened sum without t, so
they are all in the atom with t.

A client may ask for nothing (`smallest_change` of 1). Then it pledges no more past than itself, so
that it is not new, and those whom it was bound to by an earlier pledge: they count on it. Nobody
counts on it from now on (`hiding`), and nothing is promised to it.

This leans on three things. Everybody in a sum was told the same participants and the same clients
in it, and was asked for the same: that is the protocol's part (`secagg`). A sum is not opened
without one honest client. And people are those that were pledged: a client that stands for others
may invent them, as the corrupt may.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from privirec.privacy.refusal import Rule, refuse

WHAT_TO_DO = (
    "run with the same clients as before, or with more people; only sums with noise lift this"
)
MOST_CLAIMS = 6
"""Different sets that a few clients claim; each is taken to be true, and to be a lie."""


class Demands(NamedTuple):
    """What a client asks of every sum that it is in; part of its pledge."""

    smallest_cohort: int
    """Fewest clients with people."""
    fewest_other_people: int
    """Fewest people beside its own, without the most populous clients that may be corrupt."""
    smallest_change: int
    """Fewest people that sums of all runs, added and subtracted, may be about. At 1 this client
    asks for nothing from now on."""


@dataclass(frozen=True)
class Member:
    """What a client has pledged, its sets as clients of the roster."""

    people: int
    demands: Demands
    known: frozenset[int] = frozenset()
    past: frozenset[int] = frozenset()

    @property
    def hiding(self) -> int:
        """People who hide others over several runs: whoever asks for nothing may be in sums without
        those others later."""
        return self.people if self.demands.smallest_change > 1 else 0


def check_sum(cohort: frozenset[int], members: Mapping[int, Member], corrupt: int) -> None:
    """Refuse a sum over these clients. `corrupt`: how many of them may work for the server."""
    inside = {client: members[client] for client in cohort}
    check_people(inside, corrupt)
    check_growth(cohort, {member.past for member in inside.values()})
    check_new(inside, corrupt)


def check_growth(cohort: Collection[int], pasts: Iterable[frozenset[int]]) -> None:
    """Refuse a sum without somebody who is in one of these pasts: rule 1."""
    for past in pasts:
        if missing := past.difference(cohort):
            refuse(
                Rule.COHORT,
                f"a sum without {len(missing)} clients that were, or may have been, in an earlier "
                f"sum with others of it: their difference would show what only a few sent; "
                f"{WHAT_TO_DO}",
            )


def check_new(inside: Mapping[int, Member], corrupt: int) -> None:
    """Refuse a sum in which too few people are new, whoever of the clients lies: rule 2."""
    new, unsure = newcomers(inside, corrupt)
    if not new | unsure:
        return
    strictest = max(new | unsure, key=lambda client: inside[client].demands.smallest_change)
    least = inside[strictest].demands.smallest_change
    if least == 1:
        return
    claimed = {member.known for member in inside.values() if not unsure.isdisjoint(member.known)}
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
                    "without those that may be corrupt: their sum could be had by subtracting "
                    f"earlier ones; client {strictest} asks for smallest_change = {least}; "
                    f"{WHAT_TO_DO}",
                )


def check_people(inside: Mapping[int, Member], corrupt: int) -> None:
    """Refuse a sum over too few people for one of the clients in it."""
    peopled = sum(member.people > 0 for member in inside.values())
    largest = sorted((member.people for member in inside.values()), reverse=True)
    total, top = sum(largest), sum(largest[:corrupt])
    next_one = largest[corrupt] if corrupt < len(largest) else 0
    for client, member in inside.items():
        asks = member.demands
        if peopled < asks.smallest_cohort:
            refuse(
                Rule.PEOPLE,
                f"a sum over {peopled} clients with people; client {client} asks for "
                f"smallest_cohort = {asks.smallest_cohort}",
            )
        # The largest of the *others*: for one of the largest, the next takes its place.
        is_top = corrupt > 0 and member.people >= largest[min(corrupt, len(largest)) - 1]
        others = total - top - (next_one if is_top else member.people)
        if others < asks.fewest_other_people:
            refuse(
                Rule.PEOPLE,
                f"a sum over {others} people beside those of client {client} and of {corrupt} "
                f"clients that may be corrupt; client {client} asks for fewest_other_people = "
                f"{asks.fewest_other_people}",
            )


def newcomers(inside: Mapping[int, Member], corrupt: int) -> tuple[frozenset[int], frozenset[int]]:
    """The clients that are new in a sum, and those of whom that is unsure."""
    claims: Counter[int] = Counter()
    for known, times in Counter(member.known for member in inside.values()).items():
        for client in known:
            claims[client] += times
    unknowing = [client for client, member in inside.items() if not member.known]
    new = frozenset(client for client in unknowing if not claims[client])
    return new, frozenset(client for client in unknowing if 0 < claims[client] <= corrupt)


def people_left(people: list[int], corrupt: int) -> int:
    """People of so many clients without the most populous ones that may be corrupt."""
    return sum(sorted(people, reverse=True)[corrupt:])


def is_forgotten(client: int, members: Mapping[int, Member], corrupt: int) -> bool:
    """Whether this client knows of no sum, and more others say it was in one than may lie."""
    if members[client].past:
        return False
    claims = sum(client in member.known for member in members.values())
    return claims > corrupt
