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
from privirec.runtime.plan import Plan
from privirec.runtime.run import run

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
    for label, plan in {
        "centralised": Plan(**exact),
        "PriviRec": Plan(method=Privirec.name, **exact),
        "PriviRec-k": Plan(method=PrivirecK.name, **exact),
        "protected": _protected(8, shared),
    }.items():
        row = {"label": label, **run(dataset, plan, phases).row}
        if plan.program is not None:
            row["histories_read"] = _read(dataset, plan, phases)
            row["read"] = f"{row['histories_read']:,} of {dataset.train.n_users:,}"
        few.append(row)

    town = load_dataset(MANY)
    popular = evaluate(Popularity().fit(town.train), town).as_row()
    about = {"label": "popularity", "method": Popularity.name, "users": town.train.n_users}
    many = [{**about, **popular}]
    for label, plan in {
        "PriviRec-k": Plan(method=PrivirecK.name, **exact),
        "protected, epsilon 1": _protected(1, shared),
        "protected, epsilon 8": _protected(8, shared),
    }.items():
        result = run(town, plan, phases)
        many.append({"label": label, **result.row})
    pictures = demo_plot({_title(dataset): few, _title(town): many}, folder / PICTURE)
    model = result.recommender.save(folder / "demo-model", result.manifest())
    return Demo(few, many, pictures, model)


def _protected(epsilon: float, shared: dict[str, Any]) -> Plan:
    return Plan(method=Protected.name, federated={"epsilon": epsilon}, **shared)


def _read(dataset: Dataset, plan: Plan, phases: Phases) -> int:
    """Return the number of whole histories that the best attack reads from a run's release."""
    given = dict(plan.federated) | ({"rank": plan.rank} if plan.method == PrivirecK.name else {})
    chosen: dict[str, Any] = {"attacks": ATTACKS, "threads": plan.threads}
    attacked = audit(dataset, plan.method, given, seed=plan.seed, phases=phases, **chosen)
    read = max(one.row["users_recovered"] for one in attacked)
    return int(read)


def _title(dataset: Dataset) -> str:
    return f"{dataset.name}: {dataset.train.n_users:,} people, {dataset.train.n_items:,} items"
