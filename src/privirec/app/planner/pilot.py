"""Pilot that finds the smallest budget with a given accuracy on available data.

A fifth of each person's train items is held out, as in `privirec paper tune`; the test split is
not used. Budgets are tried in ascending order, each with tuned `spectral` and with EASE on a head,
until one reaches the target. Points measured for `spectral` are in the trace of `tune`, from which
an interrupted pilot resumes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from privirec.app.planner.methods import PlannedMethod, Proposal, candidates, choose
from privirec.app.planner.population import Population
from privirec.data.interactions import Dataset
from privirec.durable import write_whole
from privirec.errors import PrivirecError, UsageError
from privirec.experiments.tune import Shape, Tuning, as_spec
from privirec.federated.programs import HeadGram, SpectralProgram, SpectralSettings
from privirec.progress import QUIET, Phases
from privirec.rows import as_bytes, in_file_name
from privirec.runtime.run import run

MOST_BYTES = 100_000_000
"""Default of the largest budget that is tried."""
STEPS = 5
"""Number of budgets that are tried, each twice the previous one."""
PEOPLE = 2000
"""Largest number of people for whom lists are ranked."""


class TargetMissed(PrivirecError):
    """Raised if no plan within the largest budget reaches the target accuracy."""

    exit_code = 1


@dataclass
class Pilot:
    """A search with a target accuracy, a largest budget, and a folder for measured points."""

    dataset: Dataset
    population: Population
    target: float
    """NDCG@20 to reach on the held-out items."""
    out: Path
    most: int = MOST_BYTES
    epsilon: float | None = None
    delta: float | None = None
    corrupt_share: float | None = None
    seed: int = 0
    threads: int | None = None
    tried: list[PlannedMethod] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not 0 < self.target < 1:
            raise UsageError(f"a target of {self.target:g}: NDCG@20 lies between 0 and 1")

    def run(self, phases: Phases = QUIET) -> Proposal:
        """Return the first candidate that reaches the target, with all others that were tried."""
        for budget in self._budgets():
            found = [self._measured(one, phases) for one in self._candidates(budget)]
            self.tried += found
            best = max(found, key=_accuracy, default=None)
            if best is not None and _accuracy(best) >= self.target:
                others = [one for one in self.tried if one is not best]
                return Proposal(best, self._reached(best), others)
        if not self.tried:
            choose(self.population, self.most)  # Raises an error that names the smallest plan.
        best = max(self.tried, key=_accuracy)
        raise TargetMissed(
            f"no plan up to {as_bytes(self.most)} reaches NDCG@20 {self.target:g} on the "
            f"validation split: the best is {_accuracy(best):.4f}, {best.spec.method} with "
            f"{as_bytes(best.bytes_up)} uploaded per client"
        )

    def _budgets(self) -> Iterator[int]:
        if self.epsilon is not None:
            yield self.most  # `protected` derives its size from public numbers.
            return
        for step in reversed(range(STEPS)):
            yield self.most >> step

    def _candidates(self, budget: int) -> list[PlannedMethod]:
        if self.epsilon is not None:
            promised = choose(
                self.population,
                budget,
                epsilon=self.epsilon,
                delta=self.delta,
                corrupt_share=self.corrupt_share,
            )
            return [promised.proposed]
        tried = {one.bytes_up for one in self.tried}
        return [
            one
            for one in candidates(self.population, budget)
            if one.spec.method in (SpectralProgram.name, HeadGram.name)
            and one.bytes_up <= budget
            and one.bytes_up not in tried  # Already at its largest size with a smaller budget.
        ]

    def _measured(self, candidate: PlannedMethod, phases: Phases) -> PlannedMethod:
        if candidate.spec.method == SpectralProgram.name:
            return self._tuned(candidate, phases)
        spec = candidate.spec.changed(seed=self.seed, threads=self.threads)
        row = run(self._split, spec, phases).row
        return replace(candidate, validation_ndcg=row["ndcg@20"])

    def _tuned(self, candidate: PlannedMethod, phases: Phases) -> PlannedMethod:
        settings = candidate.program.settings
        if not isinstance(settings, SpectralSettings):
            raise AssertionError("the settings are those of spectral")
        shape = Shape(settings.columns or (), settings.ring_bits)
        best = self._tuning(shape).run(phases)
        spec = as_spec(best)
        file = self.out / f"spectral-{self._label}-{candidate.bytes_up}.json"
        write_whole(file, spec.as_chosen())
        return PlannedMethod(spec, self.population, best["ndcg@20"], file)

    def _tuning(self, *shapes: Shape) -> Tuning:
        return Tuning(
            *(self.dataset, self.most, self.out / f"tune-{self._label}.jsonl"),
            shapes=shapes,
            users=PEOPLE,
            seed=self.seed,
            threads=self.threads,
        )

    @cached_property
    def _split(self) -> Dataset:
        return self._tuning().split

    @property
    def _label(self) -> str:
        return in_file_name(self.dataset.name)

    def _reached(self, best: PlannedMethod) -> str:
        return (
            f"NDCG@20 {_accuracy(best):.4f} on the validation split, where {self.target:g} was "
            "asked for, with the least of the budgets that were tried"
        )


def _accuracy(candidate: PlannedMethod) -> float:
    return candidate.validation_ndcg or 0.0
