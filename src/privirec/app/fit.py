"""Fitting of a model for use, on all interactions, without a held-out split or evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from privirec import threads as threading
from privirec.data.interactions import Interactions
from privirec.models import Recommender
from privirec.private import PrivateRecommender
from privirec.progress import QUIET, Phases
from privirec.runtime.plan import CENTRALIZED, Plan
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


def fit_all(interactions: Interactions, name: str, plan: Plan, phases: Phases = QUIET) -> Fitted:
    """Fit the model of a plan on all interactions; `name` is the name of the data set."""
    if plan.method != CENTRALIZED:
        raise ValueError("only what is computed on one machine is fitted here")
    with threading.limit(plan.threads):
        recommender = plan.recommender(name, interactions.n_items)
        report = phases(f"{plan.model_name}: singular vectors")
        recommender.fit(interactions, seed=plan.seed, progress=report)
    row = _row(interactions, name, recommender, seed=plan.seed)
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
