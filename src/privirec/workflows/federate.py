"""A whole federation on this machine, with real processes, TLS and any aggregator, evaluated."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privirec import threads as threading
from privirec.carriers.child_processes import SERVER
from privirec.carriers.flower import launch
from privirec.carriers.https.listening import CLIENT_NEEDS, SERVER_NEEDS, check_installed
from privirec.data.interactions import Dataset, Interactions
from privirec.dp.gaussian import LARGEST_EPSILON
from privirec.dp.loss import Loss
from privirec.durable import file_sha256
from privirec.errors import FederationError, UsageError
from privirec.evaluation import evaluate
from privirec.federated.programs import PROGRAMS, PrivirecK, program_of
from privirec.models import Popularity, Recommender
from privirec.models.artifact import ARRAYS, check_replaceable, read_manifest
from privirec.privacy.ledger import Ledger
from privirec.privacy.policy import Policy, allowing
from privirec.report.progress import QUIET, Phases
from privirec.runtime.network.pledges import Pledges
from privirec.runtime.network.run_plan import RunPlan
from privirec.runtime.terms import (
    CORRUPT_SHARE,
    DEFAULT_AGGREGATOR,
    DEFAULT_MODEL,
    DROPPED_SHARE,
    SMALLEST_COHORT,
    RunTerms,
)
from privirec.secagg import ServerModel, protocol
from privirec.version import __version__
from privirec.workflows.plan import Plan, gives_away
from privirec.workflows.plan import outlook as outlook_of
from privirec.workflows.run import run
from privirec.workflows.timeline import Timeline

if TYPE_CHECKING:
    from privirec.carriers.one_machine import OneMachine


@dataclass(frozen=True)
class FederateRequest:
    """Settings of a federation on one machine."""

    plan: Plan
    clients: int
    aggregator: str = DEFAULT_AGGREGATOR
    corrupt_share: float = CORRUPT_SHARE
    dropped_share: float = DROPPED_SHARE
    keep: Path | None = None
    """Folder for keys, logs and client folders; if None, they are removed at the end."""
    check: bool = False
    """If true, also run the simulation and compare the saved arrays."""
    server: ServerModel = ServerModel.ACTIVE
    """Threat model for the server: active or semi-honest."""
    compare: bool = False
    """If true, also measure an exact run and popularity alone, on this machine."""
    carrier: str = "flower"
    """Transport of the messages: flower or https."""


def federate(
    dataset: Dataset,
    request: FederateRequest,
    save: Path | None = None,
    watch: Any = lambda status: None,
    phases: Phases = QUIET,
) -> dict[str, Any]:
    """Run the federation, measure the model, clean up, and return the result row."""
    check_carrier(request.carrier)
    if request.plan.program is None:
        raise UsageError(f"a federation needs a --method with clients: {', '.join(PROGRAMS)}")
    if save is not None:
        check_replaceable(save)  # Fails before the run, not after it.
    if request.check and not protocol(request.aggregator).is_exact:
        raise UsageError(
            f"--check compares bit for bit, and {request.aggregator} leaves noise in its sums"
        )
    if request.check and request.plan.noisy:
        raise UsageError(
            f"--check compares bit for bit, and clients of {request.plan.method} add noise that "
            "nobody else knows"
        )
    if request.check and request.plan.program.validates:
        raise UsageError(
            f"--check compares bit for bit, and clients of {request.plan.method} keep back items "
            "that nobody else knows"
        )
    if request.keep is not None and request.keep.exists() and any(request.keep.iterdir()):
        raise UsageError(f"{request.keep}: not empty")
    folder = request.keep or Path(tempfile.mkdtemp(prefix="privirec-federation-"))
    try:
        return _federate(dataset, request, folder, save, watch, phases)
    finally:
        if request.keep is None:
            shutil.rmtree(folder, ignore_errors=True)


def _federate(
    dataset: Dataset,
    request: FederateRequest,
    folder: Path,
    save: Path | None,
    watch: Any,
    phases: Phases,
) -> dict[str, Any]:
    from privirec.runtime.network.runs import RunFile  # noqa: PLC0415

    plan, train = request.plan, dataset.train
    recommender = plan.recommender(dataset.name, train.n_items)
    settings = plan.settings(recommender, train.n_items, request.clients)
    program = program_of(settings, train.n_users, train.n_items)
    terms = RunTerms(
        settings=program.settings,
        aggregator=request.aggregator,
        corrupt_share=request.corrupt_share,
        dropped_share=request.dropped_share,
        smallest_cohort=min(SMALLEST_COHORT, request.clients),
        server=request.server,
    )
    policy = _policy(terms, train, request.clients)
    file = RunFile(
        terms=terms,
        model=plan.model_name,
        config=recommender.config.model_dump(),
        threads=plan.threads,
        manifest={
            "gives_away": gives_away(plan.method, epsilon=getattr(settings, "epsilon", None)),
            "dataset": dataset.name,
        },
    )
    began = time.perf_counter()
    with _network(request.carrier, folder) as network:
        network.prepare(train, request.clients, policy)
        network.start()
        started = time.perf_counter()
        timeline = Timeline(watch)
        result = network.run("federation", file, timeline)
        done = time.perf_counter()
        peaks = dict(network.peaks)
    if result["reason"]:
        raise FederationError(result["reason"])
    artifact = folder / "server" / "runs" / "federation" / "model"
    ended = time.perf_counter()
    model = Recommender.load(artifact, mmap=False)
    with threading.limit(plan.threads) as threads:
        metrics = evaluate(model, dataset, progress=phases(f"{plan.model_name}: ranking"))
    expected = Ledger.planned(program.plan())
    row: dict[str, Any] = {
        "dataset": dataset.name,
        "model": plan.model_name,
        "method": plan.method,
        "preset": plan.preset,
        "runtime": request.carrier,
        "aggregator": request.aggregator,
        "server_model": request.server.value,
        **program.describe(),
        "clients": request.clients,
        "dropped": drop_outs(artifact),
        "users": train.n_users,
        "items": train.n_items,
        **metrics.as_row(),
        "start_seconds": started - began,
        "fit_seconds": done - started,
        "stop_seconds": ended - done,
        "eval_seconds": time.perf_counter() - ended,
        "server_cpu_seconds": result["cpu_seconds"],
        "peak_rss_mb": peaks.get(SERVER, 0.0),
        "peak_client_rss_mb": max(
            (peak for name, peak in peaks.items() if name != SERVER), default=0.0
        ),
        "bytes_up_per_client": result["bytes_up_per_client"],
        "bytes_down_per_client": result["bytes_down_per_client"],
        "planned_bytes_up_per_client": expected.bytes_up,
        "planned_bytes_down_per_client": expected.bytes_down,
        "timeline": timeline.rows(read_manifest(artifact)[1]["ledger"]),
        "model_sha256": file_sha256(artifact / ARRAYS),
        "threads": threads,
        "seed": plan.seed,
        "version": __version__,
    }
    row |= {name: result[name] for name in ("validated", "rounds_run") if name in result}
    if request.compare:
        row |= _without_noise(dataset, plan, phases)
    if request.check:
        row["same_as_simulation"] = _same_as_simulation(dataset, plan, artifact, phases)
    if save is not None:
        _copy(artifact, save)
    return row


def check_carrier(carrier: str) -> None:
    """Raise an error of one line if the libraries of a carrier are not installed."""
    if carrier == "https":
        check_installed((*SERVER_NEEDS, *CLIENT_NEEDS))
    else:
        launch.check_flower()


def _network(carrier: str, folder: Path) -> OneMachine:
    """Return the server and clients as processes of this machine.

    Imports are local, because the libraries of the other carrier may be missing.
    """
    if carrier == "https":
        from privirec.carriers.https.one_machine import HttpsNetwork  # noqa: PLC0415

        return HttpsNetwork(folder)
    from privirec.carriers.flower.one_machine import FlowerNetwork  # noqa: PLC0415

    return FlowerNetwork(folder)


def outlook(dataset: Dataset, request: FederateRequest) -> str | None:
    """Return a sentence on the accuracy to expect from a noisy program, before the run."""
    plan, train = request.plan, dataset.train
    recommender = plan.recommender(dataset.name, train.n_items)
    settings = plan.settings(recommender, train.n_items, request.clients)
    return outlook_of(settings, train.n_users, train.n_items)


def promise_kept(row: dict[str, Any]) -> str:
    """Return a sentence on the promise of a run and its cost in accuracy."""
    sentence = (
        f"epsilon {row['epsilon']:.3g} at delta {row['delta']:g} for every person: NDCG@20 "
        f"{row['ndcg@20']:.4f}"
    )
    if "exact_ndcg@20" in row:
        sentence += (
            f"; without privacy {row['exact_ndcg@20']:.4f} ({DEFAULT_MODEL}, exact sums), by "
            f"popularity alone {row['popularity_ndcg@20']:.4f}"
        )
    return sentence


def _policy(terms: RunTerms, train: Interactions, clients: int) -> Policy:
    """Return the policy of the clients, which allows this run and nothing more.

    The federation is one person's experiment. The policy therefore names everything that the run
    asks for, and requires no more people than the data set has.
    """
    trial = RunPlan(
        run="0" * 32,
        version=__version__,
        terms=terms,
        n_items=train.n_items,
        catalogue="",
        roster="",
        clients=clients,
        pledges=Pledges.unsigned({0: train.n_users}),
    )
    asked, usual = trial.for_policy(), Policy()
    corrupt = trial.statement().corrupt
    honest = max(terms.least_clients(clients) - corrupt, 0) * (train.n_users // clients)
    others = max(honest - -(-train.n_users // clients), 0)
    in_use = int(np.count_nonzero(train.item_degrees))
    opened = sum(one.opened(train.n_items, in_use).share for one in trial.sums())
    loss = Loss.together(one.protection.loss for one in trial.sums() if one.protection)
    # If the cost exceeds the limit of any policy, the clients refuse with their own message.
    cost = min(loss.epsilon(usual.delta), LARGEST_EPSILON)
    room = 10_000_000  # Set-up, headers, and a few messages that are sent twice.
    return allowing(
        asked.exact,
        aggregators=(terms.aggregator,),
        smallest_cohort=terms.smallest_cohort,
        most_sums=asked.sums,
        most_bytes_up=2 * asked.bytes_up + room,
        most_bytes_down=2 * asked.bytes_down + room,
        fewest_other_people=min(usual.fewest_other_people, others),
        smallest_change=max(1, min(usual.smallest_change, honest)),
        # If clients drop out, fewer items are in use, and the opened share is larger.
        largest_opened_share=max(2 * opened, usual.largest_opened_share),
        largest_item_share=1.0,
        largest_item_leverage=1.0,
        corrupt_share=terms.corrupt_share,
        server=terms.server,
        most_epsilon=max(usual.most_epsilon, cost),
        most_epsilon_per_period=max(usual.most_epsilon_per_period, cost),
    )


def _without_noise(dataset: Dataset, plan: Plan, phases: Phases) -> dict[str, float]:
    """Return NDCG@20 of an exact run, and of popularity alone."""
    exact = Plan(model=DEFAULT_MODEL, method=PrivirecK.name, seed=plan.seed, threads=plan.threads)
    popular = evaluate(
        Popularity().fit(dataset.train), dataset, progress=phases("popularity: ranking")
    )
    return {
        "exact_ndcg@20": run(dataset, exact, phases).row["ndcg@20"],
        "popularity_ndcg@20": popular.as_row()["ndcg@20"],
    }


def _same_as_simulation(dataset: Dataset, plan: Plan, artifact: Path, phases: Phases) -> bool:
    alone = replace(plan, runtime="simulation", clients=None, aggregator="none")
    with tempfile.TemporaryDirectory(prefix="privirec-simulation-") as folder:
        saved = run(dataset, alone, phases).recommender.save(Path(folder) / "model")
        return file_sha256(saved / ARRAYS) == file_sha256(artifact / ARRAYS)


def _copy(saved: Path, save: Path) -> None:
    """Copy an artifact to `save` atomically, replacing an earlier one."""
    check_replaceable(save)
    save.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{save.name}-", dir=save.parent) as beside:
        fresh, old = Path(beside) / "new", Path(beside) / "old"
        shutil.copytree(saved, fresh)
        if save.exists():
            save.rename(old)
        try:
            fresh.rename(save)
        except BaseException:
            if old.exists():
                old.rename(save)
            raise


def drop_outs(saved: Path) -> int:
    """Return the number of clients of the roster that are not in an artifact's sums."""
    federation = read_manifest(saved)[1]["federation"]
    return int(federation["clients"]) - int(federation["cohort"])
