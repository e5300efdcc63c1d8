"""Methods, sized for a budget, and the choice of the one to propose.

The rule follows, with the measurements behind it (docs/results/plan.md has the figures):

1. With a promise (epsilon) there is one method, `protected`, which derives its size from public
   numbers. It is proposed, or it does not fit the budget.
2. EASE on a head of popular items (`head-gram`) is proposed if the head that fits has at least
   `COVERED` of all interactions. With 5 MB on parts of Gowalla and Yelp2018, `spectral` is better
   at coverages up to 0.78 and EASE from 0.86 on. On Globo, where the head covers more, EASE is
   twice as good. The number of people per item does not matter: Globo with 8,000 of its 158,000
   people gives the same result.
3. Otherwise `spectral` is proposed if at least `LEAST_COLUMNS` fit. These are the fewest columns
   that were measured; from there on it is better than a head with the same number of bytes
   (docs/results/frontier.md).
4. Otherwise a head is proposed if it has `LEAST_HEAD` items.

`privirec-k` is worse than `spectral` with the same number of bytes at every point of the frontier,
and `privirec` reveals every history. Both are shown, and neither is proposed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from privirec.app.planner.population import Population
from privirec.errors import OverflowRefused, UsageError
from privirec.experiments.cost import largest
from privirec.experiments.tune import Shape, largest_rank, largest_shape
from privirec.federated.contributions import ItemItem, PlannedSum
from privirec.federated.programs import (
    HeadGram,
    Privirec,
    PrivirecK,
    Program,
    Protected,
    SpectralProgram,
    program_of,
)
from privirec.federated.programs.spectral import USUAL_RING_BITS
from privirec.models import BSPMEM, EASE, GFCF
from privirec.privacy.ledger import Ledger
from privirec.rows import as_bytes
from privirec.runtime.spec import SERVER_ON_ONE_MACHINE, RunSpec

COVERED = 0.8
"""Least share of all interactions for which a head is the better use of the bytes."""
LEAST_COLUMNS = 32
LEAST_HEAD = 250
LARGEST_HEAD = 6000
"""Largest head that is planned.

Larger heads were no better (NDCG@20 on Globo: 0.2172 with 4,493 items, 0.2181 with 6,085, 0.2183
with 9,175), and a device stores a number for each pair of head items, 144 MB at this size.
"""
COLUMNS_OF_EIGHT_ROUNDS, COLUMNS_OF_SIX_ROUNDS = 384, 1400
"""Total columns from which they are summed in eight rounds, and in six; fewer take four rounds.

These are the steps of the frontier, whose tuned points are presets of `spectral`.
"""
PEERS_PER_COLUMN = 16
"""Fewest items, and fewest people, per column of a round.

The rank of P~ is at most the number of items or people. With too many columns for that number, four
bits per entry cannot keep the columns apart. A run then sends blocks with more bits, so its bytes
would differ from the plan.
"""
KEPT = 0.6
"""Number of vectors kept per summed column, as in the presets."""
POWER_ROUNDS = 2
"""Rounds of privirec-k. At equal total columns, more vectors gained more than more rounds."""


@dataclass(frozen=True)
class PlannedMethod:
    """A method with its size, planned for a population."""

    spec: RunSpec
    population: Population
    validation_ndcg: float | None = None
    """NDCG@20 on held-out items, if a pilot measured it."""
    settings: Path | None = None
    """File of settings for `privirec run`, if a pilot chose them."""

    @cached_property
    def program(self) -> Program[Any]:
        people = self.population
        spec = self.spec.resolved(people.name or "", people.items, people.users)
        return program_of(spec.program, people.users, people.items)

    @cached_property
    def ledger(self) -> Ledger:
        """Ledger of a run to expect."""
        return Ledger.planned(self.program.forecast(self.population.item_item_entries))

    @property
    def sums(self) -> list[PlannedSum]:
        """Sums to expect."""
        return self.program.expected_sums()

    @property
    def bytes_up(self) -> int:
        return self.ledger.bytes_up

    @property
    def down_is_exact(self) -> bool:
        """True if the planned bytes down equal those of a run.

        Clients of `privirec` fetch the non-zeros of P~, and their number depends on the data.
        """
        return self.spec.method != Privirec.name or self.population.item_item_entries is not None


@dataclass(frozen=True)
class Proposal:
    """The proposed candidate, the reason for it, and the alternatives."""

    proposed: PlannedMethod
    why: str
    others: list[PlannedMethod] = field(default_factory=list)
    """Other candidates that fit the budget."""
    too_large: list[PlannedMethod] = field(default_factory=list)


def candidates(
    population: Population, budget: int, settle: float | None = None
) -> list[PlannedMethod]:
    """Return each exact method at the largest size within the budget, or at its smallest size."""
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
) -> Proposal:
    """Return the proposal for an upload budget per client; `settle` lets spectral end early."""
    if epsilon is not None:
        return _protected(population, budget, epsilon, delta, corrupt_share)
    made = candidates(population, budget, settle)
    fitting = {one.spec.method: one for one in made if one.bytes_up <= budget}
    proposed, why = _preferred(population, fitting)
    if proposed is None:
        least = min(made, key=lambda one: one.bytes_up)
        raise UsageError(
            f"nothing fits an upload budget of {as_bytes(budget)} per client: the smallest plan, "
            f"{least.spec.method} with {_size(least)}, takes {as_bytes(least.bytes_up)}"
        )
    return Proposal(
        proposed,
        why,
        [one for one in fitting.values() if one is not proposed],
        [one for one in made if one.bytes_up > budget],
    )


def _preferred(
    population: Population, fitting: dict[str, PlannedMethod]
) -> tuple[PlannedMethod | None, str]:
    """Apply the rule in the module's docstring, and return the candidate with the reason."""
    head, spectral = fitting.get(HeadGram.name), fitting.get(SpectralProgram.name)
    items = head.spec.given()["head"] if head else 0
    covered, size = population.coverage(items), f"{items:,} items"
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
) -> Proposal:
    chosen = {"epsilon": epsilon, "delta": delta, "corrupt_share": corrupt_share}
    given = {name: value for name, value in chosen.items() if value is not None}
    spec = RunSpec.of(Protected.name, server_model=SERVER_ON_ONE_MACHINE, **given)
    found = PlannedMethod(spec, population)
    if found.bytes_up > budget:
        found = PlannedMethod(spec.changed(upload_limit=budget), population)
        try:
            _ = found.bytes_up
        except UsageError as error:
            raise UsageError(f"protected at epsilon {epsilon:g}: {error}") from None
    program = found.program
    return Proposal(found, program.outlook().rstrip(".") if isinstance(program, Protected) else "")


