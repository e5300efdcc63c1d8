"""Federated `tune`: the clients validate, and only mean metrics are released.

Each shape (rounds and ring width, with columns from the budget) is one run of the program
`spectral-validation`. It computes the sums of `spectral` without the items that clients hold out,
and one small sum with the metrics of all candidates. There is no hill climbing, because the clients
agree to the candidates before a run begins, and other candidates would need another run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from privirec import threads as threading
from privirec.data.interactions import Dataset
from privirec.errors import UsageError
from privirec.experiments.measured import MeasuredRows
from privirec.experiments.tune import SETTINGS, Shape, largest_rank, shapes_within
from privirec.federated.programs import SpectralValidation, SpectralValidationSettings
from privirec.federated.programs.spectral_validation import HELD_OUT
from privirec.privacy.ledger import Ledger
from privirec.progress import QUIET, Phases
from privirec.runtime.execute import Runtime, execute_steps
from privirec.runtime.federate import federate
from privirec.runtime.local.client import clients_of
from privirec.runtime.local.in_process import InProcess
from privirec.runtime.local.secure import SecureInProcess
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.spec import RunSpec
from privirec.version import __version__

RUNTIMES = ("simulation", "in-process", "processes")


class ValidatedShape(Shape):
    """Shape of the sums that clients compute and validate, except for the rank."""

    def program(self, users: int, items: int, rank: int, seed: int = 0) -> SpectralValidation:
        settings = SpectralValidationSettings(
            columns=self.columns, ring_bits=self.ring_bits, rank=rank, seed=seed
        )
        return SpectralValidation(settings, users, items)

    def bytes(self, users: int, items: int, rank: int = 1) -> tuple[int, int]:
        """Return the bytes up and down per client, including the sum of metrics."""
        most = min(sum(self.columns), items)  # A small rank has fewer candidates than others.
        of_rank, of_most = (
            Ledger.planned(self.program(users, items, each).validation_outline())
            for each in (rank, most)
        )
        return of_most.bytes_up, of_rank.bytes_down


@dataclass
class FederatedTuning:
    """A federated search for the best settings, with a trace that keeps finished points."""

    dataset: Dataset
    budget: int
    """Upload budget per client for one run, including validation, in bytes."""
    trace: Path
    rounds: Sequence[int] = (8,)
    ring_bits: Sequence[int] = (12,)
    runtime: str = "simulation"
    clients: int | None = None
    """Number of clients; None means one per user."""
    aggregator: str = "none"
    seed: int = 0
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.runtime not in RUNTIMES:
            raise UsageError(f"no runtime {self.runtime!r}; there are {', '.join(RUNTIMES)}")
        if self.runtime == "simulation" and self.aggregator != "none":
            raise UsageError("an aggregator needs --runtime in-process or processes")
        if self.runtime == "processes" and self.clients is None:
            raise UsageError("--runtime processes needs --clients: how many processes")

    def run(self, phases: Phases = QUIET) -> dict[str, Any]:
        """Run the shapes that were not measured yet, and return the best point."""
        train = self.dataset.train
        sizes = train.n_users, train.n_items
        with threading.limit(self.threads):
            shapes = shapes_within(ValidatedShape, self.rounds, self.ring_bits, self.budget, sizes)
            found = [point for shape in shapes for point in self._points_of(shape, phases)]
        return max(found, key=lambda point: point["ndcg@20"])

    @property
    def points(self) -> list[dict[str, Any]]:
        """All measured points, including those of earlier runs."""
        return self._measurements.rows_with(self._about)

    @property
    def paid(self) -> tuple[int, int]:
        """Bytes up and down per client for all runs in the trace."""
        runs = {
            (str(point["columns"]), point["ring_bits"]): (
                point["run_bytes_up_per_client"],
                point["run_bytes_down_per_client"],
            )
            for point in self.points
        }
        return sum(up for up, _ in runs.values()), sum(down for _, down in runs.values())

    @cached_property
    def _measurements(self) -> MeasuredRows:
        return MeasuredRows(self.trace, "tune --federated", (*self._about, *SETTINGS))

    @cached_property
    def _about(self) -> dict[str, Any]:
        """Fields that all points of this search share: data, clients, seed and version."""
        return {
            "dataset": self.dataset.name,
            "fingerprint": self.dataset.train.fingerprint()[:16],
            "federated": True,
            "held_out": HELD_OUT,
            "runtime": self.runtime,
            "clients": self.clients,
            "aggregator": self.aggregator,
            "seed": self.seed,
            "version": __version__,
        }

    def _points_of(self, shape: ValidatedShape, phases: Phases) -> list[dict[str, Any]]:
        """Return a point for each candidate; skip the run if the trace has all of them."""
        train = self.dataset.train
        sizes = train.n_users, train.n_items
        program = shape.program(*sizes, largest_rank(shape, *sizes), self.seed)
        computed = self._about | {
            "columns": list(shape.columns),
            "ring_bits": shape.ring_bits,
            "pairs": program.settings.pairs,
        }
        wanted = [computed | {"config": one.model_dump()} for one in program.candidates]
        known = [point for each in wanted if (point := self._measurements.find(each))]
        if len(known) == len(wanted):
            return known
        measured, cost = self._validated(program, phases)
        for point in measured:
            up, down = Shape.bytes(shape, *sizes, point["config"]["rank"])
            chosen = {"bytes_up_per_client": up, "bytes_down_per_client": down}
            if self._measurements.find(computed | {"config": point["config"]}) is None:
                self._measurements.add(computed | point | chosen | cost)
        return [point for each in wanted if (point := self._measurements.find(each))]

    def _validated(
        self, program: SpectralValidation, phases: Phases
    ) -> tuple[list[dict[str, Any]], dict[str, int]]:
        """Return the mean metrics of each candidate, and the bytes of the run."""
        if self.runtime == "processes":
            return self._in_processes(program, phases)
        ledger = Ledger()
        execute_steps(
            program.validated(),
            self._runtime(program),
            ledger,
            lambda name: phases(f"{program.name}: sum of {name}")(0, 1),
        )
        metrics = ledger.entries[-1]
        return program.measured, {
            "run_bytes_up_per_client": ledger.bytes_up,
            "run_bytes_down_per_client": ledger.bytes_down,
            "metrics_bytes_up_per_client": metrics.bytes_up_per_client,
        }

    def _runtime(self, program: SpectralValidation) -> Runtime:
        train, held_out = self.dataset.train, program.held_out
        if self.runtime == "simulation":
            return Simulation(train, self.clients, self.seed, held_out=held_out)
        clients = clients_of(train, self.clients, self.seed, held_out)
        if self.aggregator == "none":
            return InProcess(clients)
        return SecureInProcess(clients, program.sums(), self.aggregator)

    def _in_processes(
        self, program: SpectralValidation, phases: Phases
    ) -> tuple[list[dict[str, Any]], dict[str, int]]:
        settings = program.settings
        spec = RunSpec.of(
            program.name,
            rank=settings.rank,
            columns=settings.columns,
            ring_bits=settings.ring_bits,
            aggregator=self.aggregator,
            seed=self.seed,
            threads=self.threads,
        )
        row = federate(self.dataset, spec, self.clients or 0, phases=phases)
        metrics = next(one for one in program.sums() if one.kind.counts_hits)
        return row["validated"], {
            "run_bytes_up_per_client": row["bytes_up_per_client"],
            "run_bytes_down_per_client": row["bytes_down_per_client"],
            "metrics_bytes_up_per_client": metrics.payload_bytes,
        }
