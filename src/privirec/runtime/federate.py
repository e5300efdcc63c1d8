"""A whole federation on this machine, with real processes, TLS and any aggregator, evaluated."""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from privirec import threads as threading
from privirec.data.interactions import Dataset, Interactions
from privirec.durable import file_sha256
from privirec.errors import FederationError, UsageError
from privirec.evaluation import evaluate
from privirec.federated.dp.gaussian import LARGEST_EPSILON
from privirec.federated.programs import PROGRAMS, PrivirecK, program_of
from privirec.models import Popularity, Recommender
from privirec.models.artifact import ARRAYS, check_replaceable, read_manifest
from privirec.privacy.ledger import Ledger
from privirec.privacy.policy import Policy, allowing
from privirec.privacy.worth import figures, loss_of, worth
from privirec.progress import QUIET, Phases
from privirec.runtime.carriers import DEFAULT_CARRIER, installed_carrier
from privirec.runtime.child_processes import SERVER
from privirec.runtime.one_machine import OneMachine
from privirec.runtime.pledges import Pledges
from privirec.runtime.run import run
from privirec.runtime.run_plan import RunPlan
from privirec.runtime.spec import DEFAULT_MODEL, RunSpec
from privirec.runtime.timeline import Timeline
from privirec.secagg import protocol
from privirec.version import __version__


def federate(
    dataset: Dataset,
    spec: RunSpec,
    clients: int,
    *,
    carrier: str = DEFAULT_CARRIER,
    keep: Path | None = None,
    check: bool = False,
    compare: bool = False,
    save: Path | None = None,
    watch: Any = lambda status: None,
    phases: Phases = QUIET,
) -> dict[str, Any]:
    """Run a federation of processes on this machine, measure its model, and clean up.

    Parameters
    ----------
    spec
        The run. A cohort may be as small as the number of clients.
    clients
        Number of clients; each gets a part of the users.
    carrier
        Name of the carrier of the messages.
    keep
        Folder for keys, logs and client folders. By default they are removed at the end.
    check
        Also run the simulation, and compare the saved arrays.
    compare
        Also measure an exact run and popularity alone, on this machine.
    save
        Folder for a copy of the model.

    Returns
    -------
    The result row.
    """
    installed_carrier(carrier)  # fail before the run if a library is missing
    if save is not None:
        check_replaceable(save)  # fail before the run, not after it
    if check:
        _check_comparable(spec)
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise UsageError(f"{keep}: not empty")
    folder = keep or Path(tempfile.mkdtemp(prefix="privirec-federation-"))
    try:
        return _federate(
            dataset, spec, clients, carrier, folder, check, compare, save, watch, phases
        )
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)


def _check_comparable(spec: RunSpec) -> None:
    """Raise UsageError if the model of a simulation differs from the one of the clients."""
    program, reason = spec.federated, ""
    if not protocol(spec.aggregator).is_exact:
        reason = f"{spec.aggregator} leaves noise in its sums"
    elif spec.protected:
        reason = f"clients of {spec.method} add noise that nobody else knows"
    elif program is not None and program.validates:
        reason = f"clients of {spec.method} keep back items that nobody else knows"
    if reason:
        raise UsageError(f"--check compares bit for bit, and {reason}")


def for_clients(spec: RunSpec, dataset: Dataset, clients: int) -> RunSpec:
    """Return the spec with all settings, for clients that share the users of a data set."""
    if spec.federated is None:
        raise UsageError(f"a federation needs a --method with clients: {', '.join(PROGRAMS)}")
    cohort = min(spec.smallest_cohort, clients)
    named = spec.changed(smallest_cohort=cohort, notes=spec.notes | {"dataset": dataset.name})
    return named.for_roster(dataset.name, dataset.train.n_items, clients)


def _federate(
    dataset: Dataset,
    chosen: RunSpec,
    clients: int,
    carrier: str,
    folder: Path,
    check: bool,
    compare: bool,
    save: Path | None,
    watch: Any,
    phases: Phases,
) -> dict[str, Any]:
    train = dataset.train
    spec = for_clients(chosen, dataset, clients)
    program = program_of(spec.program, train.n_users, train.n_items)
    policy = _policy(spec, train, clients)
    began = time.perf_counter()
    with OneMachine(folder, carrier) as network:
        network.prepare(train, clients, policy)
        network.may_lose = spec.statement(clients, 1).dropped
        network.start()
        started = time.perf_counter()
        timeline = Timeline(watch)
        result = network.run("federation", spec, timeline)
        done = time.perf_counter()
        peaks = dict(network.peaks)
    if result["reason"]:
        raise FederationError(result["reason"])
    artifact = folder / "server" / "runs" / "federation" / "model"
    ended = time.perf_counter()
    model = Recommender.load(artifact, mmap=False)
    with threading.limit(spec.threads) as threads:
        metrics = evaluate(model, dataset, progress=phases(f"{spec.model}: ranking"))
    expected = Ledger.planned(program.forecast())
    row: dict[str, Any] = {
        "dataset": dataset.name,
        "model": spec.model,
        "method": spec.method,
        "preset": spec.preset,
        "runtime": carrier,
        "aggregator": spec.aggregator,
        "server_model": spec.server_model.value,
        **program.describe(),
        "clients": clients,
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
        "seed": spec.program.seed,
        "version": __version__,
    }
    row |= {name: result[name] for name in ("validated", "rounds_run") if name in result}
    row |= result.get("sizes", {})
    if compare:
        row |= _without_noise(dataset, spec, phases)
    if check:
        row["same_as_simulation"] = _same_as_simulation(dataset, chosen, artifact, phases)
    if save is not None:
        _copy(artifact, save)
    return row


