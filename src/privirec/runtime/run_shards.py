"""Run of one model on a sharded data set: fit by shards, rank for a sample of users, measure.

Memory is bounded by the size of a shard and by items x columns, not by the number of users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path

from privirec import threads as threading
from privirec.data.shards import ShardedDataset
from privirec.errors import UsageError
from privirec.evaluation import evaluate
from privirec.progress import QUIET, Phases
from privirec.runtime.earlier import with_earlier
from privirec.runtime.execute import execute
from privirec.runtime.local.sharded import Engine, OneByOne, ShardedSimulation
from privirec.runtime.run import Result, Stopwatch, chosen_spec, program_for, row_of
from privirec.runtime.spec import OneProcess, RunSpec

DEFAULT_SAMPLE = 10_000


def run_shards(
    data: ShardedDataset,
    spec: RunSpec,
    phases: Phases = QUIET,
    process: OneProcess | None = None,
    *,
    sample: int = DEFAULT_SAMPLE,
    work: Path | None = None,
    engine: str | None = None,
) -> Result:
    """Fit on all users, and evaluate on a sample of the users with test items.

    Finished sums are kept in the folder `work`, from which an interrupted run resumes. `engine`
    names workers that compute the sums; see `engine_named`.
    """
    process = process or OneProcess()
    if spec.federated is None:
        raise UsageError(
            f"{data.name} is in shards: a method with clients computes on them, "
            f"such as --method protected; {spec.method} needs all of it in memory"
        )
    if spec.federated.validates:
        raise UsageError(f"{data.name} is in shards, and {spec.method} cannot hold out their items")
    if process.runtime != "simulation":
        raise UsageError(f"{data.name} is in shards, which go with the simulation only")
    with threading.limit(spec.threads) as threads, engine_named(engine, spec.threads) as computing:
        return _run(data, spec, process, threads, phases, sample, work, computing)


@contextmanager
def engine_named(name: str | None, workers: int | None) -> Iterator[Engine]:
    """Open an engine for sums over shards: `dask`, or the address of a cluster's scheduler.

    None: this process, shard by shard. Engines are found by entry points of the group
    `privirec.engines`.
    """
    if name is None:
        yield OneByOne()
        return
    kind = "dask" if "://" in name else name
    found = {point.name: point for point in entry_points(group="privirec.engines")}
    if kind not in found:
        raise UsageError(f"no engine {name!r}; there are {', '.join(found)} and tcp://HOST:PORT")
    with found[kind].load()(name, workers) as engine:
        yield engine


def _run(
    data: ShardedDataset,
    spec: RunSpec,
    process: OneProcess,
    threads: int,
    phases: Phases,
    sample: int,
    work: Path | None,
    engine: Engine,
) -> Result:
    spec = chosen_spec(spec, process, data.name, data.n_users, data.n_items)
    recommender = spec.recommender()
    watch = Stopwatch()
    n_clients = process.clients or data.n_users
    program = program_for(spec, process.after, data.n_users, data.item_ids)
    runtime = ShardedSimulation(
        data,
        n_clients,
        process.noise_seed(spec.program.seed),
        noise_at_once=True,
        work=work,
        on_shard=_shown(spec.method, phases),
        engine=engine,
    )
    delta = program.delta
    components, ledger = execute(program.steps(), runtime, delta=delta)
    recommender.use(with_earlier(components, process.after), data.item_ids)
    watch.fitted()
    sampled = data.sample(sample, spec.program.seed)
    metrics = evaluate(recommender, sampled, progress=phases(f"{spec.model}: ranking"))
    about = {
        "dataset": data.name,
        "users": data.n_users,
        "items": data.n_items,
        "shards": len(data),
        "evaluated_users": metrics.users,
    }
    computed = program.describe() | {"sums": ledger.sums}
    measured = metrics.as_row() | watch.row()
    row = row_of(spec, process, about, computed, ledger, n_clients, measured, threads)
    return Result(row, recommender, metrics, ledger)


def _shown(method: str, phases: Phases) -> Callable[[str, int, int], None]:
    """Return a callback that shows progress over shards, with a phase for each sum."""
    report: Callable[[int, int], None] = phases(method)

    def show(name: str, done: int, total: int) -> None:
        nonlocal report
        if done == 1:
            report = phases(f"{method}: sum of {name}")
        report(done, total)

    return show
