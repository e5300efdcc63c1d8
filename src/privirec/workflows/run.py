"""One model on one data set by one method: fit, rank for everybody, measure."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privirec import threads as threading
from privirec.data.interactions import Dataset, Interactions
from privirec.errors import UsageError
from privirec.evaluation import Metrics, evaluate
from privirec.federated.programs import (
    DEFAULT_RANK,
    DEFAULT_ROUNDS,
    PROGRAMS,
    Program,
    ProgramSettings,
    preset_names,
    program_class,
    program_of,
)
from privirec.federated.programs import Spectral as SpectralProgram
from privirec.filters import randomized
from privirec.models import MODELS, Recommender, Spectral
from privirec.privacy.ledger import Ledger
from privirec.report.progress import QUIET, Phases
from privirec.runtime.execute import Runtime, execute
from privirec.runtime.local.client import clients_of
from privirec.runtime.local.in_process import InProcess
from privirec.runtime.local.secure import DropOuts, SecureInProcess
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.terms import (
    DEFAULT_MODEL,
    DROPPED_SHARE,
    DROPPED_SHARE_ON_ONE_MACHINE,
    Assumptions,
    computes,
)
from privirec.secagg import Guarantee, protocol, protocol_names
from privirec.version import __version__

CENTRALIZED = "centralized"
"""The method without clients: all histories on one machine."""
PUBLISHED = "published"
"""The preset that changes no program: the models' published settings."""
RUNTIMES = ("simulation", "in-process")
SOLVERS = ("converged", "power-1qr", "power-2qr")

IN_THE_CLEAR = (
    "Warning: without secure aggregation the server sees every client's contribution in the clear."
)
BLURRED = (
    "Warning: this is not secure aggregation: the server sees every client's contribution, "
    "blurred; docs/correlated-noise.md says what that hides."
)

CENTRAL_MODEL = (
    "Warning: computed on one machine from all histories; no history is in it as such, but most "
    "can be worked out of an exact item-item matrix: whoever holds the model can run privirec audit"
)
"""What a model without clients gives away."""


def server_sees(aggregator: str) -> str | None:
    """The warning where a server sees more than sums. Shown before anybody is asked."""
    guarantee = protocol(aggregator).guarantee
    return {Guarantee.NONE: IN_THE_CLEAR, Guarantee.STATISTICAL: BLURRED}.get(guarantee)


def methods() -> list[str]:
    """On one machine, or with the clients by one of the programs."""
    return [CENTRALIZED, *PROGRAMS]


def presets() -> list[str]:
    return [PUBLISHED, *preset_names()]


def gives_away(method: str, dataset: str | None = None) -> str | None:
    """What a release gives away, in one sentence. Shown by every command that makes one.

    `dataset` is the one that was released, where it can be loaded by name.
    """
    if method not in PROGRAMS:
        return None
    beginning = "Gives away" if PROGRAMS[method].protects else "Warning:"
    warning = f"{beginning} {PROGRAMS[method].gives_away}"
    if dataset is None:
        return f"{warning}; privirec audit --release {method} shows it on any data set"
    return f"{warning}; see for yourself: privirec audit --release {method} --dataset {dataset}"


def is_noisy(method: str) -> bool:
    """Whether its clients add noise of their own."""
    return method in PROGRAMS and PROGRAMS[method].protects


def usual_dropped_share(method: str) -> float:
    """Clients that may drop out of a run on one machine. Noise is measured for those of a network,
    so that its figures are those of a network."""
    return DROPPED_SHARE if is_noisy(method) else DROPPED_SHARE_ON_ONE_MACHINE


