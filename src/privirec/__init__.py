"""PriviRec: recommendation that learns from people's histories without collecting them.

>>> from privirec import GFCF, evaluate, load_dataset
>>> data = load_dataset("synthetic:small")
>>> model = GFCF(rank=32).fit(data.train)
>>> ids, scores = model.recommend(7, data.train, N=10)
>>> evaluate(model, data).ndcg > 0.2
True

The names exported here are the stable API; everything else may change.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

from privirec.version import __version__

# BLAS and our compiled kernels take turns. By default the idle threads of each spin for tens of
# milliseconds on a core that the other needs, which cancels the gain from a second core. The
# libraries read these variables when they load, so a program that has already loaded them is not
# affected.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")  # log2 of clock cycles
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from privirec.auto import AutoRecommender
    from privirec.data import (
        Dataset,
        Interactions,
        TableOptions,
        load_dataset,
        read_interactions,
        split,
    )
    from privirec.device.titles import read_titles
    from privirec.errors import (
        DataError,
        DataWarning,
        PrivacyWarning,
        PrivirecError,
        UsageError,
    )
    from privirec.evaluation import Metrics, evaluate
    from privirec.models import (
        BSPMEM,
        BSPMLM,
        DAN,
        EASE,
        GFCF,
        ChebyCF,
        Denoised,
        ItemKNN,
        LinkProp,
        Popularity,
        Recommender,
        Ridge,
        Spectral,
        TurboCF,
    )
    from privirec.private import PrivateRecommender

__all__ = [
    "BSPMEM",
    "BSPMLM",
    "DAN",
    "EASE",
    "GFCF",
    "AutoRecommender",
    "ChebyCF",
    "DataError",
    "DataWarning",
    "Dataset",
    "Denoised",
    "Interactions",
    "ItemKNN",
    "LinkProp",
    "Metrics",
    "Popularity",
    "PrivacyWarning",
    "PrivateRecommender",
    "PrivirecError",
    "Recommender",
    "Ridge",
    "Spectral",
    "TableOptions",
    "TurboCF",
    "UsageError",
    "__version__",
    "evaluate",
    "load_dataset",
    "read_interactions",
    "read_titles",
    "split",
]

# Module of each exported name. Names are imported on first use, so that commands and clients that
# compute nothing start without compiled kernels.
_HOMES = {
    "privirec.auto": ("AutoRecommender",),
    "privirec.data": (
        *("Dataset", "Interactions", "TableOptions"),
        *("load_dataset", "read_interactions", "split"),
    ),
    "privirec.device.titles": ("read_titles",),
    "privirec.errors": (
        *("DataError", "DataWarning", "PrivacyWarning", "PrivirecError", "UsageError"),
    ),
    "privirec.evaluation": ("Metrics", "evaluate"),
    "privirec.models": (
        *("BSPMEM", "BSPMLM", "DAN", "EASE", "GFCF", "ChebyCF", "Denoised", "ItemKNN", "LinkProp"),
        *("Popularity", "Recommender", "Ridge", "Spectral", "TurboCF"),
    ),
    "privirec.private": ("PrivateRecommender",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'privirec' has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
