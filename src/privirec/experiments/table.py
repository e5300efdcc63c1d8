"""The paper's tables of NDCG@20: centralised and PriviRec, for every model and data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from privirec.data.interactions import Dataset
from privirec.experiments.published import NDCG
from privirec.federated.programs import DEFAULT_ROUNDS, PROGRAMS, Privirec
from privirec.models import COMPARED
from privirec.progress import QUIET, Phases
from privirec.runtime.plan import Plan
from privirec.runtime.run import run
from privirec.runtime.spec import computes


def table_rows(
    dataset: Dataset,
    models: Sequence[str] = COMPARED,
    *,
    rounds: int = DEFAULT_ROUNDS,
    seed: int = 0,
    threads: int | None = None,
    phases: Phases = QUIET,
) -> Iterator[dict[str, Any]]:
    """Yield up to three rows of `run` per model: centralised, federated, and the paper's preset.

    The federated row uses PriviRec, or else the first program that computes what the model needs.
    The third row is PriviRec exactly as the paper describes it.
    """
    published = NDCG.get(dataset.name, {})
    for model in models:
        central_paper, privirec_paper = published.get(model, (None, None))
        shared: dict[str, Any] = {"model": model, "seed": seed, "threads": threads}
        central = run(dataset, Plan(**shared), phases).row
        plans = []
        config = Plan(**shared).recommender(dataset.name, dataset.train.n_items).config
        able = (name for name, program in PROGRAMS.items() if computes(program, config))
        if method := next(able, None):
            steps = rounds if config.low_pass_rank else None
            plans.append(Plan(method=method, rounds=steps, **shared))
        # Without a low-pass filter there is no power method, and the preset changes nothing.
        if config.low_pass_rank:
            plans.append(Plan(method=Privirec.name, preset="paper", **shared))
        yield _beside(central, central, central_paper)
        for plan in plans:
            yield _beside(run(dataset, plan, phases).row, central, privirec_paper)


def _beside(
    row: dict[str, Any], central: dict[str, Any], paper_ndcg: float | None
) -> dict[str, Any]:
    ours = row["ndcg@20"]
    return row | {
        "paper_ndcg": paper_ndcg,
        "paper_difference": None if paper_ndcg is None else ours - paper_ndcg,
        "central_difference": None if row is central else ours - central["ndcg@20"],
    }
