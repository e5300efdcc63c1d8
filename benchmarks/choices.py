"""Compare the sizes that `protected` chooses with the best ones found by hand, on unlike data.

    python benchmarks/choices.py                                          # all, hours
    python benchmarks/choices.py --shapes gowalla,made-flat --epsilon 8,1 --json cells.jsonl

The shapes are Gowalla, Yelp2018, Globo, parts of them, and made-up data. A fifth of everybody's
train items is held out, and the test splits are not read. Each cell is a run of the program itself
in simulation, with noise for 20 % drop-outs and 5 % corrupt clients, and NDCG@20 of at most
`--people` people. By hand means: both ways, 0.6 and 1.7 times of the chosen head and columns, and
other shares of the budget for pairs, all within the same limit of bytes. The best one is the best
of several noisy figures, which favours it.

Cells that the file of `--json` has are not measured again.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from privirec import threads
from privirec.data import load_dataset
from privirec.data.interactions import Dataset, Interactions
from privirec.data.splits import validation_split
from privirec.errors import UsageError
from privirec.evaluation import evaluate
from privirec.federated.programs import Protected, ProtectedSettings
from privirec.models import Denoised
from privirec.runtime.execute import execute
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.spec import Assumptions

SPLIT_SEED, PEOPLE_SEED = 2026, 5
Matrix = sp.csr_array


def whole(name: str) -> Matrix:
    return sp.csr_array(load_dataset(name).train.matrix.astype(np.float32))


def cleaned(matrix: Matrix) -> Matrix:
    """Return the matrix without people of fewer than two items and without unused items."""
    matrix = sp.csr_array(matrix[np.diff(matrix.indptr) >= 2])
    used = np.bincount(matrix.indices, minlength=matrix.shape[1]) > 0
    return sp.csr_array(matrix[:, np.flatnonzero(used)])


def ranks(name: str, first: int, last: int) -> Matrix:
    """Return the items of these ranks of popularity."""
    matrix = whole(name)
    degrees = np.bincount(matrix.indices, minlength=matrix.shape[1])
    return cleaned(matrix[:, np.sort(np.argsort(-degrees, kind="stable")[first:last])])


def some(matrix: Matrix, people: int) -> Matrix:
    chosen = np.random.default_rng(2).permutation(matrix.shape[0])[:people]
    return cleaned(matrix[np.sort(chosen)])


def short(matrix: Matrix, longest: int = 9) -> Matrix:
    """Return random parts of the histories, of at most so many items."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    order = np.lexsort((np.random.default_rng(1).random(matrix.nnz), rows))
    kept = order[np.arange(matrix.nnz) - matrix.indptr[rows] < longest]
    ones = np.ones(len(kept), np.float32)
    return cleaned(sp.csr_array((ones, (rows[kept], matrix.indices[kept])), shape=matrix.shape))


