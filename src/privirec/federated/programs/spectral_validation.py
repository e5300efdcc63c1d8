"""Spectral on a part of each user's items, validated by the clients on the rest.

The sums are those of `spectral`, over the items that clients do not hold out. Its eigenpairs serve
any candidate of the same or a smaller rank, so a single further sum of a few hundred numbers tells
how well each candidate performs. The model of such a run does not include the held-out items. For a
model of all items, run `spectral` with the settings found here.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from privirec.errors import FederationError, UsageError
from privirec.federated.contributions import Candidate, Contribution, Integers, ValidationMetrics
from privirec.federated.contributions.validation import FRACTION_BITS, MOST_CANDIDATES, TOP
from privirec.federated.programs.base import Broadcast, Planned, Step, Steps, keep_to
from privirec.federated.programs.spectral import SpectralProgram, SpectralSettings, eigenpairs
from privirec.filters.components import Components
from privirec.filters.operators import LowRankOperator
from privirec.filters.spectral import KeptBasis

HELD_OUT = 0.2
EXPONENTS = (0.3, 0.4, 0.5)
RESPONSES: tuple[Mapping[str, Any], ...] = (
    {},
    {"response": "power", "power": 0.2},
    {"response": "heat", "time": 2.0},
)
SHARES_OF_RANK = (1.0, 0.7, 0.5, 0.25)


def usual_candidates(rank: int) -> tuple[Candidate, ...]:
    """Return a grid around the best settings on the data sets that we have tried."""
    ranks = dict.fromkeys(max(1, round(share * rank)) for share in SHARES_OF_RANK)
    return tuple(
        Candidate(rank=k, history_exponent=a, item_exponent=b, **response)
        for k in ranks
        for response in RESPONSES
        for a in EXPONENTS
        for b in EXPONENTS
    )


class SpectralValidationSettings(SpectralSettings):
    """Settings of a validation with the clients."""

    method: Literal["spectral-validation"] = "spectral-validation"  # type: ignore[assignment]
    held_out: float = Field(HELD_OUT, gt=0, le=0.5)
    """Share of each user's items used for validation."""
    candidates: tuple[Candidate, ...] | None = Field(None, min_length=1, max_length=MOST_CANDIDATES)
    """Candidates to compare; the largest of their ranks must equal `rank`.

    None: a grid for that rank.
    """

    @field_validator("candidates")
    @classmethod
    def _differ(cls, given: tuple[Candidate, ...] | None) -> tuple[Candidate, ...] | None:
        if given is not None and len(set(given)) != len(given):
            raise ValueError("a candidate is given twice")
        return given


class SpectralValidation(SpectralProgram):
    """V and S_k from the items that clients do not hold out, and metrics on those that they do."""

    name: ClassVar[str] = "spectral-validation"
    title: ClassVar[str] = "Spectral, validated"
    gives_away: ClassVar[str] = (
        f"{SpectralProgram.gives_away}, and a server that makes up the model of the validation can "
        "ask whether people have an item"
    )
    settings_type = SpectralValidationSettings
    settings: SpectralValidationSettings
    validates: ClassVar[bool] = True
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    preset_models: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __init__(self, settings: SpectralValidationSettings, n_users: int, n_items: int) -> None:
        super().__init__(settings, n_users, n_items)
        self.measured: list[dict[str, Any]] = []
        """Settings and mean metrics of each candidate, once they are known."""

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        return self.settings.candidates or usual_candidates(self.settings.rank)

    @property
    def held_out(self) -> float:
        return self.settings.held_out

    def check(self) -> None:
        super().check()
        if self.settings.settle:
            raise UsageError("a run that validates computes all rounds: its last sum needs them")
        largest = max(candidate.rank for candidate in self.candidates)
        if largest != self.settings.rank:
            raise UsageError(
                f"candidates up to rank {largest} for a basis of {self.settings.rank} columns"
            )

    def describe(self) -> dict[str, Any]:
        about = {"held_out": self.held_out, "candidates": len(self.candidates)}
        return super().describe() | about

    def outline(self, item_item_entries: int | None = None) -> list[Planned]:
        *gathering, filters = super().outline(item_item_entries)
        metrics = ValidationMetrics.planned(
            self.n_items, self.n_users, self.settings.rank, self.candidates
        )
        return [*gathering, metrics, filters]

    def _steps(self, outline: list[Any]) -> Steps:
        *summing, filters = outline
        components = yield from self._validated(summing)
        yield filters
        return components

    def validated(self) -> Generator[Step, Any, Components]:
        """Return the sums, checked against the outline, without the final release."""
        outline: list[Any] = self.validation_outline()
        return keep_to(outline, self._validated(outline))

    def validation_outline(self) -> list[Planned]:
        """Return the outline of `validated`.

        It ends before the release: the basis is broadcast only once, with the candidates.
        """
        return self.outline()[:-1]

    def _validated(
        self, outline: list[Any]
    ) -> Generator[Contribution | Broadcast, Any, Components]:
        *gathering, metrics = outline
        degrees, space = yield from self._gathered(gathering)
        values, basis = eigenpairs(space, self.settings.pairs, self.settings.rank)
        ask = metrics.ask(basis=KeptBasis.of(values, basis), item_degrees=degrees)
        self.measured = list(self._means((yield ask)))
        return Components(degrees, LowRankOperator(basis, values), basis)

    def _means(self, total: Integers) -> Generator[dict[str, Any], None, None]:
        people = int(total[-1])
        if not people:
            raise FederationError("nobody has two items to keep one of them back")
        means = total[:-1].reshape(-1, 2) / float(people << FRACTION_BITS)
        for candidate, (ndcg, recall) in zip(self.candidates, means.tolist(), strict=True):
            metrics = {f"ndcg@{TOP}": ndcg, f"recall@{TOP}": recall, "users": people}
            yield {"config": candidate.model_dump(), **metrics}

    def found(self) -> dict[str, Any]:
        return {"validated": self.measured} if self.measured else {}
