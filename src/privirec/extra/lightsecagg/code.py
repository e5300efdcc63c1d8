"""Coded pieces of masks: any U pieces of a sum of masks open it, any T of one mask reveal nothing.

A mask of M elements is cut into columns of U - T elements. Each column, followed by T uniform
elements, is the list of coefficients of a polynomial of degree below U. The piece of the client at
place q of the roster holds the values of all these polynomials at w^q. Here w is a root of unity of
order N, the least power of two that is not below the size of the roster. Both the polynomials and
their values are additive over masks.

*Open*: U values determine a polynomial of degree below U. *Private*: with z the mask's part of a
column and r the random part, the values at T points are A z + D V r, where V is the Vandermonde
matrix of those points and D is diagonal with entries w^(q (U - T)). Both are invertible, so the
values are uniform for every z.

A transform of length N computes all pieces of a column at once, for many columns side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from privirec.extra.lightsecagg.field import (
    ROOT_BITS,
    Elements,
    Field,
    high_product,
    product,
    reduced,
)
from privirec.extra.lightsecagg.thresholds import Thresholds
from privirec.secagg.errors import BadShare, ParametersInfeasible

# Elements per transform. They fit the cache of one core unless N is too large.
_BLOCK_ELEMENTS = 1 << 19
_LEAST_COLUMNS = 16


@dataclass(frozen=True)
class MaskCode:
    """Code for masks of `elements` elements among the clients of a roster."""

    field: Field
    roster: int
    """Size of the roster."""
    thresholds: Thresholds
    elements: int

    def __post_init__(self) -> None:
        if self.roster > 1 << ROOT_BITS:
            raise ParametersInfeasible(
                f"a roster of {self.roster} clients, this protocol has room for {1 << ROOT_BITS}"
            )

    @cached_property
    def columns(self) -> int:
        """Number of elements in a piece."""
        return self.thresholds.columns(self.elements)

    @property
    def piece_bytes(self) -> int:
        return self.field.ring.packed_bytes(self.columns)

    @cached_property
    def points(self) -> int:
        """Length of the transform (N)."""
        return 1 << (self.roster - 1).bit_length()

    def mask(self, seed: bytes, start: int, size: int) -> Elements:
        """Return elements start ... start + size of a seed's mask."""
        return self.field.uniform(seed, start, size, self._drawn)

    def encode(self, seed: bytes, places: Sequence[int]) -> Elements:
        """Return the pieces of a seed's mask for the clients at these places, one row each."""
        needed, payload = self.thresholds.needed, self.thresholds.payload
        private, prime = self.thresholds.private, np.uint64(self.field.prime)
        transform = _transform(self.field, self.points)
        rows = transform.rows(places)
        pieces = np.empty((len(places), self.columns), np.uint64)
        for start, stop in self.column_blocks():
            size = stop - start
            block = np.zeros((self.points, size), np.uint64)
            mask = self.mask(seed, start * payload, size * payload)
            block[:payload] = mask.reshape(size, payload).T
            noise_start = self.columns * payload + start * private
            noise = self.field.uniform(seed, noise_start, size * private, self._drawn)
            block[payload:needed] = noise.reshape(size, private).T
            transform.evaluate(block)
            pieces[:, start:stop] = reduced_rows(block, rows, prime)
        return pieces

    def column_blocks(self) -> Iterator[tuple[int, int]]:
        """Yield (start, stop) of the blocks of columns that are processed together."""
        size = max(_LEAST_COLUMNS, _BLOCK_ELEMENTS // self.points)
        for start in range(0, self.columns, size):
            yield start, min(start + size, self.columns)

    @property
    def _drawn(self) -> int:
        """Number of elements drawn from a seed: the mask, padded to whole columns, and noise."""
        return self.columns * self.thresholds.needed


class Decoder:
    """Decoder of masks from the pieces of a given set of clients.

    Let F be a polynomial to decode, and E the polynomial that is zero at the points of all absent
    places. F E has degree below N, and its values are known everywhere. One transform gives its
    coefficients, and another the values of its derivative F E' + F' E, which equals F E' where E is
    zero. This gives F at all points.
    """

    def __init__(self, code: MaskCode, places: Sequence[int]) -> None:
        """Prepare to decode pieces from these places: ascending, of at least U clients."""
        field = code.field
        self._code = code
        self._transform = _transform(field, code.points)
        prime = np.uint64(field.prime)
        points = self._transform.points
        absent = np.setdiff1d(np.arange(code.points), places)
        present = np.asarray(places, np.int64)
        at_present, slopes = _locator(
            _to_montgomery(points[present], field),
            _to_montgomery(points[absent], field),
            np.uint64((1 << 64) % field.prime),
            prime,
            np.uint64(-pow(field.prime, -1, 1 << 64) % (1 << 64)),
        )
        self._rows = self._transform.rows(places)
        self._absent_rows = self._transform.rows(absent.tolist())
        self._at_present = at_present
        self._at_present_quotients = field.quotients(at_present)
        inverse = np.array([pow(slope, -1, field.prime) for slope in slopes.tolist()], np.uint64)
        self._inverse_slopes = inverse
        self._inverse_slopes_quotients = field.quotients(inverse)
        self._powers = np.arange(code.points, dtype=np.uint64)
        self._powers_quotients = field.quotients(self._powers)

    def decode(self, pieces: Elements) -> Elements:
        """Return the mask elements, given rows of pieces in the order of the places.

        The columns may be those of any block. Raise BadShare if there are more pieces than needed
        and they are inconsistent.
        """
        code, transform = self._code, self._transform
        prime = np.uint64(code.field.prime)
        block = np.zeros((code.points, pieces.shape[1]), np.uint64)
        block[self._rows] = pieces
        if len(self._absent_rows):
            _scale(block, self._rows, self._at_present, self._at_present_quotients, prime)
            transform.interpolate(block)
            _differentiate(block, self._powers, self._powers_quotients, prime)
            transform.evaluate(block)
            _scale(
                block,
                self._absent_rows,
                self._inverse_slopes,
                self._inverse_slopes_quotients,
                prime,
            )
            block[self._rows] = pieces
        transform.interpolate(block)
        needed, payload = code.thresholds.needed, code.thresholds.payload
        surplus = reduced_rows(block, np.arange(needed, len(self._rows)), prime)
        if surplus.any():
            raise BadShare("one of the answers is not the sum of the pieces that were dealt")
        return np.ascontiguousarray(reduced_rows(block, np.arange(payload), prime).T).ravel()


class _Transform:
    """Transform to the values at all N-th roots of unity, with columns side by side.

    Intermediate words stay below 2 p.
    """

    def __init__(self, field: Field, size: int) -> None:
        self._prime = np.uint64(field.prime)
        root = field.root(size)
        self.points = _powers(root, size, field.prime)
        """w^0, w^1 ... w^(N-1)."""
        half = max(1, size // 2)
        self._factors = self.points[:half].copy()
        self._quotients = field.quotients(self._factors)
        self._inverse_factors = _powers(pow(root, -1, field.prime), half, field.prime)
        self._inverse_quotients = field.quotients(self._inverse_factors)
        scale = np.full(size, pow(size, -1, field.prime), np.uint64)
        self._scale, self._scale_quotients = scale, field.quotients(scale)
        self._all_rows = np.arange(size)
        bits = size.bit_length() - 1
        places = np.arange(size)
        self._reversed = np.zeros(size, np.int64)
        for bit in range(bits):
            self._reversed |= ((places >> bit) & 1) << (bits - 1 - bit)

    def rows(self, places: Sequence[int]) -> NDArray[np.int64]:
        """Return the rows that hold the values at these places, in bit-reversed order."""
        return self._reversed[np.asarray(places, np.int64)]

    def evaluate(self, block: Elements) -> None:
        """Replace coefficients, lowest first, by values, in place."""
        _evaluate(block, self._factors, self._quotients, self._prime)

    def interpolate(self, block: Elements) -> None:
        """Replace values by coefficients, in place; the inverse of `evaluate`."""
        _interpolate(block, self._inverse_factors, self._inverse_quotients, self._prime)
        _scale(block, self._all_rows, self._scale, self._scale_quotients, self._prime)


@lru_cache(maxsize=8)
def _transform(field: Field, size: int) -> _Transform:
    return _Transform(field, size)


def _powers(base: int, count: int, prime: int) -> Elements:
    powers = [1]
    for _ in range(count - 1):
        powers.append(powers[-1] * base % prime)
    return np.array(powers, np.uint64)


def _to_montgomery(elements: Elements, field: Field) -> Elements:
    return np.array([(element << 64) % field.prime for element in elements.tolist()], np.uint64)


# --- kernels --------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _evaluate(block: Elements, factors: Elements, quotients: Elements, prime: Any) -> None:
    """Transform by decimation in frequency: natural order in, bit-reversed order out."""
    rows, columns = block.shape
    double = prime + prime
    half, stride = rows // 2, 1
    while half >= 1:
        for start in range(0, rows, 2 * half):
            for row in range(half):
                upper, lower = block[start + row], block[start + row + half]
                factor, quotient = factors[row * stride], quotients[row * stride]
                for column in range(columns):
                    one, other = upper[column], lower[column]
                    upper[column] = reduced(one + other, double)
                    lower[column] = product(one + (double - other), factor, quotient, prime)
        half //= 2
        stride *= 2


@njit(cache=True, nogil=True)
def _interpolate(block: Elements, factors: Elements, quotients: Elements, prime: Any) -> None:
    """Transform back by decimation in time: bit-reversed order in, natural order out.

    The result is N times too large.
    """
    rows, columns = block.shape
    double = prime + prime
    half, stride = 1, rows // 2
    while half < rows:
        for start in range(0, rows, 2 * half):
            for row in range(half):
                upper, lower = block[start + row], block[start + row + half]
                factor, quotient = factors[row * stride], quotients[row * stride]
                for column in range(columns):
                    one = upper[column]
                    other = product(lower[column], factor, quotient, prime)
                    upper[column] = reduced(one + other, double)
                    lower[column] = reduced(one + (double - other), double)
        half *= 2
        stride //= 2


@njit(cache=True, nogil=True)
def _scale(
    block: Elements,
    rows: NDArray[np.int64],
    factors: Elements,
    quotients: Elements,
    prime: Any,
) -> None:
    """Multiply each of these rows by its own factor."""
    for index in range(rows.size):
        row = block[rows[index]]
        for column in range(row.size):
            row[column] = product(row[column], factors[index], quotients[index], prime)


@njit(cache=True, nogil=True)
def _differentiate(block: Elements, powers: Elements, quotients: Elements, prime: Any) -> None:
    """Replace the coefficients of a polynomial by those of its derivative."""
    rows, columns = block.shape
    for row in range(rows - 1):
        for column in range(columns):
            block[row, column] = product(
                block[row + 1, column], powers[row + 1], quotients[row + 1], prime
            )
    block[rows - 1] = np.uint64(0)


@njit(cache=True, nogil=True)
def reduced_rows(block: Elements, rows: NDArray[np.int64], prime: Any) -> Elements:
    """Return a copy of these rows, with words reduced from below 2 p to below p."""
    taken = np.empty((rows.size, block.shape[1]), np.uint64)
    for index in range(rows.size):
        row = block[rows[index]]
        for column in range(row.size):
            taken[index, column] = reduced(row[column], prime)
    return taken


@njit(inline="always")
def _montgomery_product(one: Any, other: Any, prime: Any, negative_inverse: Any) -> Any:
    """Return one * other / 2^64 modulo p."""
    low = one * other
    # low + multiple * p is divisible by 2^64; the addition carries unless low is zero.
    carry = high_product(low * negative_inverse, prime) + np.uint64(low != 0)
    return reduced(high_product(one, other) + carry, prime)


@njit(cache=True, nogil=True)
def _locator(
    present: Elements, absent: Elements, unit: Any, prime: Any, negative_inverse: Any
) -> tuple[Elements, Elements]:
    """Return E at the present points and E' at the absent ones.

    Points and unit are in Montgomery form.
    """
    values = np.full(present.size, unit, np.uint64)
    slopes = np.full(absent.size, unit, np.uint64)
    for other in range(absent.size):
        negative = prime - absent[other]
        for index in range(present.size):
            difference = reduced(present[index] + negative, prime)
            values[index] = _montgomery_product(values[index], difference, prime, negative_inverse)
        for index in range(absent.size):
            if index != other:
                difference = reduced(absent[index] + negative, prime)
                slopes[index] = _montgomery_product(
                    slopes[index], difference, prime, negative_inverse
                )
    for index in range(present.size):
        values[index] = _montgomery_product(values[index], np.uint64(1), prime, negative_inverse)
    for index in range(absent.size):
        slopes[index] = _montgomery_product(slopes[index], np.uint64(1), prime, negative_inverse)
    return values, slopes
