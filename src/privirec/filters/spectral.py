"""Spectral filters x V^-a S h(lambda) S^T V^b, from S and lambda in the form a device keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from privirec.filters import exact
from privirec.filters.normalize import degree_power
from privirec.filters.operators import Float32, in_bytes


@dataclass(frozen=True)
class KeptBasis:
    """S in one byte per entry with a unit per item, and the eigenvalues of its columns."""

    vectors: NDArray[np.int8]
    """(items, rank)"""
    units: Float32
    eigenvalues: Float32

    @classmethod
    def of(cls, values: NDArray[np.float64], basis: NDArray) -> Self:
        vectors, units = in_bytes(basis)
        return cls(vectors, units, values.astype(np.float32))

    def written_out(self) -> Float32:
        """Return S."""
        return np.asarray(self.vectors * self.units[:, None], np.float32)

    def history_side(
        self,
        item_degrees: NDArray[Any],
        exponent: float,
        weights: Float32,
        items: NDArray[np.int64] | slice = slice(None),
    ) -> Float32:
        """Return V^-a S h(lambda) for all or some items, with one column per weight."""
        rows = degree_power(item_degrees[items], -exponent) * self.units[items]
        vectors = self.vectors[items, : len(weights)]
        return np.asarray(vectors * (rows.astype(np.float32)[:, None] * weights), np.float32)

    def item_scales(self, item_degrees: NDArray[Any], exponent: float) -> Float32:
        """Return the item degrees to the power b, times the unit of each row of `vectors`."""
        return np.asarray(degree_power(item_degrees, exponent) * self.units, np.float32)

    def item_side(self, item_degrees: NDArray[Any], exponent: float) -> Float32:
        """Return the vectors in single precision, each row times its item degree to the power b."""
        scales = self.item_scales(item_degrees, exponent)
        return np.asarray(self.vectors * scales[:, None], np.float32)


def response(
    values: NDArray[Any],
    kind: str,
    *,
    power: float = 1.0,
    time: float = 1.0,
    coefficients: tuple[float, ...] = (1.0,),
) -> NDArray[np.float64]:
    """Return h(lambda) for a response.

    It is 1 ("ideal"), lambda^p ("power"), exp(-t (1 - lambda)) ("heat") or a polynomial, and 0 for
    an eigenvalue of zero, whose vector lies beyond the rank of P~ and carries no information. The
    result has the same bits on every machine, because clients rank their held-out items by it.
    """
    values = values.astype(np.float64)
    some = values > 0
    if kind == "power":
        found = exact.powers(np.maximum(values, 0.0), power)
    elif kind == "heat":
        found = exact.exponentials(-time * (1 - values))
    elif kind == "polynomial":
        found = np.polynomial.polynomial.polyval(values, np.array(coefficients))
    else:
        found = np.ones(len(values))
    return np.asarray(np.where(some, found, 0.0), np.float64)
