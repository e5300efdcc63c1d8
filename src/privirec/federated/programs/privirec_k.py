"""PriviRec-k: a low-rank item-item matrix by the power method alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from privirec.errors import UsageError
from privirec.federated.contributions import ItemDegrees
from privirec.federated.programs.base import Broadcast, Planned, Steps
from privirec.federated.programs.power import (
    FILTER_ENTRY,
    POWER_METHODS,
    PowerProgram,
    PowerSettings,
    item_degrees_told,
)
from privirec.federated.settings import Option
from privirec.filters.components import Components
from privirec.filters.eigen import rayleigh_ritz
from privirec.filters.operators import LowRankOperator


class PrivirecKSettings(PowerSettings):
    """Settings of PriviRec-k."""

    method: Literal["privirec-k"] = "privirec-k"
    eigenvalues: Annotated[Literal["diagonal", "rayleigh-ritz"], Option("WAY", POWER_METHODS)] = (
        "rayleigh-ritz"
    )
    """privirec-k: quotients, or diagonal of QR.

    The paper takes the diagonal.
    """

    @property
    def multiplications(self) -> int:
        before = super().multiplications
        # Rayleigh-Ritz uses the last product for the eigenvalues.
        return max(before - 1, 0) if self.eigenvalues == "rayleigh-ritz" else before


class PrivirecK(PowerProgram[PrivirecKSettings]):
    """V, then S_k and its eigenvalues from the power method with the clients."""

    name: ClassVar[str] = "privirec-k"
    title: ClassVar[str] = "PriviRec-k"
    in_short: ClassVar[str] = "the leading k vectors of that matrix alone, for far fewer bytes"
    gives_away: ClassVar[str] = (
        "exact low-rank sums are not proven safe; rows of items with few users can be recovered "
        "from them when the rank is high"
    )
    settings_type = PrivirecKSettings
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {"rounds": 2, "start": "users", "eigenvalues": "diagonal"}
    }
    low_rank: ClassVar[bool] = True

    def check(self) -> None:
        super().check()
        if not self.settings.rank:
            raise UsageError("privirec-k needs a rank of at least 1")
        if self.settings.rounds < 2:  # the block before the last product must be orthonormal
            raise UsageError("privirec-k needs at least 2 rounds")

    def outline(self, item_item_entries: int | None = None) -> list[Planned]:
        return [
            ItemDegrees.planned(self.n_items, self.n_users),
            item_degrees_told(self.n_items),
            *self.power_sums(),
            Broadcast("filters", FILTER_ENTRY * self.settings.rank * (self.n_items + 1)),
        ]

    def _steps(self, outline: list[Any]) -> Steps:
        degree_sum, degrees_told, *power_sums, filters = outline
        degrees = yield degree_sum.ask()
        yield degrees_told
        result = yield from self.power_rounds(power_sums, degrees)
        if self.settings.eigenvalues == "rayleigh-ritz":
            values, vectors = rayleigh_ritz(result.before, result.image)
            values = np.clip(values, 0.0, None)
        else:
            values, vectors = np.diagonal(result.triangle).copy(), result.basis
        basis = np.ascontiguousarray(vectors, np.float32)
        yield filters
        return Components(degrees, LowRankOperator(basis, values), basis)
