"""Settings of trained methods, and how many epochs, tuned on a fifth of Gowalla's train split, held
out (NDCG@20 of 4,000 people), by hand over a small grid: docs/results/frontier.md has all trials,
`benchmarks/tune_trained.py` makes one. Epochs end where that figure ends to rise, or at 3 GB
that a client sends. Data that nobody tuned for take Gowalla's settings.
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
    """Of the data set, or of Gowalla."""
    return TUNED[method].get(dataset, TUNED[method]["gowalla"])
