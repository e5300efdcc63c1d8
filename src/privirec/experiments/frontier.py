"""Accuracy against bytes per client, for all families of methods, including trained ones.

The registry `FAMILIES` holds the name, the title and the points of each family. A new method needs
a function that lists its plans, and an entry in the registry.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from statistics import mean
from typing import Any

from privirec.data.interactions import Dataset
from privirec.errors import UsageError
from privirec.evaluation import evaluate
from privirec.experiments.measured import Measurable, MeasuredRows, over_seeds
from privirec.experiments.peers import TRAINED, Training
from privirec.experiments.peers.training import tuned_settings
from privirec.federated.contributions import Histories
from privirec.federated.programs import (
    HeadGram,
    Privirec,
    PrivirecK,
    Protected,
    SpectralProgram,
    SpectralSettings,
)
from privirec.models import EASE, GFCF, MODELS
from privirec.privacy.ledger import Ledger
from privirec.runtime.execute import execute_steps
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.run import run
from privirec.runtime.spec import RunSpec
from privirec.version import __version__

PAPER_RANKS = (256, 512, 1024)
SPECTRAL_LADDER = (
    ("4x8", 24),
    ("4x16", 48),
    ("4x32", 90),
    ("4x64", 180),
    ("8x64", 320),
    ("8x138", 571),
    ("6x279", 900),
    ("4x776", 2000),
)
"""Pairs of columns (rounds x columns per round) and number of vectors kept."""
HEADS = (250, 500, 1000, 2000, 4000)
EPSILONS = (1.0, 2.0, 4.0, 8.0, 16.0)
CENTRAL_MODELS = ("gf-cf", "turbo-cf", "bspm-em")
CHECKPOINTS = (1, 2, 3, 5, 8, 12, 20, 30, 45, 60, 90, 120)
"""Epochs after which a trained method is measured, in addition to its last one."""

IDENTITY = ("dataset", "fingerprint", "family", "label", "settings", "epochs", "seed")
"""Names of the fields that identify a measurement."""
CSV_COLUMNS = (
    "dataset",
    "family",
    "label",
    "epochs",
    "epsilon",
    "ndcg@20",
    "spread",
    "recall@20",
    "bytes_up_per_client",
    "bytes_down_per_client",
    "bytes_per_client",
    "seeds",
)


def _identity(
    dataset: Dataset, family: str, label: str, settings: Any, epochs: int | None, seed: int
) -> dict[str, Any]:
    return {
        "dataset": dataset.name,
        "fingerprint": dataset.train.fingerprint()[:16],
        "family": family,
        "label": label,
        "settings": settings,
        "epochs": epochs,
        "seed": seed,
    }


def _result(
    found: Mapping[str, Any], up: int, down: int, epsilon: float | None, seconds: float
) -> dict[str, Any]:
    return {
        "epsilon": epsilon,
        **found,
        "bytes_up_per_client": up,
        "bytes_down_per_client": down,
        "bytes_per_client": up + down,
        "cpu_seconds": seconds,
        "version": __version__,
    }


@dataclass(frozen=True)
class PlannedPoint:
    """A run of a model by a method."""

    dataset: Dataset
    family: str
    label: str
    spec: RunSpec

    def identity(self) -> dict[str, Any]:
        spec = self.spec
        given = spec.given()
        settings = {
            "model": spec.model,
            "method": spec.method,
            "preset": spec.preset,
            **{name: given.pop(name, None) for name in ("rank", "rounds", "head")},
            **given,
        }
        seed = settings.pop("seed", 0)
        return _identity(self.dataset, self.family, self.label, settings, None, seed)

    def measure(self) -> dict[str, Any]:
        row = run(self.dataset, self.spec).row
        return self.identity() | _result(
            {name: row[name] for name in ("ndcg@20", "recall@20")},
            row["bytes_up_per_client"],
            row["bytes_down_per_client"],
            row["epsilon"],
            row["cpu_seconds"],
        )


@dataclass
class TrainingRun:
    """The state of a method in training.

    Training only moves forward. A request for an earlier epoch restarts it.
    """

    method: str
    dataset: Dataset
    settings: Mapping[str, Any]
    seed: int
    ledger: Ledger = field(default_factory=Ledger)
    epoch: int | None = None
    seconds: float = 0.0
    _training: Training | None = None

    def up_to(self, epoch: int) -> Training:
        """Return the method after this many epochs; `ledger` has their cost."""
        started = time.process_time()
        train = self.dataset.train
        simulation = Simulation(train)
        if self._training is None or self.epoch is None or self.epoch > epoch:
            self.ledger, self.epoch, self.seconds = Ledger(), 0, 0.0
            kind: Any = TRAINED[self.method]
            self._training = kind(Histories(train.matrix), seed=self.seed, **self.settings)
            execute_steps(self._training.start(), simulation, self.ledger)
        while self.epoch < epoch:
            execute_steps(self._training.epoch(), simulation, self.ledger)
            self.epoch += 1
        self.seconds += time.process_time() - started
        return self._training


@dataclass(frozen=True)
class TrainedPoint:
    """A trained method after some epochs. The points of a curve share their training."""

    family: str
    run: TrainingRun
    epochs: int

    def identity(self) -> dict[str, Any]:
        run = self.run
        label = f"{self.epochs} epochs" if self.epochs > 1 else "1 epoch"
        settings = dict(run.settings)
        return _identity(run.dataset, self.family, label, settings, self.epochs, run.seed)

    def measure(self) -> dict[str, Any]:
        training = self.run.up_to(self.epochs)
        found = evaluate(training.scorer(), self.run.dataset)
        ledger = self.run.ledger
        return self.identity() | _result(
            found.as_row(), ledger.bytes_up, ledger.bytes_down, None, self.run.seconds
        )


# --- families -------------------------------------------------------------------------------------

Points = Callable[[Dataset, int], list[Measurable]]


@dataclass(frozen=True)
class Family:
    """Points of one method, which a picture shows in one colour."""

    name: str
    title: str
    points: Points
    level: bool = False
    """If true, each point is a baseline that sends nothing, drawn as a horizontal line."""


Specs = Iterable[tuple[str, RunSpec]]
"""Pairs of a point's label and its run."""


