"""Choice of a model, and fitting of one for use on all interactions, without evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from privirec import threads as threading
from privirec.auto import AutoRecommender
from privirec.data.interactions import Interactions
from privirec.errors import UsageError
from privirec.models import MODELS, Recommender
from privirec.private import PrivateRecommender
from privirec.progress import QUIET, Phases
from privirec.rows import print_table
from privirec.runtime.spec import AUTO, CENTRALIZED, RunSpec
from privirec.version import __version__

EVERYTHING = "everything"
"""Value of `fitted_on` in the manifest of a model that was fitted on all interactions.

A digest of the data would tell anyone with a guess at the histories whether it is right.
"""


@dataclass
class Fitted:
    """A fitted model and its manifest."""

    recommender: Recommender
    manifest: dict[str, Any]


def chosen(spec: RunSpec, train: Interactions, phases: Phases = QUIET) -> RunSpec:
    """Return the spec with the model that a validation split of `train` chooses.

    A spec that names a model is returned as it is. All trials are printed.
    """
    if spec.model != AUTO:
        return spec
    if {"rank", "head"} & spec.given().keys():
        raise UsageError(f"--model {AUTO} chooses the settings too: leave out --rank and --head")
    auto = AutoRecommender(seed=spec.program.seed)
    with threading.limit(spec.threads):
        best = auto.choose(train, phases("choosing a model"))
    columns = [("model", "model"), ("settings", "settings")]
    columns += [("ndcg", "NDCG@20"), ("seconds", "seconds")]
    rows = [
        {**each._asdict(), "settings": " ".join(f"{k}={v}" for k, v in each.settings.items())}
        for each in auto.trials_
    ]
    print_table("Validation split of train; no figure: out of time", columns, rows)
    config = MODELS[best.model](**best.settings).config
    return spec.changed(model=best.model, config=config.model_dump())


def fit_all(interactions: Interactions, name: str, spec: RunSpec, phases: Phases = QUIET) -> Fitted:
    """Fit the model of a spec on all interactions; `name` is the name of the data set."""
    if spec.method != CENTRALIZED:
        raise ValueError("only what is computed on one machine is fitted here")
    with threading.limit(spec.threads):
        recommender = spec.resolved(name, interactions.n_items, 1).recommender()
        report = phases(f"{spec.model}: singular vectors")
        recommender.fit(interactions, seed=spec.program.seed, progress=report)
    row = _row(interactions, name, recommender, seed=spec.program.seed)
    return Fitted(recommender, {"run": row})


def fit_private(
    interactions: Interactions,
    name: str,
    promised: dict[str, Any],
    *,
    threads: int | None = None,
    phases: Phases = QUIET,
) -> Fitted:
    """Fit a private model on all interactions; `promised` are arguments of PrivateRecommender."""
    recommender = PrivateRecommender(**promised)
    with threading.limit(threads):
        recommender.fit(interactions, progress=phases("private sums"))
    row = _row(interactions, name, recommender, **(recommender.promised | promised))
    return Fitted(recommender, {"run": row})


def _row(
    interactions: Interactions, name: str, recommender: Recommender, **more: Any
) -> dict[str, Any]:
    return {
        "dataset": name,
        "model": recommender.name,
        "method": CENTRALIZED,
        "rank": recommender.config.low_pass_rank,
        "users": interactions.n_users,
        "items": interactions.n_items,
        "interactions": interactions.n_interactions,
        "fitted_on": EVERYTHING,
        **more,
        "version": __version__,
    }
