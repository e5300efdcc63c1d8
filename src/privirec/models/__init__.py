"""One file a model: its config and its scorer."""

from privirec.models.base import Config, Recommender
from privirec.models.bspm import BSPMEM, BSPMLM, BSPMConfig
from privirec.models.denoised import Denoised, DenoisedConfig
from privirec.models.ease import EASE, EASEConfig
from privirec.models.gf_cf import GFCF, GFCFConfig
from privirec.models.link_prop import LinkProp, LinkPropConfig
from privirec.models.link_prop_multi import LinkPropMulti, LinkPropMultiConfig
from privirec.models.popularity import Popularity, PopularityConfig
from privirec.models.spectral import Spectral, SpectralConfig
from privirec.models.turbo_cf import TurboCF, TurboCFConfig

MODELS: dict[str, type[Recommender]] = {
    model.name: model
    for model in (GFCF, TurboCF, BSPMLM, BSPMEM, EASE, Denoised, LinkProp, LinkPropMulti, Spectral)
}

__all__ = [
    "BSPMEM",
    "BSPMLM",
    "EASE",
    "GFCF",
    "MODELS",
    "BSPMConfig",
    "Config",
    "Denoised",
    "DenoisedConfig",
    "EASEConfig",
    "GFCFConfig",
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
