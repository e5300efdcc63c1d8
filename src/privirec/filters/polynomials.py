"""Polynomials of the item-item matrix, applied to histories.

A polynomial f of P is evaluated as a polynomial of X = I - 2 P by Horner's rule. Eigenvalues of P
lie between 0 and 1 (or are divided by a scale, so that they do) and those of X between -1 and 1,
where the coefficients of a smooth f are small. In powers of P they can be large and cancel, which
single precision would show.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.polynomial import Polynomial

from privirec.filters.operators import STATES, Float32, ItemOperator, LowRankOperator


class PolynomialFilter:
    """Filter x diag(left) f(P / scale) diag(right) for a symmetric P, f of degree one or more."""

    def __init__(
        self,
        operator: ItemOperator,
        polynomial: Polynomial,
        left: Float32 | None = None,
        right: Float32 | None = None,
        scale: float = 1.0,
    ) -> None:
        """Prepare the filter; `left` and `right` are ones by default."""
        if isinstance(operator, LowRankOperator):
            # S has orthonormal columns, so f(P) = f(0) I + S (f(lambda) - f(0)) S^T.
            rest = polynomial(0.0)
            values = polynomial(operator.eigenvalues / scale) - rest
            operator, scale = LowRankOperator(operator.basis, values), 1.0
            polynomial = Polynomial([rest, 1.0])
        self.operator: ItemOperator = operator
        self.polynomial = polynomial
        self.twice = 2.0 / scale
        """X is I less so much of P."""
        ones = np.ones(operator.n_items, np.float32)
        self.left = ones if left is None else left
        self.right = ones if right is None else right

    @property
    def numbers_a_history(self) -> int:
        """Numbers touched by the products with dense states, for one history."""
        return (self.polynomial.degree() - 1) * self.operator.entries

    def _coefficients(self) -> list[float]:
        """Return the coefficients of the powers of I - 2 P, the highest first."""
        shifted = self.polynomial(Polynomial([0.5, -0.5]))
        return [float(each) for each in shifted.coef[::-1]]

    def rows(self, histories: sp.csr_array) -> Float32:
        """Return the filtered histories: (users, items)."""
        scores = np.empty((histories.shape[0], self.operator.n_items), np.float32)
        scale = self.operator.state_scale
        back = np.divide(self.right, scale, out=np.zeros_like(scale), where=scale > 0)
        for start in range(0, len(scores), STATES):
            some = slice(start, start + STATES)
            np.multiply(self._states(histories[some]).T, back, out=scores[some])
        return scores

    def _states(self, histories: sp.csr_array) -> Float32:
        """Return the states of filtered histories, before `right`."""
        highest, *rest = self._coefficients()
        users = np.repeat(np.arange(histories.shape[0]), np.diff(histories.indptr))
        entries = histories.indices, users
        values = (self.operator.state_scale * self.left)[histories.indices]
        states = self.operator.entered(histories, np.float32(-self.twice * highest) * self.left)
        states[entries] += np.float32(highest + rest[0]) * values
        for coefficient in rest[1:]:
            states = self.operator.stepped(states, 1.0, -self.twice)
            states[entries] += np.float32(coefficient) * values
        return states

    def times(self, columns: Float32) -> Float32:
        """Return f(P / scale) columns, without `left` and `right`."""
        out = np.empty(columns.shape, np.float32)
        highest, *rest = self._coefficients()
        for start in range(0, columns.shape[1], STATES):
            some = slice(start, start + STATES)
            column = np.ascontiguousarray(columns[:, some])
            states = np.float32(highest) * column
            for coefficient in rest:
                states = states - np.float32(self.twice) * self.operator.times(states)
                states += np.float32(coefficient) * column
            out[:, some] = states
        return out