def promise_kept(row: dict[str, Any]) -> str:
    """Return a sentence on the promise of a run and its cost in accuracy."""
    both = figures(row["epsilon"], row["delta"], row["epsilon_replacing"] or math.inf)
    sentence = f"{both} for every person: NDCG@20 {row['ndcg@20']:.4f}"
    if "exact_ndcg@20" in row:
        sentence += (
            f"; without privacy {row['exact_ndcg@20']:.4f} ({DEFAULT_MODEL}, exact sums), by "
            f"popularity alone {row['popularity_ndcg@20']:.4f}"
        )
    return f"{sentence}. {worth(loss_of(row['epsilon'], row['delta']))}"


def _policy(spec: RunSpec, train: Interactions, clients: int) -> Policy:
    """Return the policy of the clients, which allows this run and nothing more.

    The federation is one person's experiment. The policy therefore names everything that the run
    asks for, and requires no more people than the data set has.
    """
    trial = RunPlan(
        run="0" * 32,
        version=__version__,
        spec=spec,
        n_items=train.n_items,
        catalogue="",
        roster="",
        clients=clients,
        pledges=Pledges.unsigned({0: train.n_users}),
    )
    asked, usual = trial.for_policy(), Policy()
    corrupt = trial.statement.corrupt
    honest = max(spec.least_clients(clients) - corrupt, 0) * (train.n_users // clients)
    others = max(honest - -(-train.n_users // clients), 0)
    in_use = int(np.count_nonzero(train.item_degrees))
    opened = sum(one.opened(train.n_items, in_use).share for one in trial.sums)
    loss = trial.program.loss
    # If the cost exceeds the limit of any policy, the clients refuse with their own message. A cap
    # for several runs admits a little less than a single run of its epsilon.
    cost = min(1.1 * loss.epsilon(usual.delta), LARGEST_EPSILON)
    room = 10_000_000  # Set-up, headers, and a few messages that are sent twice.
    return allowing(
        asked.exact,
        aggregators=(spec.aggregator,),
        smallest_cohort=spec.smallest_cohort,
        most_sums=asked.sums,
        most_bytes_up=2 * asked.bytes_up + room,
        most_bytes_down=2 * asked.bytes_down + room,
        fewest_other_people=min(usual.fewest_other_people, others),
        smallest_change=max(1, min(usual.smallest_change, honest)),
        # If clients drop out, fewer items are in use, and the opened share is larger.
        largest_opened_share=max(2 * opened, usual.largest_opened_share),
        largest_item_share=1.0,
        largest_item_leverage=1.0,
        corrupt_share=spec.corrupt_share,
        largest_dropped_share=max(usual.largest_dropped_share, spec.drop_share),
        server=spec.server_model,
        most_epsilon=max(usual.most_epsilon, cost),
        most_epsilon_per_year=max(usual.most_epsilon_per_year, cost),
    )


def _without_noise(dataset: Dataset, spec: RunSpec, phases: Phases) -> dict[str, float]:
    """Return NDCG@20 of an exact run, and of popularity alone."""
    same = {"seed": spec.program.seed, "threads": spec.threads}
    exact = RunSpec.of(PrivirecK.name, model=DEFAULT_MODEL, **same)
    popular = evaluate(
        Popularity().fit(dataset.train), dataset, progress=phases("popularity: ranking")
    )
    return {
        "exact_ndcg@20": run(dataset, exact, phases).row["ndcg@20"],
        "popularity_ndcg@20": popular.as_row()["ndcg@20"],
    }


def _same_as_simulation(dataset: Dataset, spec: RunSpec, artifact: Path, phases: Phases) -> bool:
    result = run(dataset, spec.changed(aggregator="none"), phases)
    with tempfile.TemporaryDirectory(prefix="privirec-simulation-") as folder:
        saved = result.recommender.save(Path(folder) / "model", {})
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
