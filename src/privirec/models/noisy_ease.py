"""EASE^R from a noisy Gram matrix: the ridge follows the known level of the noise."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from pydantic import Field

from privirec.filters.components import Components
from privirec.filters.normalize import Normalisation, degree_power
from privirec.filters.operators import Float32
from privirec.models.base import Config, Derived
from privirec.models.ease import EASE, EASEConfig

# So small that it only decides between items of which the weights know nothing.
_POPULARITY_WEIGHT = 1e-6


class NoisyEASEConfig(EASEConfig):
    regularisation: float = Field(1.0, gt=0)
    """What is added to the diagonal of the Gram matrix in any case."""
    ridge: float = Field(8.0, ge=0)
    """What is added beside it, in units of the noise's largest eigenvalue."""
    damping: float = Field(0.2, ge=0, le=1)
    """Popular items of a history count less, by their popularity to this power."""
    head: int = Field(1000, ge=1)

    @property
    def normalisation(self) -> Normalisation:
        return Normalisation(user=1.0, left=0.0, right=0.0)

    @property
    def needs(self) -> dict[str, Any]:
        return {"head": self.head}


class NoisyEASE(EASE):
    """Scores of the head from the weights; everything else by its popularity, behind it."""

    name = "noisy-ease"
    title = "EASE^R under noise"
    config_type = NoisyEASEConfig
    published: ClassVar[dict[str, Config]] = {}
    config: NoisyEASEConfig

    def ridge_of(self, components: Components) -> float:
        return self.config.regularisation + self.config.ridge * components.noise_edge

    def _derive(self, components: Components) -> Derived:
        derived = dict(super()._derive(components))
        damped = degree_power(components.item_degrees[derived["items"]], -self.config.damping)
        derived["weights"] *= damped[:, None].astype(np.float32)
        return derived

    def _prepare(self, components: Components, derived: Derived) -> None:
        super()._prepare(components, derived)
        popularity = components.item_degrees.astype(np.float64)
        largest = max(1.0, float(popularity.max(initial=0)))
        self._popularity = (popularity / largest * _POPULARITY_WEIGHT).astype(np.float32)

    def _score(self, histories: sp.csr_array) -> Float32:
        scores = super()._score(histories)
        outside = np.ones(scores.shape[1], bool)
        outside[self._items] = False
        scores[:, outside] = self._popularity[outside]
        return scores
