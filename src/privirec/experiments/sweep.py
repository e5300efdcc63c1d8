"""NDCG@20 of GF-CF on PriviRec-k against k, for several numbers of rounds.

One power method at the largest k serves all smaller ones. With one Gram-Schmidt QR per step, the
first k columns depend only on the first k columns of the start block, and rounds 1..L of a longer
run are a run of L rounds. Scores are therefore built up from one k to the next (256 columns in the
paper's figure), and a sweep costs about as much as its last point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privirec import threads as threading
from privirec.data.interactions import Dataset
from privirec.errors import UsageError
from privirec.evaluation import Batch, evaluate, measure_rankings, rank_unseen, tested_batches
from privirec.experiments.measured import MeasuredRows, over_seeds, write_csv_table
from privirec.federated.contributions import ItemItem
from privirec.federated.programs import PrivirecK
from privirec.federated.programs.privirec import item_item_sum
from privirec.filters.components import LowPass
from privirec.filters.operators import SparseOperator, history_coordinates
from privirec.models.gf_cf import GFCF, GFCFConfig
from privirec.progress import QUIET, Phases
from privirec.rows import in_file_name
from privirec.runtime.execute import execute_steps
from privirec.runtime.local.simulation import Simulation
from privirec.version import __version__

PRIVIREC = 0
"""Rank that stands for PriviRec itself, with the whole item-item matrix."""
CENTRALISED = 0
"""Number of rounds that stands for GF-CF on one machine."""
COMPETITIVE_RANK = {"gowalla": 2048, "yelp2018": 2816}
"""Smallest k at which PriviRec-k is competitive with PriviRec in the paper's figure."""
RANK_STEP, RANK_STEPS = 256, 14
"""Step and number of ranks in the paper's figure: 256, 512, ..., 3584."""
USERS_AT_ONCE = 256
"""Users per batch. An interrupted sweep stores its progress as a number of these batches."""

FIELDS = (
    "dataset",
    "rounds",
    "rank",
    "ndcg@20",
    "recall@20",
    "users",
    "seed",
    "fingerprint",
    "version",
)
IDENTITY = ("dataset", "fingerprint", "seed", "version", "rounds", "rank")
"""Names of the fields that identify a measurement."""
BATCH_IDENTITY = ("dataset", "fingerprint", "seed", "version", "rounds", "ranks", "batch")
"""Names of the fields that identify a batch of users of an unfinished curve."""