def made(
    people: int, items: int, mean: int, steepness: float, groups: int, mixed: float, seed: int
) -> Matrix:
    """Return histories that are drawn from three groups of items each, and from the whole.

    Items lie on a line, and popularity falls as the k-th item to the power of minus `steepness`.
    A group is an interval of the line; half of a person's draws in it are from one place.
    """
    rng = np.random.default_rng(seed)
    popularity = rng.permutation((np.arange(1, items + 1) + 5.0) ** -steepness)
    cumulative = np.cumsum(popularity) / popularity.sum()
    lengths = np.maximum(4, np.rint(rng.lognormal(math.log(mean) - 0.32, 0.8, people)))
    lengths = np.rint(1.4 * np.minimum(lengths, items // 10)).astype(int)
    person = np.repeat(np.arange(people), lengths)
    draws = len(person)
    places, shares = rng.random((people, 3)) * groups, rng.dirichlet(np.ones(3), people)
    which = (rng.random(draws)[:, None] > np.cumsum(shares, 1)[person]).sum(1).clip(0, 2)
    place = places[person, which]
    near = np.clip(place % 1 + 0.12 * rng.standard_normal(draws), 0, 0.999999)
    inside = np.where(rng.random(draws) < 0.5, rng.random(draws), near)
    line = np.where(rng.random(draws) < mixed, rng.random(draws), (place // 1 + inside) / groups)
    item = np.minimum(np.searchsorted(cumulative, line), items - 1)
    matrix = sp.csr_array((np.ones(draws, np.float32), (person, item)), shape=(people, items))
    matrix.sum_duplicates()
    matrix.data[:] = 1
    return cleaned(matrix)


SHAPES: dict[str, Callable[[], Matrix]] = {
    "gowalla": lambda: whole("gowalla"),
    "yelp2018": lambda: whole("yelp2018"),
    "globo": lambda: whole("globo"),
    "gowalla, 4,000 most popular items": lambda: ranks("gowalla", 0, 4000),
    "gowalla, histories of at most 9": lambda: short(whole("gowalla")),
    "gowalla, a quarter of the people": lambda: some(whole("gowalla"), 7464),
    "yelp2018, ranks 500 to 8,000": lambda: ranks("yelp2018", 500, 8000),
    "yelp2018, 4,000 most popular items": lambda: ranks("yelp2018", 0, 4000),
    "globo, without the 300 most popular": lambda: ranks("globo", 300, 12000),
    "globo, ranks 100 to 4,000": lambda: ranks("globo", 100, 4000),
    "globo, 40,000 people": lambda: some(whole("globo"), 40_000),
    "globo, 70,000 people, at most 9": lambda: some(short(whole("globo")), 70_000),
    "made-up, flat": lambda: made(124_000, 13_500, 20, 0.6, 300, 0.15, 1),
    "made-up, short": lambda: made(70_000, 25_000, 9, 0.8, 800, 0.15, 2),
    "made-up, steep": lambda: made(60_000, 12_000, 25, 1.2, 60, 0.15, 3),
    "made-up, 30 people an item": lambda: made(60_000, 2000, 25, 0.4, 60, 0.15, 4),
    "made-up, 0.3 people an item": lambda: made(12_000, 40_000, 40, 0.9, 200, 0.15, 5),
    "made-up, long": lambda: made(40_000, 8000, 100, 0.7, 100, 0.15, 6),
    "made-up, long and steep": lambda: made(60_000, 12_000, 70, 0.9, 40, 0.3, 9),
}


def held_out(name: str, people: int) -> Dataset:
    """Hold out a fifth of everybody's items; of these, keep those of so many people."""
    train = Interactions.from_matrix(SHAPES[name]())
    rest, held = validation_split(train, share=0.2, seed=SPLIT_SEED)
    chosen = np.random.default_rng(PEOPLE_SEED).permutation(rest.n_users)[:people]
    keep = np.zeros(rest.n_users, bool)
    keep[chosen] = True
    return Dataset(name, rest, held.select(np.repeat(keep, held.user_degrees)))


class Cells:
    """Measured cells, in memory and in a file of JSON lines."""

    def __init__(self, path: Path | None, people: int) -> None:
        self.path, self.people = path, people
        lines = path.read_text().splitlines() if path and path.exists() else []
        self.rows = {self.key(row): row for row in map(json.loads, lines)}

    @staticmethod
    def key(row: dict[str, Any]) -> str:
        return json.dumps([row[name] for name in ("shape", "epsilon", "seed", "people", "given")])

    def measured(
        self, data: Dataset, epsilon: float, seed: int, given: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the row of one run."""
        row = {"shape": data.name, "epsilon": epsilon, "seed": seed, "people": self.people}
        row["given"] = dict(sorted(given.items()))
        key = self.key(row)
        if key in self.rows:
            return self.rows[key]
        started, clients = time.process_time(), data.train.n_users
        assumed = Assumptions()
        settings = ProtectedSettings(
            epsilon=epsilon,
            clients=clients,
            contributors=assumed.contributors(clients),
            corrupt=assumed.corrupt(clients),
            seed=seed,
            **given,
        )
        program = Protected(settings, clients, data.train.n_items)
        simulation = Simulation(data.train, clients, seed, noise_at_once=True)
        components, ledger = execute(program.steps(), simulation)
        model = Denoised().use(components, data.train.item_ids)
        found = program.found()["sizes"]
        row["ndcg"] = evaluate(model, data).ndcg
        row["sizes"] = {name: found.get(name) for name in ("way", "head", "rank")}
        row["bytes_up"] = ledger.bytes_up
        row["cpu_seconds"] = time.process_time() - started
        self.rows[key] = row
        if self.path:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        return row


def by_hand(sizes: dict[str, Any], limit: int) -> Iterator[dict[str, Any]]:
    """Yield sizes to try by hand, around those of the automatic choice and of the other way."""
    head, columns = sizes["head"], (sizes["rank"] or 33) - 1
    here = {"head": head} if sizes["way"] == "power" else {}
    for one in (250, 500, 1000, 1400):
        yield {"way": "gram", "head": one, "upload_limit": limit}
    for share in (0.0, 0.15, 0.45):
        yield {"way": "power", "pairs_share": share, "upload_limit": limit, **here}
    for factor in (0.6, 1.7):
        heads = {"head": round(factor * head)} if here else {"head": round(factor * 3000)}
        yield {"way": "power", "upload_limit": limit, **heads}
        if here:
            others = {"columns": max(1, round(factor * columns))}
            yield {"way": "power", "upload_limit": limit, **here, **others}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", help="names divided by semicolons; default: all")
    parser.add_argument("--epsilon", default="8,4,2,1")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--people", type=int, default=3000, help="How many to rank for.")
    parser.add_argument("--limit", type=int, default=5_000_000, help="Most bytes up.")
    parser.add_argument("--automatic", action="store_true", help="Measure nothing by hand.")
    parser.add_argument("--json", type=Path, help="Measured cells, a line for each.")
    options = parser.parse_args()
    cells = Cells(options.json, options.people)
    print("| data | epsilon | automatic | NDCG@20 | best by hand | NDCG@20 | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name in options.shapes.split(";") if options.shapes else SHAPES:
        data = held_out(name, options.people)
        for epsilon in map(float, options.epsilon.split(",")):

            def mean(
                given: dict[str, Any], data: Dataset = data, epsilon: float = epsilon
            ) -> tuple[float, str, dict[str, Any]]:
                rows = [cells.measured(data, epsilon, seed, given) for seed in range(options.seeds)]
                sizes = rows[0]["sizes"]
                columns = f", {sizes['rank'] - 1} columns" if sizes["rank"] else ""
                shown = f"{sizes['way']}, {sizes['head']:,}{columns}"
                if "pairs_share" in given:
                    shown += f", {given['pairs_share']:g} for pairs"
                return float(np.mean([row["ndcg"] for row in rows])), shown, sizes

            with threads.limit(1):
                automatic, shown, sizes = mean({"upload_limit": options.limit})
                tried = [(automatic, shown)]
                if not options.automatic:
                    for given in by_hand(sizes, options.limit):
                        with suppress(UsageError):  # more bytes than the limit
                            tried.append(mean(given)[:2])
            best, of_best = max(tried)
            print(
                f"| {name} | {epsilon:g} | {shown} | {automatic:.4f} | {of_best} | {best:.4f} | "
                f"{automatic / best:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
