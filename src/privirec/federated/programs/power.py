"""The power method with the clients, shared by PriviRec and PriviRec-k."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from privirec.errors import UsageError
from privirec.federated.contributions import (
    Contribution,
    PlannedSum,
    PowerStep,
    SeededStep,
    UserStart,
)
from privirec.federated.contributions.power_step import SEED_BYTES
from privirec.federated.programs.base import MOST_COLUMNS, Broadcast, OnStep, Program
from privirec.federated.settings import Option, ProgramSettings
from privirec.filters.eigen import orthonormalize
from privirec.filters.normalize import degree_power

# Number of multiplications after which the low-pass filter is as good as a converged one on the
# data sets we have tried.
DEFAULT_ROUNDS = 5
DEFAULT_RANK = 256

FILTER_ENTRY = 4
"""Bytes per number in a released filter."""


MOST_ROUNDS = 1000
"""Largest number of rounds.

The server chooses the number, and every client lists that many sums before its policy sees them.
"""


POWER_METHODS = "Power methods (privirec, privirec-k)"
"""Heading of their options in the help."""


class PowerSettings(ProgramSettings):
    """Settings of programs that run the power method with the clients."""

    rank: Annotated[int, Option("K", default="the model's")] = Field(
        DEFAULT_RANK, ge=0, le=MOST_COLUMNS
    )
    """Number of vectors of the low-pass filter.

    It is 0 in a run without one.
    """
    rounds: Annotated[int, Option("L")] = Field(DEFAULT_ROUNDS, ge=1, le=MOST_ROUNDS)
    """Number of secure sums of the power method."""
    start: Annotated[Literal["users", "items"], Option("BLOCK", POWER_METHODS)] = "items"
    """Start block over items, or users as in the paper.

    The one over items comes from a public seed.
    """
    alpha: float = Field(0.5, ge=0, le=1)
    """Normalisation of the item-item matrix: a history of length d has weight d^(-2 alpha)."""

    @property
    def multiplications(self) -> int:
        """Number of times the start block is multiplied by P~ to get S_k."""
        return self.rounds if self.start == "items" else self.rounds - 1


Settings = TypeVar("Settings", bound=PowerSettings)


class PowerProgram(Program[Settings], Generic[Settings]):
    """A program that includes a power method."""

    def check(self) -> None:
        settings = self.settings
        if settings.rank > self.n_items:
            raise UsageError(
                f"rank {settings.rank} does not fit a catalogue of {self.n_items} items"
            )
        if settings.rank and settings.alpha != 0.5:
            raise UsageError("the low-pass filter is defined for alpha = 1/2")

    def describe(self) -> dict[str, Any]:
        settings = self.settings
        if not settings.rank:
            return super().describe() | {"rank": 0}
        return {
            "rank": settings.rank,
            "rounds": settings.rounds,
            "multiplications": settings.multiplications,
            "solver": "power method",
        }

    def power_sums(self) -> list[PlannedSum]:
        """Return the L planned sums: the start, and a step for each further round."""
        settings, n_items = self.settings, self.n_items
        rank, width = settings.rank, settings.ring_bits
        if settings.start == "users":
            first = UserStart.planned(n_items, self.n_users, rank, width)
        else:
            seed = public_generator(settings).bytes(SEED_BYTES)
            first = SeededStep.planned(n_items, rank, width, seed)
        step = PowerStep.planned(n_items, rank, width)
        return [first, *[step] * (settings.rounds - 1)]

    def power_rounds(
        self,
        sums: Sequence[PlannedSum],
        degrees: NDArray[np.int64],
        on_step: OnStep | None = None,
    ) -> Generator[Contribution | Broadcast, Any, PowerResult]:
        """Run Algorithm 1: one QR decomposition on the server after each of `sums` (`power_sums`).

        `on_step(round, basis, triangle)` is called with the state after each round, so a run of L
        rounds also yields the results of all shorter runs.
        """
        first, *further = sums
        scale = degree_power(degrees, -0.5)[:, None]
        ask: Any
        if first.kind is UserStart:
            ask = first.ask(x=self._user_block(), item_degrees=degrees)
            before = np.zeros((self.n_items, self.settings.rank))
        else:
            ask = first.ask(item_degrees=degrees)
            before = ask.start()
        for number in range(1, len(sums) + 1):
            total = yield ask
            image = ask.encoding.decode(total)
            del total
            image *= scale
            basis, triangle = orthonormalize(image)
            if on_step:
                on_step(number, basis, triangle)
            if number <= len(further):
                before = basis
                ask = further[number - 1].ask(x=before, item_degrees=degrees)
        return PowerResult(before, image, basis, triangle)

    def _user_block(self) -> NDArray[np.float64]:
        """Return a block with orthonormal columns; a smaller rank gets a prefix of the same
        columns."""
        generator = public_generator(self.settings)
        columns = generator.standard_normal((self.settings.rank, self.n_users))
        return orthonormalize(columns.T)[0]


@dataclass(frozen=True)
class PowerResult:
    """The last step: image = P~ before = basis triangle."""

    before: NDArray[np.float64]
    image: NDArray[np.float64]
    basis: NDArray[np.float64]
    triangle: NDArray[np.float64]


def item_degrees_told(n_items: int) -> Broadcast:
    """Return the broadcast of the item degrees to every client."""
    return Broadcast("item-degrees", FILTER_ENTRY * n_items)


def public_generator(settings: ProgramSettings) -> np.random.Generator:
    """Return a generator of public numbers, seeded with the public seed."""
    return np.random.Generator(np.random.Philox(settings.seed))