def usual_ranks(n_items: int) -> list[int]:
    """Return the paper's ranks, or as many with a smaller step for a smaller catalogue."""
    step = max(1, min(RANK_STEP, n_items // RANK_STEPS))
    return list(range(step, min(step * RANK_STEPS, n_items) + 1, step))


@dataclass
class Sweep:
    """Points to measure, and the folder that keeps finished ones."""

    dataset: Dataset
    folder: Path
    ranks: Sequence[int]
    rounds: Sequence[int]
    seed: int = 0
    threads: int | None = None

    def __post_init__(self) -> None:
        if not self.ranks or min(self.ranks) < 1 or min(self.rounds) < 2:
            raise UsageError("a sweep needs ranks of at least 1 and at least 2 rounds")
        if max(self.ranks) > self.dataset.train.n_items:
            raise UsageError(
                f"rank {max(self.ranks)} does not fit a catalogue of "
                f"{self.dataset.train.n_items} items"
            )
        self.ranks = sorted(set(self.ranks))
        self.rounds = sorted(set(self.rounds))
        self._measurements = MeasuredRows(self.rows_path, "sweep", IDENTITY)

    @property
    def _stem(self) -> str:
        return f"sweep-{in_file_name(self.dataset.name)}" + (
            f"-seed{self.seed}" if self.seed else ""
        )

    @property
    def rows_path(self) -> Path:
        """File of the finished points, from which a sweep resumes."""
        return self.folder / f"{self._stem}.jsonl"

    @property
    def csv_path(self) -> Path:
        return self.folder / f"{self._stem}.csv"

    @property
    def picture_path(self) -> Path:
        return self.folder / f"{self._stem}.png"

    @property
    def _partial_path(self) -> Path:
        return self.folder / f".{self._stem}.partial.jsonl"

    def missing(self, rounds: int) -> list[int]:
        """Return the ranks of a curve that are still to be measured."""
        return [k for k in [PRIVIREC, *self.ranks] if self._point(rounds, k) is None]

    def run(self, phases: Phases = QUIET) -> list[dict[str, Any]]:
        """Measure the missing points, and write every curve to disk as soon as it is finished."""
        with threading.limit(self.threads):
            wanted = [rounds for rounds in self.rounds if self.missing(rounds)]
            if wanted:
                self._measure(wanted, phases)
        asked = [(rounds, k) for rounds in self.rounds for k in [PRIVIREC, *self.ranks]]
        return [row for key in asked if (row := self._point(*key)) is not None]

    def centralised(self, phases: Phases = QUIET) -> dict[str, Any]:
        """Return the point of GF-CF on one machine.

        Its singular vectors have converged, so it does not depend on the seed.
        """
        if (known := self._point(CENTRALISED, PRIVIREC)) is not None:
            return known
        rank = min(GFCFConfig().rank, self.dataset.train.n_items)
        report = phases(f"{self.dataset.name}: GF-CF on one machine")
        with threading.limit(self.threads):
            found = evaluate(GFCF(rank=rank).fit(self.dataset.train), self.dataset, progress=report)
        tested = int(np.count_nonzero(self.dataset.test.user_degrees))
        point = self._add_point(CENTRALISED, PRIVIREC, found.ndcg, found.recall, tested)
        self._write_csv()
        return point

    @cached_property
    def _about(self) -> dict[str, Any]:
        """Fields that all points of a sweep share."""
        return {
            "dataset": self.dataset.name,
            "seed": self.seed,
            "fingerprint": self.dataset.train.fingerprint()[:16],
            "version": __version__,
        }

    def _point(self, rounds: int, rank: int) -> dict[str, Any] | None:
        return self._measurements.find(self._about | {"rounds": rounds, "rank": rank})

    def _add_point(
        self, rounds: int, rank: int, ndcg: float, recall: float, users: int
    ) -> dict[str, Any]:
        point = {"rounds": rounds, "rank": rank, "ndcg@20": ndcg, "recall@20": recall}
        return self._measurements.add(self._about | point | {"users": users})

    def _measure(self, wanted: list[int], phases: Phases) -> None:
        train = self.dataset.train
        gf_cf = GFCFConfig()
        # PriviRec's own low-pass filter does not depend on the ranks of this sweep.
        low_rank = min(gf_cf.low_pass_rank, train.n_items)
        rank = max(low_rank, *self.ranks)
        settings = PrivirecK.preset("paper", rank=rank, rounds=max(wanted), seed=self.seed)
        program = PrivirecK(settings, train.n_users, train.n_items)
        simulation = Simulation(train)
        report = phases(f"{self.dataset.name}: power method, k = {settings.rank}")
        states: dict[int, tuple[NDArray[np.float32], NDArray[np.float32]]] = {}

        def keep(number: int, basis: NDArray, triangle: NDArray) -> None:
            report(number, max(wanted))
            if number in wanted:
                states[number] = (
                    np.ascontiguousarray(basis, np.float32),
                    np.diagonal(triangle).astype(np.float32),
                )

        degrees = train.item_degrees
        steps = program.power_rounds(program.power_sums(), degrees, keep)
        execute_steps(steps, simulation)
        planned = ItemItem.planned(train.n_items, settings.alpha, settings.ring_bits)
        matrix = execute_steps(item_item_sum(planned, degrees), simulation)
        exact = SparseOperator(matrix.astype(np.float32))
        for rounds in wanted:
            basis, eigenvalues = states.pop(rounds)
            low_pass = LowPass.from_basis(basis[:, :low_rank], degrees)
            gamma = np.float32(gf_cf.gamma)
            self._curve(rounds, basis, eigenvalues, low_pass, gamma, exact, phases)

    def _curve(
        self,
        rounds: int,
        basis: NDArray[np.float32],
        eigenvalues: NDArray[np.float32],
        low_pass: LowPass,
        gamma: np.float32,
        exact: SparseOperator,
        phases: Phases,
    ) -> None:
        """Measure all points of a curve in batches of users; partial sums survive Ctrl-C."""
        ranks = self.missing(rounds)
        curve = self._about | {"rounds": rounds, "ranks": ranks}
        batches = MeasuredRows(self._partial_path, "sweep batches", BATCH_IDENTITY, ("sums",))
        total = int(np.count_nonzero(self.dataset.test.user_degrees))
        report = phases(f"{self.dataset.name}: ranking, L = {rounds}")
        sums = np.zeros((len(ranks), 2))
        done = 0
        for number, batch in enumerate(tested_batches(self.dataset, USERS_AT_ONCE)):
            identity = curve | {"batch": number}
            row = batches.find(identity)
            if row is None:
                metrics = _batch_sums(batch, ranks, basis, eigenvalues, low_pass, gamma, exact)
                row = batches.add(identity | {"sums": [metrics[k] for k in ranks]})
            sums += row["sums"]
            done += batch.train.shape[0]
            report(done, total)
        for k, (recall, ndcg) in zip(ranks, sums.tolist(), strict=True):
            self._add_point(rounds, k, ndcg / total, recall / total, total)
        self._write_csv()
        self._partial_path.unlink(missing_ok=True)

    def _write_csv(self) -> None:
        rows = self._measurements.rows_with(self._about)
        rows.sort(key=lambda row: (row["rounds"], row["rank"]))
        write_csv_table(self.csv_path, FIELDS, rows)


def _batch_sums(
    batch: Batch,
    ranks: Sequence[int],
    basis: NDArray[np.float32],
    eigenvalues: NDArray[np.float32],
    low_pass: LowPass,
    gamma: np.float32,
    exact: SparseOperator,
) -> dict[int, tuple[float, float]]:
    """Return the sums of recall and NDCG over a batch of users, by rank."""
    train, test = batch.train, batch.test
    low = low_pass.coordinates(train)
    low *= gamma
    scores = np.zeros((train.shape[0], train.shape[1]), np.float32)
    coordinates = history_coordinates(train, basis)
    coordinates *= eigenvalues
    sums = {}

    def note(k: int, scores: NDArray[np.float32]) -> None:
        recall, ndcg = measure_rankings(rank_unseen(scores, train, 20), test)
        sums[k] = float(recall.sum()), float(ndcg.sum())

    if PRIVIREC in ranks:
        note(PRIVIREC, exact.rows(train, onto=low @ low_pass.right))
    start = 0
    for k in (k for k in ranks if k != PRIVIREC):
        scores += coordinates[:, start:k] @ basis[:, start:k].T
        scores += low[:, start:k] @ low_pass.right[start:k]
        note(k, scores.copy())
        start = k
    return sums


def averaged(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each number of rounds and k, with means over seeds."""

    def cell(row: Mapping[str, Any]) -> tuple[int, int]:
        return row["rounds"], row["rank"]

    found = []
    for (rounds, rank), group in groupby(sorted(points, key=cell), cell):
        found.append({"rounds": rounds, "rank": rank, **over_seeds(list(group))})
    return found


def reaches(points: Sequence[dict[str, Any]], rounds: int) -> tuple[float, int | None]:
    """Return PriviRec's NDCG@20 with this many rounds, and the smallest k that reaches it."""
    curve = {row["rank"]: row["ndcg@20"] for row in points if row["rounds"] == rounds}
    target = curve[PRIVIREC]
    return target, min((k for k, ndcg in curve.items() if k and ndcg >= target), default=None)
