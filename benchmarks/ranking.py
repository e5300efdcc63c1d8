"""Few scores beside all of them, and a filtered Krylov space beside a plain one, in one run.

    python benchmarks/ranking.py [--dataset gowalla] [--models gf-cf,bspm-em] [--users 4096]

For each model, one thread, CPU seconds scaled to all users: ranking in parts (what `run` does),
ranking by the same sums computed for every item, and ranking by a dense product as BLAS does it.
The first two lists are compared for every user that is ranked and must be identical. BLAS adds up
in another order, so the third may differ where two scores are equal but for rounding: how many
lists do is printed. For singular vectors: seconds, and the largest |P~ s - lambda s|, of both
solvers.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np

from privirec import threads
from privirec.data import load_dataset
from privirec.evaluation import tested_batches
from privirec.filters import eigen
from privirec.filters.components import Components, factored
from privirec.filters.parts import Parts
from privirec.runtime.spec import RunSpec


class Clock:
    """CPU seconds by what they were spent on."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._since = 0.0

    def start(self) -> None:
        self._since = time.process_time()

    def stop(self, what: str) -> None:
        self.spent[what] = self.spent.get(what, 0.0) + time.process_time() - self._since


def singular_vectors(name: str, rank: int) -> Components:
    """Both solvers, the new one's result."""
    train = load_dataset(name).train
    operator = factored(train)
    operator.times(np.zeros((train.n_items, 32), np.float32))  # compiled before the clock runs
    kept, clock = eigen.FILTERED, Clock()
    for what, factor in (("plain Krylov space", 1 << 40), ("filtered Krylov space", kept)):
        eigen.FILTERED = factor
        clock.start()
        values, basis = eigen.leading_eigenpairs(operator, rank)
        clock.stop(what)
        off = np.linalg.norm(operator.times(basis) - basis * values.astype(np.float32), axis=0)
        print(f"  {what}, rank {rank}: {clock.spent[what]:.1f} s, residual {off.max():.1e}")
    eigen.FILTERED = kept
    return Components(train.item_degrees, operator, basis)


def rank_three_ways(name: str, model: str, components: Components, users: int) -> None:
    dataset = load_dataset(name)
    spec = RunSpec.of(model=model).resolved(name, dataset.train.n_items, 1)
    recommender = spec.recommender().use(components)
    directly = spec.recommender().use(components)
    clock = Clock()
    clock.start()
    recommender.ready_for(dataset.train.n_users, dataset.train.n_interactions)
    clock.stop("once")
    total = int(np.count_nonzero(dataset.test.user_degrees))
    done = same = alike = 0
    for number, batch in enumerate(tested_batches(dataset)):
        if done >= users:
            break
        histories = batch.train
        clock.start()
        parts = recommender.parts(histories)
        clock.stop("base")
        whole = replace(parts, base=parts.base.copy())
        clock.start()
        few = parts.best(20, histories)
        clock.stop("few")
        clock.start()
        full = Parts(whole.scores()).best(20, histories)
        clock.stop("all")
        clock.start()
        blas = Parts(directly._score(histories)).best(20, histories)
        clock.stop("blas")
        if number == 0:  # compiling
            clock.spent = {"once": clock.spent["once"]}
            continue
        same += int((few[0] == full[0]).all(axis=1).sum())
        alike += int((few[0] == blas[0]).all(axis=1).sum())
        done += len(few[0])
    scale = total / done
    seconds = {
        what: spent * (1 if what == "once" else scale) for what, spent in clock.spent.items()
    }
    parts_way = seconds["once"] + seconds["base"] + seconds["few"]
    print(f"  {model}: {done} of {total} users, CPU seconds for all")
    print(
        f"    in parts {parts_way:.1f} (once {seconds['once']:.1f}, base {seconds['base']:.1f}, "
        f"best of few {seconds['few']:.1f})"
    )
    print(
        f"    all items, the same sums {seconds['base'] + seconds['all']:.1f}: "
        f"{same} of {done} lists identical"
    )
    print(
        f"    all items, by BLAS {seconds['blas']:.1f}: {alike} of {done} lists identical; "
        f"in parts takes {parts_way / seconds['blas']:.2f} of it",
        flush=True,
    )
    if same != done:
        raise SystemExit("a list is not that of full scoring")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="gowalla")
    parser.add_argument("--models", default="gf-cf,bspm-lm,bspm-em")
    parser.add_argument("--users", type=int, default=4096, help="users that are ranked")
    given = parser.parse_args()
    print(f"{given.dataset}, one thread")
    with threads.limit(1):
        for each in given.models.split(","):
            spec = RunSpec.of(model=each).resolved(given.dataset, 1 << 40, 1)
            rank = spec.recommender().config.low_pass_rank
            rank_three_ways(given.dataset, each, singular_vectors(given.dataset, rank), given.users)
