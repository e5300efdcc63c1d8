"""Run of one model on a sharded data set: fit by shards, rank for a sample of users, measure.

Memory is bounded by the size of a shard and by items x columns, not by the number of users.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from privirec import threads as threading
from privirec.data.shards import ShardedDataset
from privirec.errors import UsageError
from privirec.evaluation import evaluate
from privirec.federated.programs import program_of
from privirec.progress import QUIET, Phases
from privirec.runtime.execute import execute
from privirec.runtime.local.sharded import ShardedSimulation
from privirec.runtime.plan import Plan
from privirec.runtime.run import Result, Stopwatch, begin_with, row_of

DEFAULT_SAMPLE = 10_000


def run_shards(
    data: ShardedDataset,
    plan: Plan,
    phases: Phases = QUIET,
    *,
    sample: int = DEFAULT_SAMPLE,
    work: Path | None = None,
) -> Result:
    """Fit on all users, and evaluate on a sample of the users with test items.

    Finished sums are kept in the folder `work`, from which an interrupted run resumes.
    """
    if plan.program is None:
        raise UsageError(
            f"{data.name} is in shards: a method with clients computes on them, "
            f"such as --method protected; {plan.method} needs all of it in memory"
        )
    if plan.program.validates:
        raise UsageError(f"{data.name} is in shards, and {plan.method} cannot hold out their items")
    if plan.runtime != "simulation":
        raise UsageError(f"{data.name} is in shards, which go with the simulation only")
    with threading.limit(plan.threads) as threads:
        return _run(data, plan, threads, phases, sample, work)


def _run(
    data: ShardedDataset,
    plan: Plan,
    threads: int,
    phases: Phases,
    sample: int,
    work: Path | None,
) -> Result:
    recommender = plan.recommender(data.name, data.n_items)
    watch = Stopwatch()
    n_clients = plan.clients or data.n_users
    settings = plan.settings(recommender, data.n_items, n_clients)
    program = program_of(settings, data.n_users, data.n_items)
    if plan.warm is not None:
        begin_with(plan.warm, program, data.item_ids)
    runtime = ShardedSimulation(
        data,
        n_clients,
        plan.noise_seed,
        noise_at_once=True,
        work=work,
        on_shard=_shown(plan.method, phases),
    )
    delta = program.delta
    components, ledger = execute(program.steps(), runtime, delta=delta)
    recommender.use(components, data.item_ids)
    watch.fitted()
    sampled = data.sample(sample, plan.seed)
    metrics = evaluate(recommender, sampled, progress=phases(f"{plan.model_name}: ranking"))
    about = {
        "dataset": data.name,
        "users": data.n_users,
        "items": data.n_items,
        "shards": len(data),
        "evaluated_users": metrics.users,
    }
    computed = program.describe() | {"sums": ledger.sums}
    measured = metrics.as_row() | watch.row()
    row = row_of(plan, about, computed, ledger, n_clients, measured, threads)
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