def planned(name: str, title: str, specs: Callable[[Dataset], Specs]) -> Family:
    """Return a family of runs."""

    def points(dataset: Dataset, seed: int) -> list[Measurable]:
        return [
            PlannedPoint(dataset, name, label, spec.changed(seed=seed))
            for label, spec in specs(dataset)
        ]

    return Family(name, title, points)


def trained(kind: type[Training]) -> Family:
    """Return the family of a trained method, with a point for each checkpoint."""

    def points(dataset: Dataset, seed: int) -> list[Measurable]:
        tuned = tuned_settings(kind.name, dataset.name)
        run = TrainingRun(kind.name, dataset, tuned.settings, seed)
        looked_at = [*(one for one in CHECKPOINTS if one < tuned.epochs), tuned.epochs]
        return [TrainedPoint(kind.name, run, epochs) for epochs in looked_at]

    return Family(kind.name, kind.title, points)


def _privirec(dataset: Dataset) -> Specs:
    yield "P~", RunSpec.of(Privirec.name, model=GFCF.name, preset="paper")


def _privirec_k(dataset: Dataset) -> Specs:
    for rank in _within(PAPER_RANKS, dataset.train.n_items):
        given = {"model": GFCF.name, "preset": "paper", "rank": rank}
        yield f"k = {rank}", RunSpec.of(PrivirecK.name, **given)


