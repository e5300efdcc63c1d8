"""Twelve monthly runs under one budget: what is kept when released sums are combined.

    python benchmarks/later_runs.py gowalla globo          # the table of docs/results/later-runs.md

Histories grow by 5 % a month up to the train split; each person's items come in a random order, the
same one for all methods. Every run has the same epsilon, and all together have epsilon 8. After a
run, its model recommends from the histories of the train split, so that only the model differs.
With `--validation`, a fifth of train is held out and the test split is not read.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import numpy as np

from privirec import threads
from privirec.app.planner.schedule import run_rows
from privirec.data import Dataset, Interactions, load_dataset
from privirec.data.splits import validation_split
from privirec.evaluation import evaluate
from privirec.federated.programs import Protected, program_of
from privirec.filters.components import Components
from privirec.filters.earlier import Earlier
from privirec.models.denoised import Denoised
from privirec.runtime.execute import execute
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.spec import RunSpec

RUNS, GROWTH, TOTAL = 12, 0.05, 8.0
SHOWN = (1, 2, 3, 4, 6, 8, 10, 12)
METHODS = ("each run alone", "sums combined", "one run with all of the budget so far")


def months(train: Interactions) -> Iterator[Interactions]:
    """Yield the histories of each month, which grow at the same rate for everybody."""
    degrees = train.user_degrees
    users = np.repeat(np.arange(train.n_users), degrees)
    drawn = np.random.Generator(np.random.Philox(7)).random(train.n_interactions)
    order = np.lexsort((drawn, users))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order)) - np.repeat(np.cumsum(degrees) - degrees, degrees)
    for month in range(1, RUNS + 1):
        yield train.select(rank < np.ceil(degrees * (1 + GROWTH) ** (month - RUNS))[users])


def released(
    train: Interactions, epsilon: float, delta: float, seed: int, earlier: Earlier | None
) -> Components:
    """Run once, with a client for each person and noise for the defaults of a federation."""
    spec = RunSpec.of(Protected.name, epsilon=epsilon, delta=delta, seed=seed)
    program = program_of(
        spec.resolved("", train.n_items, train.n_users).program, train.n_users, train.n_items
    )
    if earlier is not None:
        program.go_on_from(earlier)
    simulation = Simulation(train, train.n_users, seed, noise_at_once=True)
    return execute(program.steps(), simulation, None, program.delta)[0]


def measured(data: Dataset, seed: int) -> dict[tuple[str, int], float]:
    """Return NDCG@20 of each method after each run."""
    train, found = data.train, {}
    rows = run_rows(RUNS, TOTAL, train.n_users, train.n_items)
    earlier: Earlier | None = None
    for row, histories in zip(rows, months(train), strict=True):
        number = row["run"]
        noise: dict[str, Any] = {"delta": row["delta"], "seed": 100 * seed + number}
        models = {METHODS[1]: released(histories, row["epsilon"], earlier=earlier, **noise)}
        earlier = models[METHODS[1]].released
        if number not in SHOWN:
            continue
        models[METHODS[0]] = released(histories, row["epsilon"], earlier=None, **noise)
        models[METHODS[2]] = released(histories, row["epsilon_together"], earlier=None, **noise)
        for method, components in models.items():
            model = Denoised().use(components, train.item_ids)
            found[method, number] = evaluate(model, data).ndcg
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--validation", action="store_true")
    options = parser.parse_args()
    for name in options.datasets:
        data = load_dataset(name, options.data_dir)
        if options.validation:
            data = Dataset(name, *validation_split(data.train, share=0.2, seed=1))
        rows = run_rows(RUNS, TOTAL, data.train.n_users, data.train.n_items)
        with threads.limit(1):
            every = [measured(data, seed) for seed in range(options.seeds)]
        print(f"\n{name}: {rows[0]['epsilon']:g} a run, {options.seeds} seeds\n")
        print("| runs so far | " + " | ".join(str(number) for number in SHOWN) + " |")
        print("|---|" + "---|" * len(SHOWN))
        spent = [f"{rows[number - 1]['epsilon_together']:.2f}" for number in SHOWN]
        print(f"| epsilon so far | {' | '.join(spent)} |")
        for method in METHODS:
            scores = [[one[method, number] for one in every] for number in SHOWN]
            shown = [f"{mean(each):.4f} ± {pstdev(each):.4f}" for each in scores]
            print(f"| {method} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
