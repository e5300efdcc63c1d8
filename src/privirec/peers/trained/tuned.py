"""Settings of trained methods, and how many epochs, tuned on a fifth of each train split, held out
(NDCG@20 of 4,000 people).

By hand over a small grid, `benchmarks/tune_trained.py` being one line of it at a time. Epochs end
where the validation figure does, or at about 3 GB that a client sends. Data that nobody tuned for
take the settings of the data set that is most like it, by people for each item.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from privirec.data.interactions import Interactions
from privirec.peers.tuned import most_like


@dataclass(frozen=True)
class Tuned:
    settings: Mapping[str, Any]
    epochs: int


_MF = {"columns": 64, "unobserved": 0.01, "ridge": 0.01, "step": 1.0, "momentum": 0.4}
_LIGHTGCN = {"columns": 64, "layers": 1, "rate": 0.1, "half_rate_after": 20, "ridge": 0.003}

TUNED: Mapping[str, Mapping[str, Tuned]] = {
    "mf": {"gowalla": Tuned(_MF, 30), "globo": Tuned(_MF, 30)},
    "lightgcn": {"gowalla": Tuned(_LIGHTGCN, 60), "globo": Tuned(_LIGHTGCN, 60)},
}


def tuned_settings(method: str, dataset: str, train: Interactions) -> Tuned:
    """Of the data set, or of the one that is most like it."""
    known = TUNED[method]
    return known[most_like(dataset, train, known)]
