"""The paper's tables of NDCG@20: centralised and PriviRec, for every model and data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from privirec.data.interactions import Dataset
from privirec.experiments.measured import MeasuredRows
from privirec.federated.programs import DEFAULT_ROUNDS, PROGRAMS, Privirec
from privirec.progress import QUIET, Phases
from privirec.runtime.run import run
from privirec.runtime.spec import RunSpec, computes
from privirec.version import __version__

NDCG: dict[str, dict[str, tuple[float, float | None]]] = {
    "gowalla": {
        "gf-cf": (0.1518, 0.1528),
        "turbo-cf": (0.1531, 0.1531),
        "bspm-lm": (0.1570, 0.1580),
        "bspm-em": (0.1597, 0.1595),
        "ease": (0.1467, None),
        "linkprop": (0.1477, None),
        "linkprop-multi": (0.1573, None),
    },
    "yelp2018": {
        "gf-cf": (0.0571, 0.0561),
        "turbo-cf": (0.0574, 0.0574),
        "bspm-lm": (0.0584, 0.0576),
        "bspm-em": (0.0593, 0.0589),
        "ease": (0.0552, None),
        "linkprop": (0.0559, None),
        "linkprop-multi": (0.0571, None),
    },
    "amazon-book": {
        "gf-cf": (0.0584, 0.0584),
        "turbo-cf": (0.0611, 0.0611),
        "bspm-lm": (0.0610, 0.0610),
        "bspm-em": (0.0609, 0.0609),
        "ease": (0.0567, None),
        "linkprop": (0.0559, None),
        "linkprop-multi": (0.0588, None),
    },
}
"""Published NDCG@20: the paper's main table (centralised, PriviRec with L = 2), and its comparison.

For the models of its comparison, the paper has no results with clients.
"""
IDENTITY = (
    "dataset",
    "fingerprint",
    "model",
    "method",
    "preset",
    "planned_rounds",
    "seed",
    "version",
)
"""Names of the fields that identify a measurement."""


def measured_rows(path: Path | None) -> MeasuredRows:
    """Return the rows that an earlier run of the command wrote to a file."""
    return MeasuredRows(path, "table", IDENTITY)


def table_rows(
    dataset: Dataset,
    models: Sequence[str],
    *,
    measured: MeasuredRows | None = None,
    rounds: int = DEFAULT_ROUNDS,
    seed: int = 0,
    threads: int | None = None,
    phases: Phases = QUIET,
) -> Iterator[dict[str, Any]]:
    """Yield up to three rows of `run` per model: centralised, federated, and the paper's preset.

    The federated row uses PriviRec, or else the first program that computes what the model needs.
    The third row is PriviRec exactly as the paper describes it. Rows in `measured` are not measured
    again; new ones are added to it.
    """
    measured = measured or measured_rows(None)
    published = NDCG.get(dataset.name, {})
    for model in models:
        central_paper, privirec_paper = published.get(model, (None, None))
        shared: dict[str, Any] = {"model": model, "seed": seed, "threads": threads}
        specs = []
        central_spec = RunSpec.of(**shared)
        config = central_spec.resolved(dataset.name, dataset.train.n_items, 1).recommender().config
        able = (name for name, program in PROGRAMS.items() if computes(program, config))
        if method := next(able, None):
            steps = {"rounds": rounds} if config.low_pass_rank else {}
            specs.append(RunSpec.of(method, **shared, **steps))
        # Without a low-pass filter there is no power method, and the preset changes nothing.
        if config.low_pass_rank:
            specs.append(RunSpec.of(Privirec.name, preset="paper", **shared))
        central = _measured(dataset, central_spec, measured, None, central_paper, phases)
        yield central
        for spec in specs:
            yield _measured(dataset, spec, measured, central, privirec_paper, phases)


def _measured(
    dataset: Dataset,
    spec: RunSpec,
    measured: MeasuredRows,
    central: dict[str, Any] | None,
    paper_ndcg: float | None,
    phases: Phases,
) -> dict[str, Any]:
    """Return the row of a run with its differences from the paper and from one machine."""
    identity = {
        "dataset": dataset.name,
        "fingerprint": dataset.train.fingerprint()[:16],
        "model": spec.model,
        "method": spec.method,
        "preset": spec.preset,
        "planned_rounds": spec.given().get("rounds"),
        "seed": spec.program.seed,
        "version": __version__,
    }
    if (known := measured.find(identity)) is not None:
        return known
    row = run(dataset, spec, phases).row
    ours = row["ndcg@20"]
    compared = {
        "paper_ndcg": paper_ndcg,
        "paper_difference": None if paper_ndcg is None else ours - paper_ndcg,
        "central_difference": None if central is None else ours - central["ndcg@20"],
    }
    return measured.add(row | identity | compared)
