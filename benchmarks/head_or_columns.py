"""Where a head of popular items is the better use of the bytes, and where columns over all items.

    python benchmarks/head_or_columns.py                    # the table of docs/results/plan.md

Parts of Gowalla, Yelp2018 and Globo (so many of the most popular items, or so many people), a fifth
of everybody's train items held out, NDCG@20 of 3,000 people at most; the test splits are not read.
`spectral` and EASE on a head have the sizes that `privirec plan` gives them for a budget; of each
the better of two settings counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from privirec.app.planner import PlannedMethod, Population, candidates
from privirec.data import Dataset, Interactions, load_dataset
from privirec.experiments.tune import Tuning
from privirec.models import EASE, Spectral
from privirec.runtime.run import run

BUDGET = 5_000_000
EXPONENTS = (0.5, 0.3)
RIDGES = (100.0, 400.0)


def popular(train: Interactions, items: int) -> Interactions:
    """The same without all but so many of the most popular items."""
    kept = np.sort(np.argsort(-train.item_degrees, kind="stable")[:items])
    return Interactions.from_matrix(train.matrix[:, kept]).without_idle_users()


def some(train: Interactions, users: int) -> Interactions:
    """So many of the people."""
    chosen = np.random.Generator(np.random.Philox(7)).permutation(train.n_users)[:users]
    return Interactions.from_matrix(train.matrix[np.sort(chosen)])


PARTS: tuple[tuple[str, Callable[[Interactions, int], Interactions], tuple[int, ...], int], ...] = (
    ("gowalla", popular, (20_000, 10_000, 5_000, 4_000, 3_200, 2_700), BUDGET),
    ("yelp2018", popular, (20_000, 10_000, 5_000, 4_000, 3_200, 2_700), BUDGET),
    ("globo", some, (8_000, 32_000, 157_926), BUDGET),
    ("globo", some, (32_000,), 1_200_000),
)


def measured(train: Interactions, budget: int) -> Iterator[tuple[str, float, PlannedMethod]]:
    """Method, accuracy and size of both."""
    with TemporaryDirectory() as folder:
        data = Dataset("part", train, train)
        split = Tuning(data, budget, Path(folder) / "trace").split
    for candidate in candidates(Population.of(split), budget):
        plan = replace(candidate.plan, threads=1)
        if plan.model_name == Spectral.name:
            configs = [
                {"rank": plan.rank, "history_exponent": each, "item_exponent": each}
                for each in EXPONENTS
            ]
        elif plan.model_name == EASE.name:
            configs = [{"head": plan.head, "regularisation": each} for each in RIDGES]
        else:
            continue
        found = [run(split, replace(plan, config=config)).row["ndcg@20"] for config in configs]
        yield plan.method, max(found), candidate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args()
    print("| data | people | items | people an item | head | it has | EASE on it | spectral |")
    print("|---|---|---|---|---|---|---|---|")
    for name, part, sizes, budget in PARTS:
        train = load_dataset(name, options.data_dir).train
        for size in sizes:
            found = {method: rest for method, *rest in measured(part(train, size), budget)}
            accuracy, head = found["head-gram"]
            other, spectral = found.get("spectral", (float("nan"), None))
            people = head.population
            fits = spectral is not None and spectral.bytes_up <= budget
            columns = spectral.plan.federated["columns"] if spectral else ""
            print(
                f"| {name}, {budget / 1e6:g} MB | {people.users:,} | {people.items:,} | "
                f"{people.users / people.items:.1f} | {head.plan.head:,} | "
                f"{people.coverage(head.plan.head or 0):.2f} | {accuracy:.4f} | "
                f"{other:.4f} ({columns}{'' if fits else ', too large'}) |",
                flush=True,
            )


if __name__ == "__main__":
    main()
