"""Run of one model on one data set by one method: fit, rank for all users, measure."""

from __future__ import annotations

import resource
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privirec import threads as threading
from privirec.data.interactions import Dataset, Interactions
from privirec.errors import DataWarning, UsageError
from privirec.evaluation import Metrics, evaluate
from privirec.federated.programs import (
    DEFAULT_ROUNDS,
    Program,
    SpectralProgram,
    program_of,
)
from privirec.filters import randomized
from privirec.models import Recommender, Spectral
from privirec.models.base import CENTRAL_MODEL
from privirec.privacy.ledger import Ledger
from privirec.privacy.worth import NOTHING, simulated
from privirec.progress import QUIET, Phases
from privirec.runtime.execute import Runtime, execute
from privirec.runtime.local.client import clients_of
from privirec.runtime.local.in_process import InProcess
from privirec.runtime.local.secure import DropOuts, SecureInProcess
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.plan import Plan, gives_away
from privirec.version import __version__


@dataclass
class Result:
    """A fitted model with its metrics and costs."""

    row: dict[str, Any]
    recommender: Recommender
    metrics: Metrics
    ledger: Ledger | None

    def manifest(self) -> dict[str, Any]:
        """Return the part of the artifact's manifest that describes the run."""
        return {
            "run": self.row,
            "ledger": self.ledger.as_rows() if self.ledger else [],
            "promised": self.promised or NOTHING,
            "gives_away": gives_away(self.row["method"], promised=self.promised) or CENTRAL_MODEL,
        }

    @property
    def promised(self) -> str | None:
        """Sentences on what the noise promises: nothing if it comes from a seed."""
        epsilon = self.row.get("epsilon")
        if epsilon is None:
            return None
        if self.ledger is not None and self.ledger.secret_noise:
            return self.ledger.promised
        return simulated(epsilon, self.row["delta"], self.row["epsilon_replacing"])


def _fit_centrally(
    recommender: Recommender, train: Interactions, plan: Plan, phases: Phases
) -> None:
    report = phases(f"{plan.model_name}: singular vectors")
    if plan.solver == "converged":
        recommender.fit(train, seed=plan.seed, progress=report)
        return
    rank = recommender.config.low_pass_rank
    if not rank:
        raise UsageError(f"{plan.model_name} has no singular vectors to solve for")
    components = randomized(
        train,
        rank=rank,
        steps=plan.rounds or DEFAULT_ROUNDS,
        qr_per_step=2 if plan.solver == "power-2qr" else 1,
        seed=plan.seed,
    )
    recommender.use(components, train.item_ids)


def _runtime(
    plan: Plan, program: Program[Any], train: Interactions, simulation: Simulation
) -> Runtime:
    if plan.runtime == "simulation":
        return simulation
    clients = clients_of(train, plan.clients, plan.noise_seed, program.held_out)
    if plan.aggregator == "none":
        return InProcess(clients)
    return SecureInProcess(
        clients,
        program.sums(),
        plan.aggregator,
        assumptions=plan.assumptions,
        dropouts=DropOuts.of_share(plan.drop_share, len(clients), plan.seed),
    )


def begin_with(folder: Path, program: Program[Any], item_ids: NDArray) -> None:
    """Make a program start from the basis of a saved model, matched by item ids."""
    model = Recommender.load(folder)
    if not isinstance(model, Spectral) or not isinstance(program, SpectralProgram):
        raise UsageError(f"{folder}: only a model of spectral has a basis to begin with")
    new = len(np.setdiff1d(item_ids, np.asarray(model.item_ids)))
    if new:
        warnings.warn(
            f"{folder}: does not know {new:,} of {len(item_ids):,} items, which start from zero",
            DataWarning,
            stacklevel=2,
        )
    program.start_from(known_rows(model.basis(), model.item_ids, item_ids))


def known_rows(basis: NDArray, ids: NDArray | None, wanted: NDArray) -> NDArray:
    """Return the rows of a basis for another catalogue, with zeros for unknown items."""
    places = {item: row for row, item in enumerate(np.asarray(ids).tolist())}
    rows = np.zeros((len(wanted), basis.shape[1]), basis.dtype)
    for row, item in enumerate(wanted.tolist()):
        if (place := places.get(item)) is not None:
            rows[row] = basis[place]
    return rows


