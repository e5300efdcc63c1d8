"""Models, one per file: its config and its scorer."""

from privirec.models.base import MODELS, Config, Recommender
from privirec.models.bspm import BSPMEM, BSPMLM, BSPMConfig
from privirec.models.cheby_cf import ChebyCF, ChebyCFConfig
from privirec.models.denoised import Denoised, DenoisedConfig
from privirec.models.ease import DAN, EASE, DANConfig, EASEConfig
from privirec.models.gf_cf import GFCF, GFCFConfig
from privirec.models.item_knn import ItemKNN, ItemKNNConfig
from privirec.models.link_prop import LinkProp, LinkPropConfig
from privirec.models.popularity import Popularity, PopularityConfig
from privirec.models.ridge import Ridge, RidgeConfig
from privirec.models.spectral import Spectral, SpectralConfig
from privirec.models.turbo_cf import TurboCF, TurboCFConfig

BASELINES = ("popularity", "item-knn")
"""Models for comparison that are in no table of the paper."""

for _model in (
    *(GFCF, TurboCF, BSPMLM, BSPMEM, ChebyCF, EASE, DAN, Denoised, LinkProp, Ridge, Spectral),
    *(Popularity, ItemKNN),
):
    MODELS.register(_model)


def compared() -> list[str]:
    """Return the names of all models that are not baselines."""
    return [name for name in MODELS if name not in BASELINES]
