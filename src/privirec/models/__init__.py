"""One file a model: its config and its scorer."""

from privirec.models.base import Config, Recommender
from privirec.models.bspm import BSPMEM, BSPMLM, BSPMConfig
from privirec.models.gf_cf import GFCF, GFCFConfig
from privirec.models.turbo_cf import TurboCF, TurboCFConfig

MODELS: dict[str, type[Recommender]] = {m.name: m for m in (GFCF, TurboCF, BSPMLM, BSPMEM)}

__all__ = [
    "BSPMEM",
    "BSPMLM",
    "GFCF",
    "MODELS",
    "BSPMConfig",
    "Config",
    "GFCFConfig",
    "Recommender",
    "TurboCF",
    "TurboCFConfig",
]