@dataclass(frozen=True)
class Plan:
    """What to run. Settings left None come from the preset."""

    model: str | None = None
    """None: the one that the method is made for, or the usual one."""
    method: str = CENTRALIZED
    preset: str = PUBLISHED
    rank: int | None = None
    rounds: int | None = None
    head: int | None = None
    """Only so many of the most popular items, for a model that knows of a head."""
    solver: str = "converged"
    """Centralised singular vectors: converged, or `rounds` power steps with one or two QR each."""
    runtime: str = "simulation"
    clients: int | None = None
    aggregator: str = "none"
    drop_share: float = 0.0
    """Share of the clients that drop out before the first sum (secure aggregation only)."""
    assumptions: Assumptions | None = None
    seed: int = 0
    threads: int | None = None
    federated: dict[str, Any] = field(default_factory=dict)
    """Further settings of the federated program, by name."""
    config: dict[str, Any] = field(default_factory=dict)
    """Settings of the model, by name, instead of its published ones."""
    warm: Path | None = None
    """A saved model with whose basis the program begins, if it can."""

    @property
    def program(self) -> type[Program[Any]] | None:
        """What the clients compute together, if there are any."""
        return None if self.method == CENTRALIZED else program_class(self.method)

    @property
    def model_name(self) -> str:
        made_for = self.program.usual_model if self.program else None
        return self.model or made_for or DEFAULT_MODEL

    @property
    def noisy(self) -> bool:
        """Whether clients add noise of their own, so that it matters how many they are."""
        return is_noisy(self.method)

    def check(self) -> None:
        """Refuse what would do nothing: nobody should believe that it did."""
        choices = (
            ("model", self.model_name, list(MODELS)),
            ("method", self.method, methods()),
            ("preset", self.preset, presets()),
            ("runtime", self.runtime, RUNTIMES),
            ("solver", self.solver, SOLVERS),
            ("aggregator", self.aggregator, protocol_names()),
        )
        for what, chosen, known in choices:
            if chosen not in known:
                raise UsageError(f"no {what} {chosen!r}; there are {', '.join(known)}")
        if self.program is None:
            idle = {
                f"the preset {self.preset}": self.preset != PUBLISHED,
                "a runtime": self.runtime != "simulation",
                "clients": self.clients,
                "an aggregator": self.aggregator != "none",
                "drop-outs": self.drop_share,
                **{key.replace("_", "-"): True for key in self.federated},
            }
            for name, given in idle.items():
                if given:
                    raise UsageError(f"{name} does not go with the method {self.method}")
            if self.rounds and self.solver == "converged":
                raise UsageError(
                    f"rounds go with {self.method} only for the solvers power-1qr, -2qr"
                )
            return
        if self.solver != "converged":
            raise UsageError(f"a solver is chosen for {CENTRALIZED}; with clients --rounds counts")
        if self.runtime == "simulation" and (
            (self.clients and not self.noisy) or self.drop_share or self.aggregator != "none"
        ):
            raise UsageError("clients, drop-outs and aggregators need --runtime in-process")
        if self.warm is not None and not issubclass(self.program, SpectralProgram):
            raise UsageError(f"{self.method} does not begin with an earlier model")
        if self.drop_share and self.aggregator == "none":
            raise UsageError("drop-outs need secure aggregation: --aggregator secagg+")

    def recommender(self, dataset: str, n_items: int) -> Recommender:
        """The model with its published settings for this data set (its defaults elsewhere).

        A rank that nobody asked for is cut to the catalogue. The low-pass filter of a low-rank
        program takes the leading vectors, as many as the model has elsewhere (S_p in the paper's
        diagram).
        """
        self.check()
        kind = MODELS[self.model_name]
        config = kind.published.get(dataset, kind.config_type())
        if self.config:
            config = kind(**self.config).config
        if self.head is not None:
            if "head" not in kind.config_type.model_fields:
                raise UsageError(f"{self.model_name} does not know a head of popular items")
            config = config.model_copy(update={"head": self.head})
        program = self.program
        if program is not None and program.usual_model == self.model_name:
            chosen = dict(program.preset_models.get(self.preset, {}))
            if "rank" in program.presets.get(self.preset, {}):
                chosen["rank"] = program.presets[self.preset]["rank"]
            config = config.model_copy(update=chosen)
        usual = config.low_pass_rank
        low_rank = program is not None and program.low_rank
        if program is not None and program.usual_model == self.model_name:
            low_rank = False  # it takes all vectors, and asks for as many as it takes
        if not usual:
            if self.rank is not None and not low_rank:
                raise UsageError(
                    f"{self.model_name} has no low-pass filter whose rank could be set"
                )
            return kind(config)
        rank = min(usual, n_items) if self.rank is None else self.rank
        return kind(config.model_copy(update={"rank": min(usual, rank) if low_rank else rank}))

    def settings(self, recommender: Recommender, n_items: int, n_clients: int) -> ProgramSettings:
        """How the components of this model are computed with so many clients."""
        program = self.program
        if program is None:
            raise UsageError(f"the method {self.method} asks no clients")
        config = recommender.config
        rank = config.low_pass_rank
        if program.low_rank:
            rank = self.rank or rank or min(DEFAULT_RANK, n_items)
        if not computes(program, config):
            raise UsageError(f"{self.method} does not compute what {self.model_name} needs")
        offered = {**config.needs, "rank": rank, "seed": self.seed}
        head = program.settings_type.model_fields.get("head")
        if head is not None and "head" not in config.needs and head.default is not None:
            if self.head is None:
                raise UsageError(f"{self.method} needs a head: how many of the most popular items")
            offered["head"] = self.head
        if self.noisy:
            assumed = self.assumptions or Assumptions()
            offered |= {"clients": n_clients, "contributors": assumed.contributors(n_clients)}
        given = dict(self.federated)
        if self.warm is not None:
            given["start"] = "basis"
        if self.rounds is not None:
            given["rounds"] = self.rounds
        preset = None if self.preset == PUBLISHED else self.preset
        settings: ProgramSettings = program.settings_from(given, offered, preset)
        return settings


