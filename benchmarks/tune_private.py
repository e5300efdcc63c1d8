"""Tune a private method on a fifth of a train split, held out: coordinate search over a grid.

    python benchmarks/tune_private.py --method ada-dpals --dataset gowalla --epsilon 8

Starts from the settings in `privirec.experiments.peers.tuned` (for `protected`: from what the
program chooses by itself), changes one setting after the other to its neighbours on the grid, and
keeps what is better; ends when nothing helps any more or the trials are used up. Every trial is one
line of the trace: settings, NDCG@20 of the people looked at, bytes, CPU seconds. It reads no test
split.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from privirec import threads
from privirec.data import load_dataset
from privirec.data.interactions import Dataset
from privirec.data.splits import validation_split
from privirec.evaluation import evaluate
from privirec.experiments.peers import PEERS
from privirec.experiments.peers.tuned import tuned_settings
from privirec.federated.programs import Protected, ProtectedSettings
from privirec.federated.programs.calibration import Promise
from privirec.models import Denoised
from privirec.privacy.ledger import Ledger
from privirec.runtime.execute import execute, execute_steps
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.spec import Assumptions

DELTA = 1e-6
SPLIT_SEED = 2026
GRID: dict[str, tuple[float, ...]] = {
    "head": (500, 1000, 1500, 2000, 3000, 4000, 6000, 8000),
    "columns": (8, 16, 24, 32, 40, 48, 64, 96, 128),
    "rounds": (2, 3, 4, 5),
    "clip": (0.003, 0.01, 0.03, 0.05, 0.1, 0.2, 0.3),
    "left": (0.0, 0.1, 0.25, 0.4, 0.5),
    "lift": (-0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3, 0.4),
    "popularity_share": (0.05, 0.1, 0.15, 0.2, 0.3),
    "growth": (1.0, 1.5, 2.0),
    "outer": (0.003, 0.01, 0.03, 0.1, 0.2, 0.4),
    "everybody": (0.001, 0.003, 0.01, 0.03),
    "unobserved": (0.01, 0.03, 0.1, 0.3),
    "item_unobserved": (0.003, 0.01, 0.03, 0.1, 0.3),
    "user_ridge": (0.3, 1.0, 3.0, 10.0, 30.0),
    "noise_ridge": (2.0, 4.0, 8.0, 16.0, 32.0),
    "items_each": (5, 8, 12, 20, 40),
    "adapt": (0.0, 0.2, 0.35, 0.5, 0.6, 0.75),
}
PROTECTED_SETTINGS = ("head", "columns", "popularity_share")


def held_out(name: str, people: int) -> Dataset:
    """A fifth of everybody's items held out; of these, those of so many people are looked at."""
    rest, held = validation_split(load_dataset(name).train, share=0.2, seed=SPLIT_SEED)
    chosen = np.random.default_rng(5).permutation(rest.n_users)[:people]
    keep = np.zeros(rest.n_users, bool)
    keep[chosen] = True
    return Dataset(name, rest, held.select(np.repeat(keep, held.user_degrees)))


def measure(
    method: str, data: Dataset, epsilon: float, seed: int, settings: dict[str, Any]
) -> dict[str, Any]:
    """One trial."""
    train, started = data.train, time.process_time()
    clients = train.n_users
    contributors = Assumptions().contributors(clients)
    simulation = Simulation(train, clients, seed, noise_at_once=True)
    scorer: Any
    if method == Protected.name:
        chosen = ProtectedSettings(
            epsilon=epsilon,
            delta=DELTA,
            clients=clients,
            contributors=contributors,
            seed=seed,
            **settings,
        )
        program = Protected(chosen, clients, train.n_items)
        components, ledger = execute(program.steps(), simulation)
        scorer = Denoised().use(components, train.item_ids)
    else:
        promise = Promise(epsilon, DELTA, clients, contributors)
        ledger = Ledger(secret_noise=False)
        peer = PEERS[method](promise, clients, train.n_items, **settings)
        scorer = execute_steps(peer.steps(), simulation, ledger)
    return {
        "method": method,
        "dataset": data.name,
        "epsilon": epsilon,
        "seed": seed,
        "settings": settings,
        "validation_ndcg@20": evaluate(scorer, data).ndcg,
        "bytes_up_per_client": ledger.bytes_up,
        "cpu_seconds": time.process_time() - started,
    }


def neighbours(name: str, value: float | None) -> Iterator[float]:
    """The grid's values next to one; all of them where nothing is set."""
    grid = GRID[name]
    if value is None:
        yield from grid
        return
    place = int(np.argmin([abs(one - value) for one in grid]))
    for near in (place - 1, place, place + 1):
        if 0 <= near < len(grid) and grid[near] != value:
            yield grid[near]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", choices=[Protected.name, *PEERS], required=True)
    parser.add_argument("--dataset", default="gowalla")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--people", type=int, default=4000, help="How many to rank for.")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--json", type=Path, help="Trace, a line for each trial.")
    given = parser.parse_args()

    data = held_out(given.dataset, given.people)
    if given.method == Protected.name:
        best: dict[str, Any] = {}
        names = list(PROTECTED_SETTINGS)
    else:
        clients = data.train.n_users
        promise = Promise(given.epsilon, DELTA, clients, Assumptions().contributors(clients))
        best = tuned_settings(given.method, given.dataset, data.train, promise)
        names = [name for name in best if name in GRID]
    tried: dict[str, float] = {}

    def trial(settings: dict[str, Any]) -> float:
        key = json.dumps(settings, sort_keys=True)
        if key not in tried:
            row = measure(given.method, data, given.epsilon, given.seed, settings)
            tried[key] = row["validation_ndcg@20"]
            print(f"{len(tried):3}  {tried[key]:.4f}  {settings}", flush=True)
            if given.json:
                with given.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
        return tried[key]

    with threads.limit(1):
        reached, improved = trial(best), True
        while improved and len(tried) < given.trials:
            improved = False
            for name in names:
                for value in neighbours(name, best.get(name)):
                    if len(tried) >= given.trials:
                        break
                    changed = best | {name: value}
                    if trial(changed) > reached:
                        best, reached, improved = (
                            changed,
                            tried[json.dumps(changed, sort_keys=True)],
                            True,
                        )
    print(f"best after {len(tried)} trials: {reached:.4f}  {best}")


if __name__ == "__main__":
    main()
