"""Which method, and how large: what fits a budget, and which of that is proposed.

The rule, and where it was measured (docs/results/plan.md has the figures):

1. With a promise (epsilon) there is one method, `protected`, which sizes itself from public
   numbers. It is proposed or does not fit.
2. EASE on a head of popular items (`head-gram`) if the head that fits has at least `COVERED` of all
   interactions. With 5 MB on parts of Gowalla and Yelp2018, `spectral` is ahead at coverages up to
   0.78 and EASE from 0.86 on; on Globo, where the head has more, EASE is twice as good. How many
   people there are for an item does not decide: Globo with 8,000 of its 158,000 people is no
   different.
3. Else `spectral`, if at least `LEAST_COLUMNS` fit: the fewest that were measured, and from there
   on ahead of a head with as many bytes (docs/results/frontier.md).
4. Else a head, if it has `LEAST_HEAD` items.

`privirec-k` is behind `spectral` with as many bytes at every point of the frontier, and `privirec`
gives every history away: both are shown, and neither is proposed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from privirec.errors import OverflowRefused, UsageError
from privirec.federated.contributions import ItemItem, PlannedSum
from privirec.federated.programs import (
    HeadGram,
    Privirec,
    PrivirecK,
    Program,
    Protected,
    Spectral,
    program_of,
)
from privirec.federated.programs.spectral import USUAL_RING_BITS
from privirec.models import BSPMEM, EASE, GFCF
from privirec.privacy.ledger import Ledger
from privirec.report.rows import as_bytes
from privirec.runtime.spec import DROPPED_SHARE, SERVER_ON_ONE_MACHINE, Assumptions
from privirec.workflows.plan import Plan
from privirec.workflows.planner.population import Population
from privirec.workflows.tune import Shape, largest, largest_rank, largest_shape

COVERED = 0.8
"""Share of all interactions from which a head is the better use of the bytes."""
LEAST_COLUMNS = 32
LEAST_HEAD = 250
LARGEST_HEAD = 6000
"""Larger ones were no better (Globo: 0.2172 with 4,493 items, 0.2181 with 6,085, 0.2183 with
9,175), and a device keeps a number for each pair: 144 MB."""
COLUMNS_OF_EIGHT_ROUNDS, COLUMNS_OF_SIX_ROUNDS = 384, 1400
"""From so many columns on in eight rounds, and in six; fewer are summed in four. These are the
steps of the frontier, of which the tuned ones are presets of `spectral`."""
PEERS_PER_COLUMN = 16
"""Fewest items, and fewest people, for each column of a round. P~ has no more directions than there
are items or people; where columns are many beside these, four bits an entry do not keep them apart,
and a run sends blocks with more: the plan would not be kept to the byte."""
KEPT = 0.6
"""Vectors kept for each column summed, as in the presets."""
POWER_ROUNDS = 2
"""Of privirec-k: with as many columns in all, more vectors were worth more than more rounds."""


@dataclass(frozen=True)
class Candidate:
    """A way to spend the bytes."""

    plan: Plan
    population: Population
    validation_ndcg: float | None = None
    """NDCG@20 of held-out items, where a pilot measured it."""
    settings: Path | None = None
    """A file of settings for `privirec run`, where a pilot chose them."""

    @cached_property
    def program(self) -> Program[Any]:
        people = self.population
        recommender = self.plan.recommender(people.name or "", people.items)
        settings = self.plan.settings(recommender, people.items, people.users)
        return program_of(settings, people.users, people.items)

    @cached_property
    def ledger(self) -> Ledger:
        """What a run of the plan will count."""
        return Ledger.planned(self.program.plan(self.population.item_item_entries))

    @property
    def sums(self) -> list[PlannedSum]:
        return self.program.sums()

    @property
    def bytes_up(self) -> int:
        return self.ledger.bytes_up

    @property
    def down_is_exact(self) -> bool:
        """Whether bytes down are those of a run: of `privirec` clients fetch what is not zero in
        P~, and only the data says how much that is."""
        return self.plan.method != Privirec.name or self.population.item_item_entries is not None


@dataclass(frozen=True)
class Choice:
    """What is proposed, beside what else there is."""

    proposed: Candidate
    why: str
    others: list[Candidate] = field(default_factory=list)
    """That fit the budget."""
    too_large: list[Candidate] = field(default_factory=list)


def candidates(population: Population, budget: int, settle: float | None = None) -> list[Candidate]:
    """Each exact method as large as the budget allows, or as small as it can be."""
    made = [
        *(_spectral(population, budget, settle), _head(population, budget)),
        *(_power(population, budget), _whole(population)),
    ]
    return [one for one in made if one is not None]


def choose(
    population: Population,
    budget: int,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    corrupt_share: float | None = None,
    settle: float | None = None,
) -> Choice:
    """What to run with at most so many bytes up a client; `settle` lets spectral end earlier."""
    if epsilon is not None:
        return _protected(population, budget, epsilon, delta, corrupt_share)
    made = candidates(population, budget, settle)
    fitting = {one.plan.method: one for one in made if one.bytes_up <= budget}
    proposed, why = _preferred(population, fitting)
    if proposed is None:
        least = min(made, key=lambda one: one.bytes_up)
        raise UsageError(
            f"nothing fits a budget of {as_bytes(budget)} up a client: {least.plan.method} with "
            f"{_size(least)} takes {as_bytes(least.bytes_up)}"
        )
    return Choice(
        proposed,
        why,
        [one for one in fitting.values() if one is not proposed],
        [one for one in made if one.bytes_up > budget],
    )


def _preferred(
    population: Population, fitting: dict[str, Candidate]
) -> tuple[Candidate | None, str]:
    """The rule that stands at the top of this file."""
    head, spectral = fitting.get(HeadGram.name), fitting.get(Spectral.name)
    covered = population.coverage(head.plan.head or 0) if head else 0.0
    size = f"{head.plan.head:,} items" if head and head.plan.head else ""
    if head and covered >= COVERED:
        return head, f"a head of {size} has {covered:.0%} of all interactions"
    if spectral:
        beside = f"; a head of {size} has {covered:.0%} of all interactions" if head else ""
        guess = "" if population.knows_popularity else ", if all items are equally popular"
        return spectral, f"directions of taste reach all items{beside}{guess if beside else ''}"
    if head:
        return head, f"{LEAST_COLUMNS} columns over all items do not fit"
    return None, ""


def _protected(
    population: Population,
    budget: int,
    epsilon: float,
    delta: float | None,
    corrupt_share: float | None,
) -> Choice:
    given = {"epsilon": epsilon} | ({} if delta is None else {"delta": delta})
    terms: dict[str, float] = {} if corrupt_share is None else {"corrupt_share": corrupt_share}
    assumed = Assumptions(dropped_share=DROPPED_SHARE, server=SERVER_ON_ONE_MACHINE, **terms)
    plan = Plan(method=Protected.name, federated=given, assumptions=assumed)
    found = Candidate(plan, population)
    if found.bytes_up > budget:
        raise UsageError(
            f"protected at epsilon {epsilon:g} takes {as_bytes(found.bytes_up)} up a client, and "
            f"the budget is {as_bytes(budget)}: noise leaves enough for so large a picture; a "
            "smaller epsilon takes a smaller one"
        )
    program = found.program
    return Choice(found, program.outlook().rstrip(".") if isinstance(program, Protected) else "")


# --- each method, as large as it fits -------------------------------------------------------------


def _spectral(population: Population, budget: int, settle: float | None) -> Candidate | None:
    """None for a few dozen items or people."""
    users, items = population.users, population.items
    bits = USUAL_RING_BITS
    most = min(users, items) // PEERS_PER_COLUMN

    def within(rounds: int) -> Shape:
        found = largest_shape(Shape, rounds, bits, budget, users, items)
        columns = min(found.columns[0], most) if found else 0
        return Shape((columns,) * rounds, bits)

    shape = within(8)
    columns = sum(shape.columns)
    if columns >= COLUMNS_OF_SIX_ROUNDS and shape.columns[0] < most:
        shape = within(6)
    elif columns < COLUMNS_OF_EIGHT_ROUNDS and sum(within(4).columns) >= columns:
        shape = within(4)
    if sum(shape.columns) < LEAST_COLUMNS:
        each = LEAST_COLUMNS // 4
        if each > most:
            return None
        shape = Shape((each,) * 4, bits)
    rank = min(largest_rank(shape, users, items), round(KEPT * sum(shape.columns)))
    given: dict[str, Any] = {
        "columns": f"{len(shape.columns)}x{shape.columns[0]}",
        "ring_bits": bits,
    }
    if settle:
        given["settle"] = settle
    return Candidate(Plan(method=Spectral.name, rank=rank, federated=given), population)


def _head(population: Population, budget: int) -> Candidate:
    bits = counting_bits(population.widest_degree)

    def of(head: int) -> Candidate:
        plan = Plan(EASE.name, HeadGram.name, head=head, federated={"ring_bits": bits})
        return Candidate(plan, population)

    return _largest(of, budget, min(LEAST_HEAD, population.items), LARGEST_HEAD, population.items)


def _power(population: Population, budget: int) -> Candidate:
    def of(rank: int) -> Candidate:
        plan = Plan(GFCF.name, PrivirecK.name, rank=rank, rounds=POWER_ROUNDS)
        return Candidate(plan, population)

    least = min(LEAST_COLUMNS, population.items)
    return _largest(of, budget, least, population.items, population.items)


def _whole(population: Population) -> Candidate:
    """There is one size, and the model that was best on it."""
    config = BSPMEM.published.get(population.name or "", BSPMEM.config_type())
    rank = min(config.low_pass_rank, population.items) or None
    return Candidate(Plan(BSPMEM.name, Privirec.name, rank=rank), population)


def _largest(
    of: Callable[[int], Candidate], budget: int, least: int, most: int, items: int
) -> Candidate:
    size = largest(lambda size: of(size).bytes_up <= budget, min(most, items))
    return of(max(size, least))


def counting_bits(largest_degree: int) -> int:
    """The narrowest ring in which people can be counted for each pair of items: what EASE needs are
    counts, which are whole numbers, so that a narrow ring costs it nothing."""
    for bits in range(1, 64):
        try:
            _ = ItemItem(1, largest_degree, 0.0, bits).encoding
        except OverflowRefused:
            continue
        return bits
    raise OverflowRefused(f"no ring counts up to {largest_degree:,} people")


def _size(candidate: Candidate) -> str:
    plan = candidate.plan
    if plan.head is not None:
        return f"a head of {plan.head:,} items"
    return f"{plan.federated.get('columns', plan.rank)} columns"
