"""One model on one data set by one method: fit, rank for everybody, measure."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from pydantic import ValidationError

from privirec import threads as threading
from privirec.data.interactions import Dataset, Interactions
from privirec.errors import UsageError
from privirec.evaluation import Metrics, evaluate
from privirec.federated.programs import DEFAULT_ROUNDS, FederatedSettings, paper, program
from privirec.filters import randomized
from privirec.models import MODELS, Recommender
from privirec.privacy.ledger import Ledger
from privirec.privacy.policy import Aggregator
from privirec.report.progress import QUIET, Phases
from privirec.runtime.execute import Runtime, execute
from privirec.runtime.local.in_process import InProcess, clients_of
from privirec.runtime.local.secure import Assumptions, DropOuts, SecureInProcess
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.plan import planned_sums
from privirec.version import __version__

Method = Literal["centralized", "privirec", "privirec-k"]
Preset = Literal["published", "paper"]
RuntimeName = Literal["simulation", "in-process"]
Solver = Literal["converged", "power-1qr", "power-2qr"]

IN_THE_CLEAR = (
    "Warning: without secure aggregation the server sees every client's contribution in the clear."
)


def gives_away(method: str, dataset: str = "synthetic:small") -> str | None:
    """What a release gives away, in one sentence. Shown by every command that makes one.

    `dataset` is one to see it on.
    """
    if method == "privirec":
        return (
            "Warning: the exact item-item matrix gives every history away, to the server and to "
            f"every client; see for yourself: privirec audit --dataset {dataset}"
        )
    if method == "privirec-k":
        return (
            "Warning: exact low-rank sums are not proven safe; rows of items with few users can be "
            "recovered from them when the rank is high."
        )
    return None


@dataclass(frozen=True)
class Plan:
    """What to run. Settings left None come from the preset."""

    model: str = "gf-cf"
    method: Method = "centralized"
    preset: Preset = "published"
    rank: int | None = None
    rounds: int | None = None
    solver: Solver = "converged"
    """Centralised singular vectors: converged, or `rounds` power steps with one or two QR each."""
    runtime: RuntimeName = "simulation"
    clients: int | None = None
    aggregator: Aggregator = "none"
    drop_share: float = 0.0
    """Share of the clients that drop out before the first sum (secure aggregation only)."""
    assumptions: Assumptions | None = None
    seed: int = 0
    threads: int | None = None
    federated: dict[str, Any] = field(default_factory=dict)
    """Further settings of the federated program, by name."""

    def check(self) -> None:
        """Refuse what would do nothing: nobody should believe that it did."""
        if self.model not in MODELS:
            raise UsageError(f"no model {self.model!r}; there are {', '.join(MODELS)}")
        if self.method == "centralized":
            idle = {
                "the preset paper": self.preset == "paper",
                "a runtime": self.runtime != "simulation",
                "clients": self.clients,
                "an aggregator": self.aggregator != "none",
                "drop-outs": self.drop_share,
                **{key.replace("_", "-"): True for key in self.federated},
            }
            for name, given in idle.items():
                if given:
                    raise UsageError(f"{name} does not go with the method centralized")
            if self.rounds and self.solver == "converged":
                raise UsageError("rounds go with centralized only for the solvers power-1qr, -2qr")
            return
        if self.solver != "converged":
            raise UsageError("a solver is chosen for centralized; with clients --rounds counts")
        wrong = {"privirec": "eigenvalues", "privirec-k": "low_pass_from"}[self.method]
        if wrong in self.federated:
            raise UsageError(f"{wrong.replace('_', '-')} does not go with {self.method}")
        if self.runtime == "simulation" and (
            self.clients or self.drop_share or self.aggregator != "none"
        ):
            raise UsageError("clients, drop-outs and aggregators need --runtime in-process")
        if self.drop_share and self.aggregator == "none":
            raise UsageError("drop-outs need secure aggregation: --aggregator secagg+")

    def recommender(self, dataset: str, n_items: int) -> Recommender:
        """The model with its published settings for this data set (its defaults elsewhere).

        A rank that nobody asked for is cut to the catalogue. PriviRec-k's low-pass filter takes
        the leading vectors, as many as the model has elsewhere (S_p in the paper's diagram).
        """
        self.check()
        kind = MODELS[self.model]
        config = kind.published.get(dataset, kind.config_type())
        usual = config.low_pass_rank
        if not usual:
            if self.rank is not None and self.method != "privirec-k":
                raise UsageError(f"{self.model} has no low-pass filter whose rank could be set")
            return kind(config)
        rank = min(usual, n_items) if self.rank is None else self.rank
        if self.method == "privirec-k":
            rank = min(usual, rank)
        return kind(config.model_copy(update={"rank": rank}))

    def settings(self, recommender: Recommender, n_items: int) -> FederatedSettings:
        """How the components of this model are computed with the clients."""
        method = cast(Literal["privirec", "privirec-k"], self.method)
        config = recommender.config
        rank = config.low_pass_rank
        if method == "privirec-k":
            rank = self.rank or rank or min(256, n_items)
        alpha = config.normalisation.alpha
        if alpha is None:
            raise UsageError(f"{self.model} is not computed with clients yet, only centralized")
        changes: dict[str, Any] = {"alpha": alpha, "seed": self.seed}
        if self.rounds is not None:
            changes["rounds"] = self.rounds
        changes |= self.federated
        try:
            if self.preset == "paper":
                return paper(method, rank, **changes)
            return FederatedSettings(method=method, rank=rank, **changes)
        except ValidationError as error:
            first = error.errors()[0]
            raise UsageError(f"{first['loc'][0]}: {first['msg']}") from None


@dataclass
class Result:
    """A fitted model, how good it is and what it cost."""

    row: dict[str, Any]
    recommender: Recommender
    metrics: Metrics
    ledger: Ledger | None

    def manifest(self) -> dict[str, Any]:
        """What goes into the artifact beside the arrays."""
        return {
            "run": self.row,
            "ledger": self.ledger.as_rows() if self.ledger else [],
            "gives_away": gives_away(self.row["method"], self.row["dataset"])
            or "computed on one machine; holds no history itself",
        }


def _fit_centrally(
    recommender: Recommender, train: Interactions, plan: Plan, phases: Phases
) -> None:
    report = phases(f"{plan.model}: singular vectors")
    if plan.solver == "converged":
        recommender.fit(train, seed=plan.seed, progress=report)
        return
    rank = recommender.config.low_pass_rank
    if not rank:
        raise UsageError(f"{plan.model} has no singular vectors to solve for")
    components = randomized(
        train,
        rank=rank,
        steps=plan.rounds or DEFAULT_ROUNDS,
        qr_per_step=2 if plan.solver == "power-2qr" else 1,
        seed=plan.seed,
    )
    recommender.use(components, train.item_ids)


def _runtime(
    plan: Plan, settings: FederatedSettings, train: Interactions, simulation: Simulation
) -> Runtime:
    if plan.runtime == "simulation":
        return simulation
    clients = clients_of(train, plan.clients)
    if plan.aggregator == "none":
        return InProcess(clients)
    return SecureInProcess(
        clients,
        planned_sums(settings, train.n_users, train.n_items),
        plan.aggregator,
        assumptions=plan.assumptions,
        dropouts=DropOuts.of_share(plan.drop_share, len(clients), plan.seed),
    )


def peak_rss_mb() -> float:
    """Largest resident size of this process so far."""
    units = 1024**2 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / units


def run(dataset: Dataset, plan: Plan, phases: Phases = QUIET) -> Result:
    """Fit and evaluate."""
    with threading.limit(plan.threads) as threads:
        return _run(dataset, plan, threads, phases)


def _run(dataset: Dataset, plan: Plan, threads: int, phases: Phases) -> Result:
    train = dataset.train
    recommender = plan.recommender(dataset.name, train.n_items)
    wall, cpu = time.perf_counter(), time.process_time()
    ledger = settings = None
    cohort = train.n_users
    if plan.method == "centralized":
        _fit_centrally(recommender, train, plan, phases)
    else:
        settings = plan.settings(recommender, train.n_items)
        steps = program(settings, train.n_users, train.n_items)
        simulation = Simulation(train)
        runtime = _runtime(plan, settings, train, simulation)
        components, ledger = execute(
            steps, runtime, lambda name: phases(f"{plan.method}: sum of {name}")(0, 1)
        )
        if isinstance(runtime, SecureInProcess):
            cohort = len(runtime.survivors)
        elif plan.clients:
            cohort = plan.clients
        if plan.runtime == "simulation":
            components = simulation.with_factors(components, settings)
        recommender.use(components, train.item_ids)
    fitted, fitted_cpu = time.perf_counter(), time.process_time()
    metrics = evaluate(recommender, dataset, progress=phases(f"{plan.model}: ranking"))
    done, done_cpu = time.perf_counter(), time.process_time()
    row: dict[str, Any] = {
        "dataset": dataset.name,
        "model": plan.model,
        "method": plan.method,
        "preset": plan.preset,
        "runtime": plan.runtime if ledger else "none",
        "aggregator": plan.aggregator,
        "rank": settings.rank if settings else recommender.config.low_pass_rank,
        "rounds": settings.rounds if settings and settings.rank else None,
        "multiplications": settings.multiplications if settings and settings.rank else None,
        "solver": "power method" if settings and settings.rank else None,
        "users": train.n_users,
        "items": train.n_items,
        "fingerprint": train.fingerprint()[:16],
        "cohort": cohort if ledger else None,
        "drop_share": plan.drop_share if ledger else None,
        **metrics.as_row(),
        "fit_seconds": fitted - wall,
        "eval_seconds": done - fitted,
        "fit_cpu_seconds": fitted_cpu - cpu,
        "eval_cpu_seconds": done_cpu - fitted_cpu,
        "cpu_seconds": done_cpu - cpu,
        "peak_rss_mb": peak_rss_mb(),
        "bytes_up_per_client": ledger.bytes_up if ledger else 0,
        "bytes_down_per_client": ledger.bytes_down if ledger else 0,
        "threads": threads,
        "seed": plan.seed,
        "version": __version__,
    }
    if settings is None and row["rank"]:
        row["solver"] = plan.solver
        if plan.solver != "converged":
            steps_done = plan.rounds or DEFAULT_ROUNDS
            row |= {"rounds": steps_done, "multiplications": steps_done}
    if settings and settings.low_pass_from == "server" and settings.method == "privirec":
        row |= {"rounds": None, "multiplications": None, "solver": "converged, by the server"}
    return Result(row, recommender, metrics, ledger)
