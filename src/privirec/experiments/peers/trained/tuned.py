"""Settings and numbers of epochs of the trained methods.

They were tuned by hand over a small grid, by NDCG@20 of 4,000 people on a held-out fifth of
Gowalla's train split. docs/results/frontier.md has all trials; `benchmarks/tune_trained.py` runs
one. Training stops when NDCG@20 stops rising, or when a client has sent 3 GB. Other data sets take
Gowalla's settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tuned:
    settings: Mapping[str, Any]
    epochs: int


TUNED: Mapping[str, Mapping[str, Tuned]] = {
    "mf": {
        "gowalla": Tuned(
            {"columns": 64, "unobserved": 0.01, "ridge": 0.01, "step": 1.0, "momentum": 0.4}, 30
        ),
    },
    "lightgcn": {
        "gowalla": Tuned(
            {"columns": 64, "layers": 1, "rate": 0.1, "half_rate_after": 20, "ridge": 0.003}, 130
        ),
    },
}


def tuned_settings(method: str, dataset: str) -> Tuned:
    """Return the settings for the data set, or Gowalla's if it has none."""
    return TUNED[method].get(dataset, TUNED[method]["gowalla"])