# --- each method at the largest size that fits ----------------------------------------------------


def _spectral(population: Population, budget: int, settle: float | None) -> PlannedMethod | None:
    """Return the candidate, or None if there are only a few dozen items or people."""
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
    given: dict[str, Any] = {"rank": rank, "columns": shape.columns, "ring_bits": bits}
    if settle:
        given["settle"] = settle
    return PlannedMethod(RunSpec.of(SpectralProgram.name, **given), population)


def _head(population: Population, budget: int) -> PlannedMethod:
    bits = counting_bits(population.widest_degree)

    def of(head: int) -> PlannedMethod:
        spec = RunSpec.of(HeadGram.name, model=EASE.name, head=head, ring_bits=bits)
        return PlannedMethod(spec, population)

    return _largest(of, budget, min(LEAST_HEAD, population.items), LARGEST_HEAD, population.items)


def _power(population: Population, budget: int) -> PlannedMethod:
    def of(rank: int) -> PlannedMethod:
        spec = RunSpec.of(PrivirecK.name, model=GFCF.name, rank=rank, rounds=POWER_ROUNDS)
        return PlannedMethod(spec, population)

    least = min(LEAST_COLUMNS, population.items)
    return _largest(of, budget, least, population.items, population.items)


def _whole(population: Population) -> PlannedMethod:
    """Return the only size of `privirec`, with the model that was best on it."""
    config = BSPMEM.published.get(population.name or "", BSPMEM.config_type())
    rank = min(config.low_pass_rank, population.items)
    given = {"rank": rank} if rank else {}
    return PlannedMethod(RunSpec.of(Privirec.name, model=BSPMEM.name, **given), population)


def _largest(
    of: Callable[[int], PlannedMethod], budget: int, least: int, most: int, items: int
) -> PlannedMethod:
    size = largest(lambda size: of(size).bytes_up <= budget, min(most, items))
    return of(max(size, least))


def counting_bits(largest_degree: int) -> int:
    """Return the width of the narrowest ring that can count the people of each pair of items.

    EASE needs these counts. They are integers, so a narrow ring costs no precision.
    """
    for bits in range(1, 64):
        try:
            _ = ItemItem(1, largest_degree, 0.0, bits).encoding
        except OverflowRefused:
            continue
        return bits
    raise OverflowRefused(f"no ring counts up to {largest_degree:,} people")


def _size(candidate: PlannedMethod) -> str:
    given = candidate.spec.given()
    if "head" in given:
        return f"a head of {given['head']:,} items"
    return f"{written(given.get('columns', given.get('rank')))} columns"


def written(value: Any) -> str:
    """Return a setting as an option of the command line takes it."""
    if isinstance(value, tuple):
        alike = len(set(value)) == 1
        return f"{len(value)}x{value[0]}" if alike else ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