def _centrally_computed(plan: Plan, recommender: Recommender) -> dict[str, Any]:
    """Return the description of a centralised computation, as `Program.describe` does."""
    rank = recommender.config.low_pass_rank
    steps = None if plan.solver == "converged" else plan.rounds or DEFAULT_ROUNDS
    return {
        "rank": rank,
        "rounds": steps,
        "multiplications": steps,
        "solver": plan.solver if rank else None,
    }


def peak_rss_mb() -> float:
    """Return the peak resident memory of this process, in MB."""
    units = 1024**2 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / units


def run(dataset: Dataset, plan: Plan, phases: Phases = QUIET) -> Result:
    """Fit and evaluate the model of a plan."""
    with threading.limit(plan.threads) as threads:
        return _run(dataset, plan, threads, phases)


class Stopwatch:
    """Stopwatch of wall and CPU seconds, for fitting and, after `fitted`, for ranking."""

    def __init__(self) -> None:
        self._marks = [self._now()]

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()

    def fitted(self) -> None:
        self._marks.append(self._now())

    def row(self) -> dict[str, float]:
        (wall, cpu), (fitted, fitted_cpu) = self._marks
        done, done_cpu = self._now()
        return {
            "fit_seconds": fitted - wall,
            "eval_seconds": done - fitted,
            "fit_cpu_seconds": fitted_cpu - cpu,
            "eval_cpu_seconds": done_cpu - fitted_cpu,
            "cpu_seconds": done_cpu - cpu,
            "peak_rss_mb": peak_rss_mb(),
        }


def row_of(
    plan: Plan,
    data: Mapping[str, Any],
    computed: Mapping[str, Any],
    ledger: Ledger | None,
    cohort: int,
    measured: Mapping[str, Any],
    threads: int,
) -> dict[str, Any]:
    """Return a result row.

    `data` describes the data set, `computed` the computation, and `measured` has metrics and times.
    """
    return {
        "dataset": data["dataset"],
        "model": plan.model_name,
        "method": plan.method,
        "preset": plan.preset,
        "runtime": plan.runtime if ledger else "none",
        "aggregator": plan.aggregator,
        "sums": 0,
        "epsilon": None,
        "epsilon_replacing": None,
        "delta": None,
        **computed,
        **data,
        "cohort": cohort if ledger else None,
        "drop_share": plan.drop_share if ledger else None,
        **measured,
        "bytes_up_per_client": ledger.bytes_up if ledger else 0,
        "bytes_down_per_client": ledger.bytes_down if ledger else 0,
        "threads": threads,
        "seed": plan.seed,
        **({"secret_noise": True} if plan.secret_noise else {}),
        "version": __version__,
    }


def _run(dataset: Dataset, plan: Plan, threads: int, phases: Phases) -> Result:
    train = dataset.train
    recommender = plan.recommender(dataset.name, train.n_items)
    watch = Stopwatch()
    ledger = None
    cohort = train.n_users
    if plan.program is None:
        _fit_centrally(recommender, train, plan, phases)
        computed = _centrally_computed(plan, recommender)
    else:
        n_clients = plan.clients or train.n_users
        settings = plan.settings(recommender, train.n_items, n_clients)
        program = program_of(settings, train.n_users, train.n_items)
        if plan.warm is not None:
            begin_with(plan.warm, program, train.item_ids)
        simulation = Simulation(
            train, n_clients, plan.noise_seed, noise_at_once=True, held_out=program.held_out
        )
        runtime = _runtime(plan, program, train, simulation)
        components, ledger = execute(
            program.steps(),
            runtime,
            lambda name: phases(f"{plan.method}: sum of {name}")(0, 1),
            program.delta,
        )
        computed = program.describe() | {"sums": ledger.sums}
        if isinstance(runtime, SecureInProcess):
            cohort = len(runtime.survivors)
        elif plan.clients:
            cohort = plan.clients
        if runtime is simulation:
            components = simulation.with_factors(program, components)
        recommender.use(components, train.item_ids)
    watch.fitted()
    metrics = evaluate(recommender, dataset, progress=phases(f"{plan.model_name}: ranking"))
    measured = metrics.full_row() | watch.row()
    data = {
        "dataset": dataset.name,
        "users": train.n_users,
        "items": train.n_items,
    }
    row = row_of(plan, data, computed, ledger, cohort, measured, threads)
    return Result(row, recommender, metrics, ledger)
