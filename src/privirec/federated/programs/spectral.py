"""Spectral: eigenpairs of the item-item matrix by block Krylov, in narrow rings.

The first sum is V. Each following round sums the product Y = P~ X of a block X over the clients,
and takes the next block from the new directions in Y. The first block is either random signs from a
public seed, sent as 32 bytes, or the basis of an earlier model. At the end, a single eigenproblem
uses all blocks and all products. The power method of the paper needs two to three times as many
columns for the same filter.

Each round except a seeded first one is two sums: a bound on each row of the product (its reach, one
number per item), and the product itself, with each row scaled to its reach
(`contributions/scaled_step.py`). This makes narrow rings possible. Sums stay within them except
with probability 2^-64.

Clients agree to a number of sums, and masks are assigned to them. With `settle`, that number is a
maximum: the last rounds are optional, and are left out once the Ritz values have settled. Every
requested sum is still the one with the same number in the outline, so clients check it as usual.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from privirec.errors import UsageError
from privirec.federated.contributions import (
    Contribution,
    ItemDegrees,
    PlannedSum,
    RowReach,
    ScaledStep,
    SeededScaledStep,
)
from privirec.federated.contributions.power_step import SEED_BYTES
from privirec.federated.contributions.scaled_step import CoarseBlock
from privirec.federated.programs.base import MOST_COLUMNS, Broadcast, Planned, Program, Steps
from privirec.federated.programs.power import FILTER_ENTRY, item_degrees_told, public_generator
from privirec.federated.row_scales import LEAST_WIDTH
from privirec.federated.settings import Option, ProgramSettings
from privirec.filters.components import Components
from privirec.filters.eigen import orthonormalize
from privirec.filters.krylov import Eigenpairs, KrylovSpace
from privirec.filters.operators import LowRankOperator

DEFAULT_RANK = 512
DEFAULT_ROUNDS = 8
USUAL_RING_BITS = 12
"""Default width of the ring.

