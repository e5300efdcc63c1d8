"""The whole story on embedded data: three ways to the same recommender, and an attack."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privirec.data import load_dataset
from privirec.federated.programs import Privirec, PrivirecK
from privirec.privacy.attacks import Peeling
from privirec.report.plots import methods_plot
from privirec.report.progress import QUIET, Phases
from privirec.workflows.audit import audit
from privirec.workflows.run import Plan, run

DATASET = "synthetic:demo"
RANK = 64


@dataclass(frozen=True)
class Demo:
    rows: list[dict[str, Any]]
    audit: dict[str, Any]
    picture: Path
    model: Path


def demo(folder: Path, seed: int = 0, threads: int | None = None, phases: Phases = QUIET) -> Demo:
    """Run everything and save a picture and the PriviRec-k model."""
    dataset = load_dataset(DATASET)
    shared: dict[str, Any] = {"model": "gf-cf", "rank": RANK, "seed": seed, "threads": threads}
    plans = {
        "centralised": Plan(**shared),
        "PriviRec": Plan(method=Privirec.name, **shared),
        "PriviRec-k": Plan(method=PrivirecK.name, **shared),
    }
    rows = []
    for label, plan in plans.items():
        result = run(dataset, plan, phases)
        rows.append({"label": label, **result.row})
    # Once on little data first: the very first run on a machine compiles the attack.
    peeling: dict[str, Any] = {
        "release": Privirec.name,
        "attacks": [Peeling.name],
        "threads": threads,
        "phases": phases,
    }
    audit(load_dataset("synthetic:small"), **peeling)
    (attacked,) = audit(dataset, **peeling)
    picture = methods_plot(
        f"GF-CF on {DATASET}: {dataset.train.n_users:,} users, {dataset.train.n_items:,} items",
        rows,
        folder / "demo.png",
    )
    model = result.recommender.save(folder / "demo-model", result.manifest())
    return Demo(rows, attacked.row, picture, model)
