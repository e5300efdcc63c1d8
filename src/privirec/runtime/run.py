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
from privirec.data.splits import at_most
from privirec.errors import DataWarning, UsageError
from privirec.evaluation import Metrics, evaluate
from privirec.federated.programs import PROGRAMS, Program, Protected, SpectralProgram, program_of
from privirec.filters import randomized
from privirec.models import Recommender, Spectral
from privirec.models.base import CENTRAL_MODEL
from privirec.privacy.explain import promised_together
from privirec.privacy.ledger import Ledger
from privirec.privacy.worth import NOTHING, simulated
from privirec.progress import QUIET, Phases
from privirec.runtime.earlier import EarlierModel, with_earlier
from privirec.runtime.execute import Runtime, execute
from privirec.runtime.local.client import clients_of
from privirec.runtime.local.in_process import InProcess
from privirec.runtime.local.secure import DropOuts, SecureInProcess
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.local.two_servers import TwoServers
from privirec.runtime.reveals import gives_away
from privirec.runtime.spec import CentralizedSettings, OneProcess, RunSpec
from privirec.secagg import TWO_SERVERS
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
        ledger = self.ledger.as_rows() if self.ledger else []
        earlier = (self.recommender.components.origin or {}).get("earlier", [])
        together = promised_together({"earlier": earlier, "ledger": ledger})
        return {
            "run": self.row,
            "ledger": ledger,
            "promised": " ".join([self.promised or NOTHING, *together]),
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


def check(spec: RunSpec, process: OneProcess) -> None:
    """Raise UsageError for settings that would have no effect in this process."""
    aggregates = "aggregator" in spec.model_fields_set and spec.aggregator != "none"
    method = spec.method
    if isinstance(spec.program, CentralizedSettings):
        idle = {
            "a runtime": process.runtime != "simulation",
            "clients": process.clients,
            "an earlier model": process.after,
            "an aggregator": aggregates,
            "drop-outs": process.drop_share,
            "secret noise": process.secret_noise,
            "a limit of items": process.most_items,
        }
        for name, given in idle.items():
            if given:
                raise UsageError(f"{name} does not go with the method {method}")
        if spec.program.solver == "converged" and "rounds" in spec.program.given():
            raise UsageError(f"rounds go with {method} only for the solvers power-1qr, -2qr")
        return
    silos = process.clients and not spec.protected
    if process.runtime == "simulation" and (
        silos or process.drop_share or (aggregates and spec.aggregator != TWO_SERVERS)
    ):
        raise UsageError("clients, drop-outs and aggregators need --runtime in-process")
    if process.after is not None and not issubclass(
        PROGRAMS.named(method), SpectralProgram | Protected
    ):
        raise UsageError(f"{method} does not go on from an earlier model")
    if process.drop_share and spec.aggregator in ("none", TWO_SERVERS):
        raise UsageError("drop-outs need secure aggregation: --aggregator secagg+")


def _fit_centrally(
    recommender: Recommender,
    train: Interactions,
    model: str,
    settings: CentralizedSettings,
    phases: Phases,
) -> dict[str, Any]:
    """Fit without clients, and describe the computation as `Program.describe` does."""
    report = phases(f"{model}: singular vectors")
    rank, steps = recommender.config.low_pass_rank, None
    if settings.solver == "converged":
        recommender.fit(train, seed=settings.seed, progress=report)
    elif not rank:
        raise UsageError(f"{model} has no singular vectors to solve for")
    else:
        steps = settings.rounds
        qr = 2 if settings.solver == "power-2qr" else 1
        components = randomized(train, rank=rank, steps=steps, qr_per_step=qr, seed=settings.seed)
        recommender.use(components, train.item_ids)
    solver = settings.solver if rank else None
    return {"rank": rank, "rounds": steps, "multiplications": steps, "solver": solver}


def _runtime(
    spec: RunSpec,
    process: OneProcess,
    program: Program[Any],
    train: Interactions,
    simulation: Simulation,
) -> Runtime:
    if process.runtime == "simulation":
        return simulation
    seed = spec.program.seed
    clients = clients_of(train, process.clients, process.noise_seed(seed), program.held_out)
    if spec.aggregator == "none":
        return InProcess(clients)
    if spec.aggregator == TWO_SERVERS:
        limit = process.limit_of(spec) if process.clients is None else None
        return TwoServers(clients, process.noise_seed(seed), limit)
    return SecureInProcess(
        clients,
        program.sums(),
        spec.aggregator,
        assumptions=spec,
        dropouts=DropOuts.of_share(process.drop_share, len(clients), seed),
    )


def program_for(spec: RunSpec, after: Path | None, n_users: int, item_ids: NDArray) -> Program[Any]:
    """Return the program of a resolved spec, which goes on from the saved model `after`."""
    program = program_of(spec.program, n_users, len(item_ids))
    if after is not None and isinstance(program, Protected):
        program.go_on_from(EarlierModel.read(after).over(item_ids))
    elif after is not None:
        _begin_with(after, program, item_ids)
    return program


def chosen_spec(
    spec: RunSpec, process: OneProcess, dataset: str, n_users: int, n_items: int
) -> RunSpec:
    """Return the spec with all settings, for the clients of this process."""
    check(spec, process)
    if process.after is not None and spec.protected:
        spec = spec.changed(after=EarlierModel.read(process.after).digest)
    elif process.after is not None:
        spec = spec.in_one_round()
    return spec.resolved(dataset, n_items, process.clients or n_users)


def _begin_with(folder: Path, program: Program[Any], item_ids: NDArray) -> None:
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


def peak_rss_mb() -> float:
    """Return the peak resident memory of this process, in MB."""
    units = 1024**2 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / units


def run(
    dataset: Dataset, spec: RunSpec, phases: Phases = QUIET, process: OneProcess | None = None
) -> Result:
    """Fit and evaluate the model of a spec in this process, by default in a simulation."""
    with threading.limit(spec.threads) as threads:
        return _run(dataset, spec, process or OneProcess(), threads, phases)


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
    spec: RunSpec,
    process: OneProcess,
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
        "model": spec.model,
        "method": spec.method,
        "preset": spec.preset,
        "runtime": process.runtime if ledger else "none",
        "aggregator": spec.aggregator if process.sums_by(spec) else "none",
        "sums": 0,
        "epsilon": None,
        "epsilon_replacing": None,
        "delta": None,
        **computed,
        **data,
        "cohort": cohort if ledger else None,
        "drop_share": process.drop_share if ledger else None,
        **measured,
        "bytes_up_per_client": ledger.bytes_up if ledger else 0,
        "bytes_down_per_client": ledger.bytes_down if ledger else 0,
        "threads": threads,
        "seed": spec.program.seed,
        **({"secret_noise": True} if process.secret_noise else {}),
        **({"most_items": limit} if (limit := process.limit_of(spec)) else {}),
        "version": __version__,
    }


