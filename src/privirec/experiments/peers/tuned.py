"""Settings of the peers, tuned on a held-out fifth of each train split (NDCG@20 of 4,000 people).

They come from a coordinate search at two promises for each data set. A run takes the settings of
the promise whose signal (`Promise.signal`) is closer to its own. A data set without settings takes
those of the tuned data set that it resembles more in people per item. `protected` gets less
tuning: it uses the same constants everywhere. `tuned.csv` also has the NDCG@20 on the
held-out fifth and the number of trials; docs/results/privacy-table.md lists the search space.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from privirec.data.interactions import Interactions
from privirec.federated.programs.calibration import Promise

Settings = Mapping[str, Any]

SEVERAL_PEOPLE_PER_ITEM = 4
SIGNALS: Mapping[str, tuple[float, float]] = {"gowalla": (6.1e3, 4.0e4), "globo": (3.2e4, 2.1e5)}
"""Signal (`Promise.signal`) of each data set at epsilon 1 and 8."""


def _read() -> dict[str, dict[str, list[Settings]]]:
    """Return the settings in `tuned.csv`; a peer has those of its columns that are not empty."""
    found: dict[str, dict[str, list[Settings]]] = {}
    text = files("privirec.experiments.peers").joinpath("tuned.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        about = {name: row.pop(name) for name in ("peer", "dataset", "epsilon", "ndcg", "trials")}
        settings = {name: json.loads(value) for name, value in row.items() if value}
        found.setdefault(about["peer"], {}).setdefault(about["dataset"], []).append(settings)
    return found


TUNED = _read()
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
