"""A spectral filter: x V^-a S h(lambda) S^T V^b.

S and lambda are leading eigenpairs of P~, h is one of a small family of responses. Special cases
are the ideal low-pass filter of GF-CF (a = b = 1/2, h = 1) and the item-item matrix of the paper's
PriviRec-k, S lambda S^T (a = b = 0, h = lambda). Exponents and response are chosen on a validation
split; they matter as much as the number of vectors.

S is kept in one byte per entry with a unit per item. This rounding changed none of our measured
figures, and the model is a quarter of its size in single precision.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field

from privirec.errors import UsageError
from privirec.filters.components import Components
from privirec.filters.operators import Float32, history_coordinates
from privirec.filters.spectral import KeptBasis, response
from privirec.models.base import Config, Derived, Recommender


class SpectralConfig(Config):
    rank: int = Field(512, ge=1)
    """k: number of eigenpairs."""
    history_exponent: float = Field(0.5, ge=-1, le=2)
    """a: items of a history are divided by degree to this power, so popular ones count less."""
    item_exponent: float = Field(0.5, ge=-1, le=2)
    """b: scores are multiplied by the item's degree to this power, so popular items rank higher."""
    response: Literal["ideal", "power", "heat", "polynomial"] = "ideal"
    """h: 1; lambda^p; exp(-t (1 - lambda)); or a polynomial."""
    power: float = Field(1.0, ge=0, le=4)
    """p of the response "power"."""
    time: float = Field(1.0, ge=0, le=50)
    """t of the response "heat"."""
    coefficients: tuple[float, ...] = (1.0,)
    """Coefficients of 1, lambda, lambda^2, ... in the response "polynomial"."""

    @property
    def low_pass_rank(self) -> int:
        return self.rank

    @property
    def needs(self) -> dict[str, Any]:
        return {"rank": self.rank}

    def responses(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return h(lambda)."""
        return response(
            values,
            self.response,
            power=self.power,
            time=self.time,
            coefficients=self.coefficients,
        )


class Spectral(Recommender):
    """Spectral: eigenpairs of the item-item matrix alone, x V^-a S h(lambda) S^T V^b.

    The model keeps one byte per entry. Exponents and response are chosen on a validation split
    (`privirec paper tune`); they matter as much as the number of eigenpairs.
    """

    name = "spectral"
    title = "Spectral"
    config_type = SpectralConfig
    # Chosen by validation; equal to the presets of the program `spectral`.
    published: ClassVar[dict[str, Config]] = {
        "gowalla": SpectralConfig(
            rank=571, history_exponent=0.4, item_exponent=0.5, response="power", power=0.1
        ),
        "globo": SpectralConfig(
            rank=528, history_exponent=0.2, item_exponent=0.2, response="power", power=0.2
        ),
        "yelp2018": SpectralConfig(rank=900, history_exponent=0.35, item_exponent=0.35),
    }
    derives: ClassVar[dict[str, tuple[str, int]]] = {
        "vectors": ("|i1", 2),
        "units": ("<f4", 1),
        "eigenvalues": ("<f4", 1),
    }
    keeps_item_item = False
    config: SpectralConfig

    def _take(
        self, components: Components, derived: Derived, item_ids: NDArray | None = None
    ) -> Self:
        return super()._take(replace(components, basis=None), derived, item_ids)

    def _derive(self, components: Components) -> Derived:
        kept = KeptBasis.of(*components.eigenpairs(self.config.rank))
        return {name: getattr(kept, name) for name in self.derives}

    def _prepare(self, components: Components, derived: Derived) -> None:
        vectors, units, values = (derived[name] for name in self.derives)
        if vectors.shape != (components.n_items, self.config.rank):
            raise UsageError("the vectors do not fit the catalogue or the rank of the model")
        if units.shape != vectors.shape[:1] or values.shape != vectors.shape[1:]:
            raise UsageError("the number of units or eigenvalues does not fit the vectors")
        degrees, config = components.item_degrees, self.config
        kept = KeptBasis(vectors, units, values)
        weights = config.responses(values).astype(np.float32)
        self._left: Float32 = kept.history_side(degrees, config.history_exponent, weights)
        self._right: Float32 = np.ascontiguousarray(kept.item_side(degrees, config.item_exponent).T)

    def _score(self, histories: sp.csr_array) -> Float32:
        return history_coordinates(histories, self._left) @ self._right

    def basis(self) -> Float32:
        """Return S_k, from which a later run can start."""
        return KeptBasis(**self._derived).written_out()