def _run(
    dataset: Dataset, spec: RunSpec, process: OneProcess, threads: int, phases: Phases
) -> Result:
    train = dataset.train
    spec = chosen_spec(spec, process, dataset.name, train.n_users, train.n_items)
    recommender = spec.recommender()
    watch = Stopwatch()
    ledger = None
    cohort = train.n_users
    if isinstance(spec.program, CentralizedSettings):
        computed = _fit_centrally(recommender, train, spec.model, spec.program, phases)
    else:
        program = program_for(spec, process.after, train.n_users, train.item_ids)
        if limit := process.limit_of(spec):
            train = at_most(train, limit, spec.program.seed)
        by_servers = spec.protected and spec.aggregator == TWO_SERVERS
        simulation = Simulation(
            train,
            2 if by_servers else process.clients or train.n_users,
            process.noise_seed(spec.program.seed),
            noise_at_once=not by_servers,
            held_out=program.held_out,
        )
        runtime = _runtime(spec, process, program, train, simulation)
        components, ledger = execute(
            program.steps(),
            runtime,
            lambda name: phases(f"{spec.method}: sum of {name}")(0, 1),
            program.delta,
        )
        computed = program.describe() | {"sums": ledger.sums}
        if isinstance(runtime, SecureInProcess):
            cohort = len(runtime.survivors)
        elif process.clients:
            cohort = process.clients
        components = with_earlier(components, process.after)
        if runtime is simulation:
            components = simulation.with_factors(program, components)
        recommender.use(components, train.item_ids)
    watch.fitted()
    metrics = evaluate(recommender, dataset, progress=phases(f"{spec.model}: ranking"))
    measured = metrics.full_row() | watch.row()
    data = {
        "dataset": dataset.name,
        "users": train.n_users,
        "items": train.n_items,
    }
    row = row_of(spec, process, data, computed, ledger, cohort, measured, threads)
    return Result(row, recommender, metrics, ledger)