It is enough for an item with any number of people. Wider rings gained nothing on validation splits.
"""
SPARE = 1.5
"""Number of columns summed per eigenpair kept, unless the settings list the columns."""
KNOWN_FOR_A_FRESH_ONE = 7
"""Number of columns of an earlier basis per added random column, unless the settings list the
columns."""
LEAST_RITZ = 0.02
"""Ritz values below this are left out of a Nystrom approximation."""


def _columns(given: Any) -> Any:
    """Parse `8x128` or `256,128,128` into a tuple; return anything but a string unchanged."""
    if not isinstance(given, str):
        return given
    try:
        parts = []
        for part in given.split(","):
            rounds, times, columns = part.rpartition("x")
            parts += [int(columns)] * int(rounds if times else 1)
        return tuple(parts)
    except ValueError:
        raise ValueError("columns are given as 8x128 or as 256,128,128") from None


Columns = Annotated[tuple[Annotated[int, Field(ge=1)], ...] | None, BeforeValidator(_columns)]


Pairs = Literal["rayleigh-ritz", "nystrom"]
PAIRS: tuple[str, ...] = get_args(Pairs)


METHOD = "Method spectral"
"""Heading of its options in the help."""


class SpectralSettings(ProgramSettings):
    """Settings of the spectral program."""

    method: Literal["spectral"] = "spectral"
    rank: Annotated[int, Option("K", default="the model's")] = Field(
        DEFAULT_RANK, ge=1, le=MOST_COLUMNS
    )
    """Number of eigenpairs kept."""
    columns: Annotated[Columns, Option("SIZES", METHOD, "1.5 rank")] = None
    """Columns of each round, as 8x128 or 256,128,128.

    By default, eight rounds have 1.5 times the rank together.
    """
    ring_bits: Annotated[int, Option("BITS", "Secure aggregation")] = Field(
        USUAL_RING_BITS, ge=LEAST_WIDTH, le=64
    )
    """Bits per entry that a client sends."""
    block_bits: Annotated[Literal[4, 8, 16], Option("BITS", METHOD)] = 4
    """Bits per entry sent to clients: 4, 8 or 16."""
    start: Literal["seed", "basis"] = "seed"
    """Start block: random signs, or the basis of an earlier model given to `start_from`."""
    pairs: Annotated[Pairs, Option("WAY", METHOD)] = "nystrom"
    """Eigenpairs by nystrom or rayleigh-ritz.

    `nystrom` takes them from Y (X^T Y)^+ Y^T, which is half a multiplication further and was better
    on every validation split. `rayleigh-ritz` takes them from the span of X.
    """
    settle: Annotated[float, Option("X", METHOD)] = Field(0.0, ge=0, lt=1)
    """Stop once the Ritz values change by at most this share.

    Their sum counts, and 0 computes all rounds. A run ends early only if there are at least as many
    columns as eigenpairs to keep.
    """
    alpha: float = Field(0.5, ge=0.5, le=0.5)
    """Normalisation of the item-item matrix; eigenpairs exist for the symmetric one only."""


class SpectralProgram(Program[SpectralSettings]):
    """V, then S_k and its eigenvalues from a block Krylov method with the clients."""

    name: ClassVar[str] = "spectral"
    title: ClassVar[str] = "Spectral"
    in_short: ClassVar[str] = "many vectors in few bits; the most accurate for its bytes, exact"
    gives_away: ClassVar[str] = (
        "exact sums of many columns are not proven safe; rows of items with few users can be "
        "recovered from them"
    )
    settings_type = SpectralSettings
    low_rank: ClassVar[bool] = True
    usual_model: ClassVar[str | None] = "spectral"
    # Chosen by validation on a held-out fifth of each train split. The test split was not used.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "gowalla-60mb": {"columns": "8x138", "rank": 571, "ring_bits": 10},
        "gowalla-200mb": {"columns": "4x776", "rank": 2000},
        "yelp2018-100mb": {"columns": "6x279", "rank": 900},
        "globo-20mb": {"columns": "4x270", "rank": 528},
    }
    preset_models: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "gowalla-60mb": {
            "history_exponent": 0.4,
            "item_exponent": 0.5,
            "response": "power",
            "power": 0.1,
        },
        "gowalla-200mb": {
            "history_exponent": 0.4,
            "item_exponent": 0.5,
            "response": "power",
            "power": 0.5,
        },
        "yelp2018-100mb": {"history_exponent": 0.35, "item_exponent": 0.35},
        "globo-20mb": {
            "history_exponent": 0.2,
            "item_exponent": 0.2,
            "response": "power",
            "power": 0.2,
        },
    }

    def __init__(self, settings: SpectralSettings, n_users: int, n_items: int) -> None:
        super().__init__(settings, n_users, n_items)
        self._start: NDArray | None = None
        self._rounds_run = 0

    @property
    def columns(self) -> tuple[int, ...]:
        """Number of columns of each round."""
        settings = self.settings
        if settings.columns is not None:
            return settings.columns
        if settings.start == "basis":
            return (min(settings.rank + -(-settings.rank // KNOWN_FOR_A_FRESH_ONE), self.n_items),)
        wanted = min(SPARE * settings.rank, self.n_items)
        each = max(1, -(-int(wanted) // DEFAULT_ROUNDS))
        return (each,) * max(DEFAULT_ROUNDS, -(-settings.rank // each))

    def check(self) -> None:
        rank, columns = self.settings.rank, self.columns
        if rank > self.n_items:
            raise UsageError(f"rank {rank} does not fit a catalogue of {self.n_items} items")
        if not columns or rank > sum(columns):
            raise UsageError(f"rank {rank} needs as many columns; all rounds have {sum(columns)}")

    def start_from(self, basis: NDArray) -> None:
        """Start from the basis of an earlier model.

        It has a row for each item of the catalogue, zeros for items that the model did not know.
        """
        if basis.ndim != 2 or len(basis) != self.n_items:
            raise UsageError(f"a basis of {len(basis)} rows for {self.n_items} items")
        self._start = basis

    def describe(self) -> dict[str, Any]:
        rounds = self._rounds_run or len(self.columns)
        return {
            "rank": self.settings.rank,
            "rounds": rounds,
            "multiplications": rounds,
            "solver": f"block Krylov, {self.settings.pairs}",
            "columns": sum(self.columns[:rounds]),
            "ring_bits": self.settings.ring_bits,
        }

    def found(self) -> dict[str, Any]:
        return {"rounds_run": self._rounds_run} if self.settings.settle else {}

    def _may_end_before(self, number: int) -> bool:
        """Return True if a run may end after `number` rounds; measuring a change takes two."""
        enough = number >= 2 and sum(self.columns[:number]) >= self.settings.rank
        return self.settings.settle > 0 and enough

    def outline(self, item_item_entries: int | None = None) -> list[Planned]:
        settings, n_items = self.settings, self.n_items
        sums: list[Planned] = []
        for number, columns in enumerate(self.columns):
            if number == 0 and settings.start == "seed":
                seed = public_generator(settings).bytes(SEED_BYTES)
                sums.append(SeededScaledStep.planned(n_items, columns, settings.ring_bits, seed))
                continue
            bits = settings.block_bits
            pair = (
                RowReach.planned(n_items, columns, bits),
                ScaledStep.planned(n_items, columns, settings.ring_bits, bits),
            )
            optional = self._may_end_before(number)
            sums += [replace(planned, optional=optional) for planned in pair]
        return [
            ItemDegrees.planned(n_items, self.n_users),
            item_degrees_told(n_items),
            *sums,
            Broadcast("filters", spectral_bytes(n_items, settings.rank)),
        ]

    def _steps(self, outline: list[Any]) -> Steps:
        *gathering, filters = outline
        degrees, space = yield from self._gathered(gathering)
        values, basis = eigenpairs(space, self.settings.pairs, self.settings.rank)
        yield filters
        return Components(degrees, LowRankOperator(basis, values), basis)

    def gathered(self) -> Generator[Contribution | Broadcast, Any, KrylovSpace]:
        """Yield the sums and return the Krylov space, for callers that derive several results from
        it."""
        _, space = yield from self._gathered(self.outline()[:-1])
        return space

    def _gathered(
        self, outline: list[Any]
    ) -> Generator[Contribution | Broadcast, Any, tuple[NDArray[np.int64], KrylovSpace]]:
        degree_sum, degrees_told, *sums = outline
        degrees = yield degree_sum.ask()
        yield degrees_told
        space = KrylovSpace(self.n_items, sum(self.columns))
        rng = public_generator(self.settings)
        left = iter(sums)
        ritz = 0.0
        for number, columns in enumerate(self.columns):
            if number and self.settings.settle:
                before, ritz = ritz, space.ritz_sum(self.settings.rank)
                settled = abs(ritz - before) <= self.settings.settle * ritz
                if settled and self._may_end_before(number):
                    break
            planned: PlannedSum = next(left)
            ask: Any
            if planned.kind is SeededScaledStep:
                ask = planned.ask(item_degrees=degrees)
            else:
                x = space.next_block(columns, rng) if number else self._first_block(degrees)
                block = CoarseBlock.of(x, degrees, self.settings.block_bits)
                reach: Any = planned.ask(block=block, item_degrees=degrees)
                reaches = reach.decode((yield reach))
                ask = next(left).ask(block=block, item_degrees=degrees, reaches=reaches)
            total = yield ask
            space.add(ask.step.x(), ask.decode(total))
            del total
            self._rounds_run = number + 1
        return degrees, space

    def _first_block(self, degrees: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return a first block of orthonormal columns.

        It has the columns of the earlier basis, restricted to items in use, and random columns
        orthogonal to them. The random columns are needed because one round finds little that is
        near neither the old basis nor its product, and new items have no row in the old basis.
        """
        if self._start is None:
            raise UsageError("a start from an earlier basis needs that basis")
        columns, in_use = self.columns[0], (degrees > 0)[:, None]
        earlier = np.asarray(self._start[:, :columns], np.float64)
        known = orthonormalize(earlier * in_use)[0]
        rng = public_generator(self.settings)
        fresh = rng.standard_normal((self.n_items, columns - known.shape[1])) * in_use
        fresh -= known @ (known.T @ fresh)
        return orthonormalize(np.hstack((known, fresh)))[0]


def eigenpairs(space: KrylovSpace, pairs: str, rank: int) -> Eigenpairs:
    """Return the leading eigenpairs, computed from the gathered blocks and products."""
    return space.nystrom(rank, LEAST_RITZ) if pairs == "nystrom" else space.rayleigh_ritz(rank)


def spectral_bytes(n_items: int, rank: int) -> int:
    """Return the size of S_k as the model `spectral` stores it.

    It has one byte per entry, one unit per item, and the eigenvalues.
    """
    return n_items * rank + FILTER_ENTRY * (n_items + rank)
