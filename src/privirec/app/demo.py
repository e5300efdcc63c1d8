"""Demo on synthetic data: accuracy of recommenders, their bytes, and histories they reveal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privirec.app.audit import audit
from privirec.app.pictures.runs import demo_plot
from privirec.data import load_dataset
from privirec.data.interactions import Dataset
from privirec.evaluation import evaluate
from privirec.federated.programs import Privirec, PrivirecK, Protected
from privirec.models import Popularity
from privirec.privacy.attacks import Aimed, Cliques, LikelihoodPeeling, MatchingPursuit, Peeling
from privirec.progress import QUIET, Phases
from privirec.runtime.run import run
from privirec.runtime.spec import RunSpec

FEW, MANY = "synthetic:demo", "synthetic:town"
"""Names of data sets with few and with many people per item."""
PICTURE = "demo.png"
RANK = 64
ATTACKS = [attack.name for attack in (Peeling, MatchingPursuit, LikelihoodPeeling, Cliques, Aimed)]
"""Names of the attacks that read whole histories from the release of one run."""


@dataclass(frozen=True)
class Demo:
    few: list[dict[str, Any]]
    """Rows on the small data set, with the number of histories that an attack read."""
    many: list[dict[str, Any]]
    pictures: list[Path]
    model: Path


def demo(folder: Path, seed: int = 0, threads: int | None = None, phases: Phases = QUIET) -> Demo:
    """Run all methods, and save a picture (PNG and SVG) and the protected model."""
    shared: dict[str, Any] = {"seed": seed, "threads": threads}
    exact: dict[str, Any] = {"model": "gf-cf", "rank": RANK, **shared}
    dataset = load_dataset(FEW)
    few = []
    for label, spec in {
        "centralised": RunSpec.of(**exact),
        "PriviRec": RunSpec.of(Privirec.name, **exact),
        "PriviRec-k": RunSpec.of(PrivirecK.name, **exact),
        "protected": _protected(8, shared),
    }.items():
        row = {"label": label, **run(dataset, spec, phases).row}
        if spec.federated is not None:
            row["histories_read"] = _read(dataset, spec, phases)
            row["read"] = f"{row['histories_read']:,} of {dataset.train.n_users:,}"
        few.append(row)

    town = load_dataset(MANY)
    popular = evaluate(Popularity().fit(town.train), town).as_row()
    about = {"label": "popularity", "method": Popularity.name, "users": town.train.n_users}
    many = [{**about, **popular}]
    for label, spec in {
        "PriviRec-k": RunSpec.of(PrivirecK.name, **exact),
        "protected, epsilon 1": _protected(1, shared),
        "protected, epsilon 8": _protected(8, shared),
    }.items():
        result = run(town, spec, phases)
        many.append({"label": label, **result.row})
    pictures = demo_plot({_title(dataset): few, _title(town): many}, folder / PICTURE)
    model = result.recommender.save(folder / "demo-model", result.manifest())
    return Demo(few, many, pictures, model)


def _protected(epsilon: float, shared: dict[str, Any]) -> RunSpec:
    return RunSpec.of(Protected.name, epsilon=epsilon, **shared)


def _read(dataset: Dataset, spec: RunSpec, phases: Phases) -> int:
    """Return the number of whole histories that the best attack reads from a run's release."""
    given = spec.program.given()
    seed = given.pop("seed")
    if spec.method == Privirec.name:
        given.pop("rank")
    chosen: dict[str, Any] = {"attacks": ATTACKS, "threads": spec.threads}
    attacked = audit(dataset, spec.method, given, seed=seed, phases=phases, **chosen)
    read = max(one.row["users_recovered"] for one in attacked)
    return int(read)


def _title(dataset: Dataset) -> str:
    return f"{dataset.name}: {dataset.train.n_users:,} people, {dataset.train.n_items:,} items"
