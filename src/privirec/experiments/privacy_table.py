"""Comparison of `protected` with its peers at the same promise, noise and users."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from privirec.data.interactions import Dataset, Interactions
from privirec.errors import UsageError
from privirec.evaluation import evaluate_by_fifths
from privirec.experiments.measured import MeasuredRows, over_seeds
from privirec.experiments.peers import PEERS, Peer
from privirec.experiments.peers.tuned import tuned_settings
from privirec.federated.dp.gaussian import DEFAULT_DELTA
from privirec.federated.programs import Protected, program_of
from privirec.federated.programs.calibration import Promise
from privirec.filters.parts import Scorer
from privirec.privacy.ledger import Ledger
from privirec.runtime.execute import execute, execute_steps
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.spec import Assumptions, RunSpec
from privirec.version import __version__

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
METHODS = (Protected.name, *PEERS)
SEEDS = 5
LEAST_TO_SUBSAMPLE = 50_000
"""Number of people from which a data set is also subsampled for the curve."""
SMALLEST_SAMPLE = 5_000
_SAMPLE_SEED = 2026

IDENTITY = ("dataset", "fingerprint", "method", "epsilon", "delta", "seed", "settings")
"""Names of the fields that identify a measurement."""


@dataclass(frozen=True)
class Point:
    """A measurement to make."""

    dataset: Dataset
    method: str
    epsilon: float
    seed: int
    delta: float = DEFAULT_DELTA

    @property
    def promise(self) -> Promise:
        """Promise with one client per person, and noise for the defaults of a federation."""
        clients = self.dataset.train.n_users
        contributors = Assumptions().contributors(clients)
        return Promise(self.epsilon, self.delta, clients, contributors)

    def peer(self) -> Peer:
        train = self.dataset.train
        return PEERS[self.method](self.promise, train.n_users, train.n_items, **self.settings())

    def settings(self) -> dict[str, Any]:
        """Return the tuned settings of a peer; `protected` has none, since it sizes itself."""
        if self.method == Protected.name:
            return {}
        return tuned_settings(self.method, self.dataset.name, self.dataset.train, self.promise)

    def identity(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset.name,
            "fingerprint": self.dataset.train.fingerprint()[:16],
            "method": self.method,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "seed": self.seed,
            "settings": self.settings(),
        }

    def measure(self) -> dict[str, Any]:
        train = self.dataset.train
        started = time.process_time()
        scorer, ledger, kept = self._fit()
        found = evaluate_by_fifths(scorer, self.dataset)
        return {
            **self.identity(),
            "people": train.n_users,
            "items": train.n_items,
            "epsilon_kept": kept,
            **found.overall.as_row(),
            "ndcg@20_by_fifths": list(found.ndcg),
            "bytes_up_per_client": ledger.bytes_up,
            "bytes_down_per_client": ledger.bytes_down,
            "cpu_seconds": time.process_time() - started,
            "version": __version__,
        }

    def _fit(self) -> tuple[Scorer, Ledger, float]:
        train = self.dataset.train
        simulation = Simulation(train, train.n_users, self.seed, noise_at_once=True)
        if self.method in PEERS:
            peer, ledger = self.peer(), Ledger(secret_noise=False)
            scorer = execute_steps(peer.steps(), simulation, ledger)
            return scorer, ledger, peer.calibration.epsilon
        promised = {"epsilon": self.epsilon, "delta": self.delta, "seed": self.seed}
        chosen = RunSpec.of(self.method, **promised)
        spec = chosen.resolved(self.dataset.name, train.n_items, train.n_users)
        recommender = spec.recommender()
        program = program_of(spec.program, train.n_users, train.n_items)
        components, ledger = execute(program.steps(), simulation)
        recommender.use(components, train.item_ids)
        return recommender, ledger, float(program.describe()["epsilon"])


def measured_rows(path: Path | None) -> MeasuredRows:
    """Return the rows that an earlier run of the command wrote to a file."""
    return MeasuredRows(path, "privacy-table", IDENTITY)


def points_of(
    datasets: Iterable[Dataset],
    methods: Sequence[str] = METHODS,
    epsilons: Sequence[float] = EPSILONS,
    seeds: int = SEEDS,
) -> list[Point]:
    """Return all points to measure; the seeds of one cell of the table follow each other."""
    for method in methods:
        if method not in METHODS:
            raise UsageError(f"no method {method!r}; there are {', '.join(METHODS)}")
    return [
        Point(dataset, method, epsilon, seed)
        for dataset in datasets
        for epsilon in epsilons
        for method in methods
        for seed in range(seeds)
    ]


def samples_of(dataset: Dataset) -> Iterator[Dataset]:
    """Yield the data set and, if it is large, samples of a half of its people, a quarter, etc.

    Smaller samples are subsets of larger ones.
    """
    people = dataset.train.n_users
    yield dataset
    if people < LEAST_TO_SUBSAMPLE:
        return
    order = np.random.default_rng(_SAMPLE_SEED).permutation(people)
    people //= 2
    while people >= SMALLEST_SAMPLE:
        chosen = np.sort(order[:people])
        train, test = (
            Interactions(part.matrix[chosen], part.user_ids[chosen], part.item_ids)
            for part in (dataset.train, dataset.test)
        )
        yield Dataset(dataset.name, train, test)
        people //= 2


def summary_of(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return mean and spread over seeds, by data set, number of people, epsilon and method."""

    def cell(row: Mapping[str, Any]) -> tuple[str, int, float, int]:
        return row["dataset"], row["people"], row["epsilon"], METHODS.index(row["method"])

    found = []
    for (dataset, people, epsilon, method), group in groupby(sorted(rows, key=cell), cell):
        same = list(group)
        fifths = zip(*(row["ndcg@20_by_fifths"] for row in same), strict=True)
        found.append(
            {
                "dataset": dataset,
                "people": people,
                "epsilon": epsilon,
                "method": METHODS[method],
                **over_seeds(same),
                **{f"fifth_{number}": mean(values) for number, values in enumerate(fifths, 1)},
                "bytes_up_per_client": mean(row["bytes_up_per_client"] for row in same),
            }
        )
    return found


def behind_a_peer(summary: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each case in which `protected` is no better than a peer."""
    by_cell = {(r["dataset"], r["people"], r["epsilon"], r["method"]): r for r in summary}
    return [
        f"{row['dataset']}, {row['people']:,} people, epsilon {row['epsilon']:g}: "
        f"{row['method']} {row['ndcg@20']:.4f}, protected {ours['ndcg@20']:.4f}"
        for (*place, method), row in by_cell.items()
        if method != Protected.name
        and (ours := by_cell.get((*place, Protected.name)))
        and row["ndcg@20"] >= ours["ndcg@20"]
    ]