def read_settings(path: Path) -> dict[str, Any]:
    """Method, settings of its program, model and config, as `privirec tune` saves them."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read as settings ({error})") from None
    kinds = {"method": str, "program": dict, "model": str, "config": dict}
    if not isinstance(found, dict) or {key: type(found[key]) for key in found} != kinds:
        raise UsageError(f"{path}: settings have {', '.join(kinds)}")
    return found


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
            "gives_away": gives_away(self.row["method"], self.row["dataset"]) or CENTRAL_MODEL,
        }


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
    clients = clients_of(train, plan.clients, plan.seed)
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
    """Let a program begin with the basis of a saved model, matched by item ids."""
    model = Recommender.load(folder)
    if not isinstance(model, Spectral) or not isinstance(program, SpectralProgram):
        raise UsageError(f"{folder}: only a model of spectral has a basis to begin with")
    program.start_from(known_rows(model.basis(), model.item_ids, item_ids))


def known_rows(basis: NDArray, ids: NDArray | None, wanted: NDArray) -> NDArray:
    """The rows of a basis for another catalogue: zeros where it does not know an item."""
    places = {item: row for row, item in enumerate(np.asarray(ids).tolist())}
    rows = np.zeros((len(wanted), basis.shape[1]), basis.dtype)
    for row, item in enumerate(wanted.tolist()):
        if (place := places.get(item)) is not None:
            rows[row] = basis[place]
    return rows


def _centrally_computed(plan: Plan, recommender: Recommender) -> dict[str, Any]:
    """What a row says of the computation, as `Program.describe` does."""
    rank = recommender.config.low_pass_rank
    steps = None if plan.solver == "converged" else plan.rounds or DEFAULT_ROUNDS
    return {
        "rank": rank,
        "rounds": steps,
        "multiplications": steps,
        "solver": plan.solver if rank else None,
    }


def peak_rss_mb() -> float:
    """Largest resident size of this process so far."""
    units = 1024**2 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / units


def run(dataset: Dataset, plan: Plan, phases: Phases = QUIET) -> Result:
    """Fit and evaluate."""
    with threading.limit(plan.threads) as threads:
        return _run(dataset, plan, threads, phases)


class Stopwatch:
    """Wall and CPU seconds of fitting and, from `fitted` on, of ranking."""

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
    """One row of results. `data` says which, `computed` how, `measured` how well and how fast."""
    return {
        "dataset": data["dataset"],
        "model": plan.model_name,
        "method": plan.method,
        "preset": plan.preset,
        "runtime": plan.runtime if ledger else "none",
        "aggregator": plan.aggregator,
        "sums": 0,
        "epsilon": None,
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
        computed = program.describe() | {"sums": len(program.sums())}
        if plan.warm is not None:
            begin_with(plan.warm, program, train.item_ids)
        simulation = Simulation(train, n_clients, plan.seed, noise_at_once=True)
        runtime = _runtime(plan, program, train, simulation)
        components, ledger = execute(
            program.steps(), runtime, lambda name: phases(f"{plan.method}: sum of {name}")(0, 1)
        )
        if isinstance(runtime, SecureInProcess):
            cohort = len(runtime.survivors)
        elif plan.clients:
            cohort = plan.clients
        if runtime is simulation:
            components = simulation.with_factors(program, components)
        recommender.use(components, train.item_ids)
    watch.fitted()
    metrics = evaluate(recommender, dataset, progress=phases(f"{plan.model_name}: ranking"))
    measured = metrics.as_row() | watch.row()
    data = {
        "dataset": dataset.name,
        "users": train.n_users,
        "items": train.n_items,
        "fingerprint": train.fingerprint()[:16],
    }
    row = row_of(plan, data, computed, ledger, cohort, measured, threads)
    return Result(row, recommender, metrics, ledger)
