"""Settings of the peers, tuned on a held-out fifth of each train split (NDCG@20 of 4,000 people).

They come from a coordinate search at two promises for each data set. A run takes the settings of
the promise whose signal (`Promise.signal`) is closer to its own. A data set without settings takes
those of the tuned data set that it resembles more in people per item. `protected` gets less
tuning: it uses the same constants everywhere. docs/results/privacy-table.md lists the search space.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from privirec.data.interactions import Interactions
from privirec.federated.programs.calibration import Promise

Settings = Mapping[str, Any]

SEVERAL_PEOPLE_PER_ITEM = 4
SIGNALS: Mapping[str, tuple[float, float]] = {"gowalla": (6.1e3, 4.0e4), "globo": (3.2e4, 2.1e5)}
"""Signal (`Promise.signal`) of each data set at epsilon 1 and 8."""

TUNED: Mapping[str, Mapping[str, tuple[Settings, Settings]]] = {
    "private-power": {
        "gowalla": (
            # validation NDCG@20 0.0324, 44 trials
            {
                "head": 1000,
                "columns": 32,
                "rounds": 3,
                "clip": 0.05,
                "left": 0.25,
                "lift": 0.3,
                "popularity_share": 0.2,
                "growth": 1.5,
            },
            # validation NDCG@20 0.0720, 34 trials
            {
                "head": 4000,
                "columns": 48,
                "rounds": 3,
                "clip": 0.1,
                "left": 0.1,
                "lift": 0.1,
                "popularity_share": 0.1,
                "growth": 1.0,
            },
        ),
        "globo": (
            # validation NDCG@20 0.1553, 30 trials
            {
                "head": 3000,
                "columns": 96,
                "rounds": 3,
                "clip": 0.05,
                "left": 0.25,
                "lift": 0.2,
                "popularity_share": 0.05,
                "growth": 1.0,
            },
            # validation NDCG@20 0.1687, 21 trials
            {
                "head": 3000,
                "columns": 96,
                "rounds": 3,
                "clip": 0.1,
                "left": 0.1,
                "lift": 0.4,
                "popularity_share": 0.1,
                "growth": 1.0,
            },
        ),
    },
    "dpals": {
        "gowalla": (
            # validation NDCG@20 0.0312, 19 trials
            {
                "head": 2000,
                "columns": 8,
                "rounds": 4,
                "clip": 0.03,
                "outer": 0.003,
                "everybody": 0.003,
                "unobserved": 0.1,
                "item_unobserved": 0.003,
                "user_ridge": 1.0,
                "noise_ridge": 32.0,
                "lift": -0.2,
                "popularity_share": 0.2,
                "growth": 1.5,
                "items_each": 5,
            },
            # validation NDCG@20 0.0648, 7 trials
            {
                "head": 4000,
                "columns": 40,
                "rounds": 3,
                "clip": 0.1,
                "outer": 0.1,
                "everybody": 0.003,
                "unobserved": 0.1,
                "item_unobserved": 0.03,
                "user_ridge": 3.0,
                "noise_ridge": 4.0,
                "lift": -0.3,
                "popularity_share": 0.05,
                "growth": 1.5,
                "items_each": 8,
            },
        ),
        "globo": (
            # validation NDCG@20 0.1525, 3 trials
            {
                "head": 3000,
                "columns": 32,
                "rounds": 5,
                "clip": 0.003,
                "outer": 0.2,
                "everybody": 0.01,
                "unobserved": 0.1,
                "item_unobserved": 0.1,
                "user_ridge": 30.0,
                "noise_ridge": 8.0,
                "lift": 0.2,
                "popularity_share": 0.1,
                "growth": 1.5,
                "items_each": 8,
            },
            # validation NDCG@20 0.1580, 1 trials
            {
                "head": 3000,
                "columns": 32,
                "rounds": 5,
                "clip": 0.003,
                "outer": 0.2,
                "everybody": 0.01,
                "unobserved": 0.1,
                "item_unobserved": 0.1,
                "user_ridge": 30.0,
                "noise_ridge": 8.0,
                "lift": 0.2,
                "popularity_share": 0.1,
                "growth": 1.0,
                "items_each": 8,
            },
        ),
    },
    "ada-dpals": {
        "gowalla": (
            # validation NDCG@20 0.0332, 165 trials
            {
                "head": 2000,
                "columns": 8,
                "rounds": 4,
                "clip": 0.03,
                "outer": 0.003,
                "everybody": 0.003,
                "unobserved": 0.1,
                "item_unobserved": 0.003,
                "user_ridge": 1.0,
                "noise_ridge": 8.0,
                "lift": 0.1,
                "popularity_share": 0.2,
                "growth": 1.5,
                "adapt": 0.6,
            },
            # validation NDCG@20 0.0698, 34 trials
            {
                "head": 4000,
                "columns": 40,
                "rounds": 3,
                "clip": 0.1,
                "outer": 0.1,
                "everybody": 0.003,
                "unobserved": 0.1,
                "item_unobserved": 0.03,
                "user_ridge": 3.0,
                "noise_ridge": 4.0,
                "lift": -0.1,
                "popularity_share": 0.05,
                "growth": 1.5,
                "adapt": 0.35,
            },
        ),
        "globo": (
            # validation NDCG@20 0.1589, 38 trials
            {
                "head": 3000,
                "columns": 32,
                "rounds": 5,
                "clip": 0.003,
                "outer": 0.2,
                "everybody": 0.01,
                "unobserved": 0.1,
                "item_unobserved": 0.1,
                "user_ridge": 30.0,
                "noise_ridge": 8.0,
                "lift": 0.3,
                "popularity_share": 0.1,
                "growth": 1.5,
                "adapt": 0.35,
            },
            # validation NDCG@20 0.1681, 7 trials
            {
                "head": 4000,
                "columns": 32,
                "rounds": 5,
                "clip": 0.003,
                "outer": 0.2,
                "everybody": 0.01,
                "unobserved": 0.1,
                "item_unobserved": 0.1,
                "user_ridge": 30.0,
                "noise_ridge": 8.0,
                "lift": 0.3,
                "popularity_share": 0.1,
                "growth": 1.0,
                "adapt": 0.6,
            },
        ),
    },
}
"""Settings for epsilon 1 and 8, by peer and data set."""


def tuned_settings(
    peer: str, dataset: str, train: Interactions, promise: Promise
) -> dict[str, Any]:
    """Return a peer's settings for this data set, or the most similar one, and this promise."""
    if peer not in TUNED:
        return {}
    if dataset not in SIGNALS:
        many = train.n_users >= SEVERAL_PEOPLE_PER_ITEM * train.n_items
        dataset = "globo" if many else "gowalla"
    signal = math.log(promise.signal(train.n_users))
    low, high = (abs(signal - math.log(one)) for one in SIGNALS[dataset])
    return dict(TUNED[peer][dataset][0 if low <= high else 1])
