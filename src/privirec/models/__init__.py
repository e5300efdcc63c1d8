"""Models, one per file: its config and its scorer."""

from privirec.models.base import MODELS, Config, Recommender
from privirec.models.bspm import BSPMEM, BSPMLM, BSPMConfig
from privirec.models.denoised import Denoised, DenoisedConfig
from privirec.models.ease import EASE, EASEConfig
from privirec.models.gf_cf import GFCF, GFCFConfig
from privirec.models.item_knn import ItemKNN, ItemKNNConfig
from privirec.models.link_prop import LinkProp, LinkPropConfig
from privirec.models.link_prop_multi import LinkPropMulti, LinkPropMultiConfig
from privirec.models.popularity import Popularity, PopularityConfig
from privirec.models.spectral import Spectral, SpectralConfig
from privirec.models.turbo_cf import TurboCF, TurboCFConfig

_PUBLISHED = (GFCF, TurboCF, BSPMLM, BSPMEM, EASE, Denoised, LinkProp, LinkPropMulti, Spectral)
_BASELINES = (Popularity, ItemKNN)

MODELS.update({model.name: model for model in (*_PUBLISHED, *_BASELINES)})
BASELINES: tuple[str, ...] = tuple(model.name for model in _BASELINES)
"""Models for comparison that are in no table of the paper."""
COMPARED: tuple[str, ...] = tuple(model.name for model in _PUBLISHED)
"""All other models."""

__all__ = [
    "BASELINES",
    "BSPMEM",
    "BSPMLM",
    "COMPARED",
    "EASE",
    "GFCF",
    "MODELS",
    "BSPMConfig",
    "Config",
    "Denoised",
    "DenoisedConfig",
    "EASEConfig",
    "GFCFConfig",
    "ItemKNN",
    "ItemKNNConfig",
    "LinkProp",
    "LinkPropConfig",
    "LinkPropMulti",
    "LinkPropMultiConfig",
    "Popularity",
    "PopularityConfig",
    "Recommender",
    "Spectral",
    "SpectralConfig",
    "TurboCF",
    "TurboCFConfig",
]
