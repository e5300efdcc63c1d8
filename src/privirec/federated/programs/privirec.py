"""PriviRec: the exact item-item matrix, and a low-pass filter by the power method."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import Field

from privirec.compiled import Later
from privirec.errors import UsageError
from privirec.federated.contributions import (
    Contribution,
    Histories,
    ItemDegrees,
    ItemItem,
    PlannedSum,
)
from privirec.federated.fixed_point import FixedPoint
from privirec.federated.programs.base import Broadcast, Planned, Steps
from privirec.federated.programs.power import (
    FILTER_ENTRY,
    POWER_METHODS,
    PowerProgram,
    PowerSettings,
    item_degrees_told,
)
from privirec.federated.settings import Option, ProgramSettings
from privirec.filters.components import Components
from privirec.filters.eigen import leading_eigenpairs
from privirec.filters.normalize import SYMMETRIC, Normalisation, item_scales
from privirec.filters.operators import FactoredOperator, SparseOperator

kernels = Later("privirec.filters.kernels")


class ItemItemSettings(ProgramSettings):
    """Settings of programs that sum an item-item matrix."""

    alpha: float = Field(0.5, ge=0, le=1)
    """Normalisation of the item-item matrix: a history of length d has weight d^(-2 alpha)."""
    left: float | None = Field(None, ge=0, le=1)
    """Exponent of the degrees of the items in a history, by which the server divides (None: 1 -
    alpha)."""
    right: float | None = Field(None, ge=0, le=1)
    """Exponent of the degrees of the scored items, by which the server divides (None: 1 -
    alpha)."""

    @property
    def normalisation(self) -> Normalisation:
        """Normalisation of the resulting item-item matrix."""
        usual = Normalisation.symmetric(self.alpha)
        left = usual.left if self.left is None else self.left
        right = usual.right if self.right is None else self.right
        return Normalisation(usual.user, left, right)


class PrivirecSettings(PowerSettings, ItemItemSettings):
    """Settings of PriviRec."""

    method: Literal["privirec"] = "privirec"
    low_pass_from: Annotated[Literal["clients", "server"], Option("PARTY", POWER_METHODS)] = (
        "clients"
    )
    """privirec: party that computes the filter.

    The clients do in the paper; the server can compute it from the P~ that it has.
    """


class Privirec(PowerProgram[PrivirecSettings]):
    """V and P' summed over the clients, then S_k, with the clients or from P~ by the server."""

    name: ClassVar[str] = "privirec"
    title: ClassVar[str] = "PriviRec"
    in_short: ClassVar[str] = "the paper's exact item-item matrix, which gives histories away"
    gives_away: ClassVar[str] = (
        "the exact item-item matrix gives every history away, to the server and to every client"
    )
    settings_type = PrivirecSettings
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"rounds": 2, "start": "users"}}
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "S_k by the server": {"low_pass_from": "server"}
    }

    def check(self) -> None:
        super().check()
        if self.settings.rank and self.settings.normalisation != SYMMETRIC:
            raise UsageError("the low-pass filter is defined for alpha = 1/2")

    def outline(self, item_item_entries: int | None = None) -> list[Planned]:
        return [
            ItemDegrees.planned(self.n_items, self.n_users),
            item_degrees_told(self.n_items),
            self._item_item_sum(),
            *(self.power_sums() if self._with_clients else ()),
            Broadcast("filters", self._filter_bytes(item_item_entries)),
        ]

    def _steps(self, outline: list[Any]) -> Steps:
        degree_sum, degrees_told, item_item, *power_sums, filters = outline
        degrees = yield degree_sum.ask()
        yield degrees_told
        normalisation = self.settings.normalisation
        released = yield from item_item_sum(item_item, degrees, normalisation)
        operator = SparseOperator(released.astype(np.float32))
        basis = None
        if power_sums:
            result = yield from self.power_rounds(power_sums, degrees)
            basis = result.basis.astype(np.float32)
        elif self.settings.rank:
            _, basis = leading_eigenpairs(operator, self.settings.rank, seed=self.settings.seed)
        components = Components(degrees, operator, basis, normalisation)
        yield filters.measured(self._filter_bytes(operator.matrix.nnz))
        return components

    def with_factors(self, components: Components, histories: Histories) -> Components:
        """Return components that hold the factors of the released P~, with the released weights.

        The factors are much faster to apply to dense states.
        """
        released = components.item_item
        if not isinstance(released, SparseOperator):
            return components
        degrees = components.item_degrees
        ask: Any = _asked(self._item_item_sum(), degrees)
        weights = ask.encoding.decode(ask.weights(histories.degrees))
        left, right = item_scales(degrees, components.normalisation)
        factors = FactoredOperator(histories.matrix, weights, left, right, released)
        return replace(components, item_item=factors)

    def describe(self) -> dict[str, Any]:
        if self.settings.rank and not self._with_clients:
            solver = {"rank": self.settings.rank, "solver": "converged, by the server"}
            return {"rounds": None, "multiplications": None} | solver
        return super().describe()

    @property
    def _with_clients(self) -> bool:
        return self.settings.rank > 0 and self.settings.low_pass_from == "clients"

    def _item_item_sum(self) -> PlannedSum:
        return ItemItem.planned(self.n_items, self.settings.alpha, self.settings.ring_bits)

    def _filter_bytes(self, item_item_entries: int | None) -> int:
        """Return the size of P~ and S_k.

        A sparse P~ takes a value and a column number per entry, and an offset per row.
        """
        low_pass = self.n_items * self.settings.rank * FILTER_ENTRY
        if item_item_entries is None:
            return low_pass + self.n_items * (self.n_items + 1) // 2 * FILTER_ENTRY
        return low_pass + (FILTER_ENTRY + 4) * item_item_entries + 4 * (self.n_items + 1)


def item_item_sum(
    planned: PlannedSum,
    degrees: NDArray[np.int64],
    normalisation: Normalisation | None = None,
) -> Generator[Contribution | Broadcast, Any, sp.csr_array]:
    """Return the item-item matrix in double precision, from one sum.

    If `normalisation` is None, it is the symmetric one.
    """
    ask: Any = _asked(planned, degrees)
    total = yield ask
    wanted = normalisation or Normalisation.symmetric(ask.alpha)
    return normalized(total, ask.encoding, degrees, wanted)


def normalized(
    total: sp.csr_array,
    encoding: FixedPoint,
    degrees: NDArray[np.int64],
    normalisation: Normalisation,
) -> sp.csr_array:
    """Return V^-left P' V^-right from the summed integers."""
    matrix = sp.csr_array(
        (encoding.decode(total.data), total.indices, total.indptr), shape=total.shape
    )
    left, right = item_scales(degrees, normalisation)
    kernels.scale_sparse(matrix.indptr, matrix.indices, matrix.data, left, right)
    return matrix


def _asked(planned: PlannedSum, degrees: NDArray[np.int64]) -> Contribution:
    return planned.ask(largest_degree=int(degrees.max(initial=0)))