def _spectral(dataset: Dataset) -> Specs:
    """Yield the presets tuned for the data set, and the other numbers of columns."""
    tuned = {
        settings["columns"]: RunSpec.of(SpectralProgram.name, preset=name)
        for name, settings in SpectralProgram.presets.items()
        if name.startswith(f"{dataset.name}-")
    }
    usual = {
        columns: RunSpec.of(SpectralProgram.name, rank=rank, columns=columns)
        for columns, rank in SPECTRAL_LADDER
    }
    specs = usual | tuned
    totals = {columns: sum(SpectralSettings(columns=columns).columns or ()) for columns in specs}
    for columns, total in sorted(totals.items(), key=lambda each: each[1]):
        if total <= dataset.train.n_items // 2:
            yield f"{total:,}", specs[columns]


def _head(dataset: Dataset) -> Specs:
    for head in _within(HEADS, dataset.train.n_items):
        yield f"m = {head}", RunSpec.of(HeadGram.name, model=EASE.name, head=head)


def _protected(dataset: Dataset) -> Specs:
    for epsilon in EPSILONS:
        yield f"ε = {epsilon:g}", RunSpec.of(Protected.name, epsilon=epsilon)


def _central(dataset: Dataset) -> Specs:
    for model in CENTRAL_MODELS:
        yield MODELS[model].title, RunSpec.of(model=model)


def _within(sizes: Sequence[int], items: int) -> list[int]:
    """Return the sizes up to the number of items or, if there are none, half that number."""
    return [size for size in sizes if size <= items] or [max(1, items // 2)]


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        planned(SpectralProgram.name, "spectral, by columns summed", _spectral),
        planned(PrivirecK.name, "PriviRec-k, GF-CF (paper's preset)", _privirec_k),
        planned(Privirec.name, "PriviRec, GF-CF (paper's preset)", _privirec),
        planned("head-ease", "EASE on a head of m items", _head),
        planned(Protected.name, "protected (differential privacy, δ = 1e-6)", _protected),
        *(trained(kind) for kind in TRAINED.values()),
        replace(planned("central", "centralised", _central), level=True),
    )
}


def points_of(
    datasets: Iterable[Dataset], methods: Sequence[str] = tuple(FAMILIES), seeds: int = 1
) -> list[Measurable]:
    """Return all points, by data set, method and seed."""
    for method in methods:
        if method not in FAMILIES:
            raise UsageError(f"no method {method!r}; there are {', '.join(FAMILIES)}")
    return [
        point
        for dataset in datasets
        for method in dict.fromkeys(methods)
        for seed in range(seeds)
        for point in FAMILIES[method].points(dataset, seed)
    ]


def measured_rows(path: Path | None) -> MeasuredRows:
    """Return the rows that an earlier run of the command wrote to a file."""
    return MeasuredRows(path, "frontier", IDENTITY)


def summary_of(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per point, with mean and spread over its seeds.

    Rows are sorted by family, then by bytes.
    """
    names = list(FAMILIES)

    def cell(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return row["dataset"], names.index(row["family"]), row["epochs"] or 0, row["label"]

    found = []
    for _, group in groupby(sorted(rows, key=cell), cell):
        same = list(group)
        kept = ("dataset", "family", "label", "epochs", "epsilon")
        averaged = [name for name in CSV_COLUMNS if name.startswith("bytes")]
        found.append(
            {name: same[0][name] for name in kept}
            | {name: mean(row[name] for row in same) for name in averaged}
            | over_seeds(same)
        )

    def place(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return names.index(row["family"]), row["bytes_per_client"], row["epsilon"] or 0

    return sorted(found, key=place)


def cheapest_that_reaches(
    summary: Sequence[Mapping[str, Any]], level: float
) -> list[Mapping[str, Any]]:
    """Return each family's point with the fewest bytes among those that reach an NDCG@20."""
    best: dict[str, Mapping[str, Any]] = {}
    for row in summary:
        known = best.get(row["family"])
        if FAMILIES[row["family"]].level or row["ndcg@20"] < level:
            continue
        if known is None or row["bytes_per_client"] < known["bytes_per_client"]:
            best[row["family"]] = row
    return sorted(best.values(), key=lambda row: row["bytes_per_client"])
