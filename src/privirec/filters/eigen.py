"""Leading eigenvectors of a symmetric positive semi-definite operator.

There are two solvers. `leading_eigenpairs` is a block Krylov method that converges; every figure
called "centralised" uses it. `power_method` is the randomised power method (Halko et al. 2011,
algorithm 4.4) with a given number of steps, which the paper distributes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from privirec.compiled import LANES, Later
from privirec.errors import UsageError
from privirec.filters.operators import FactoredOperator, ItemOperator

kernels = Later("privirec.filters.kernels")
sl = Later("scipy.linalg")

Matrix = NDArray[np.floating]
Progress = Callable[[int, int], None]

# A column whose part outside the span of the columns before it is this small (relative to the
# column norms so far) is rounding noise. It is set to zero instead of being scaled to norm one.
DEPENDENT = 1e-9

# The same limit for a column of norm one that was multiplied with P~ in single precision.
SINGLE_NOISE = 1e-6


def orthonormalize(block: Matrix) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute a Gram-Schmidt QR: block = Q T, T upper triangular with a non-negative diagonal.

    It factors the Gram matrix by Cholesky, if necessary twice, which is Gram-Schmidt at the speed
    of matrix multiplication. Columns that depend on earlier ones become zero columns of Q, with a
    zero on T's diagonal. Leading columns of Q depend on leading columns of the block only.
    """
    y = np.asarray(block, np.float64)
    try:
        q, first = _cholesky_qr(y)
        # The orthogonality error of one pass grows with the square of the condition number.
        if _reciprocal_condition(first) < 1e-4:
            q, second = _cholesky_qr(q)
            first = np.asarray(second @ first, np.float64)
        if np.isfinite(q).all():
            return q, first
    except np.linalg.LinAlgError:
        pass
    return _gram_schmidt(y)


def _cholesky_qr(y: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    gram = y.T @ y
    diagonal = np.sqrt(np.diagonal(gram))
    upper = np.asarray(np.linalg.cholesky(gram).T, np.float64)
    if diagonal.size and (np.diagonal(upper) <= 1e-6 * diagonal.max()).any():
        raise np.linalg.LinAlgError("columns too close to dependent for a Cholesky factor")
    if _reciprocal_condition(upper) < 1e-8:
        raise np.linalg.LinAlgError("too ill-conditioned for a second pass")
    q = sl.solve_triangular(upper, y.T, trans="T", lower=False, check_finite=False).T
    return q, upper


def _reciprocal_condition(upper: NDArray[np.float64]) -> float:
    """Estimate the condition cheaply; unlike the diagonal, it detects jointly dependent columns."""
    return float(sl.lapack.dtrcon(upper)[0]) if upper.size else 1.0


def _gram_schmidt(
    y: NDArray[np.float64], least: float = 0.0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Orthonormalise a block with dependent columns, slowly; norms up to `least` count as zero."""
    n, k = y.shape
    q = np.zeros((n, k))
    upper = np.zeros((k, k))
    scales = np.maximum.accumulate(np.sqrt((y * y).sum(axis=0)))
    for j in range(k):
        column = y[:, j].copy()
        for _ in range(2):
            part = q[:, :j].T @ column
            column -= q[:, :j] @ part
            upper[:j, j] += part
        length = float(np.linalg.norm(column))
        if length > max(DEPENDENT * scales[j], least):
            upper[j, j] = length
            q[:, j] = column / length
    return q, upper


def rayleigh_ritz(x: Matrix, y: Matrix) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return Ritz values (descending) and vectors of P~ on the span of x, given y = P~ x.

    The columns of x are orthonormal.
    """
    small = np.asarray(x, np.float64).T @ np.asarray(y, np.float64)
    values, rotation = np.linalg.eigh((small + small.T) / 2)
    return values[::-1], np.asarray(x, np.float64) @ rotation[:, ::-1]


def power_method(
    operator: ItemOperator, start: Matrix, steps: int, qr_per_step: int = 1
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return X and T of the last QR after `steps` multiplications with P~.

    With one QR per step (after A^T A) this is the paper's distributed version. With two (after A
    and after A^T, the usual centralised version) the operator must be factored.
    """
    x, triangle = orthonormalize(start)
    for _ in range(steps):
        if qr_per_step == 2:
            x, triangle = _two_qr_step(operator, x)
        else:
            x, triangle = orthonormalize(operator.times(np.ascontiguousarray(x, np.float32)))
    return x, triangle


def _two_qr_step(
    operator: ItemOperator, x: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if not isinstance(operator, FactoredOperator):
        raise UsageError("two QR per step need the factored matrix, which only histories give")
    half = operator.histories * operator.left_scale  # A = W^1/2 R C
    root = np.sqrt(operator.user_weights)[:, None]
    left, _ = orthonormalize(root * (half @ x))
    return orthonormalize(half.T @ (root * left))


def leading_eigenpairs(
    operator: ItemOperator,
    rank: int,
    *,
    seed: int = 0,
    tolerance: float = 1e-4,
    block: int = 32,
    most_restarts: int = 40,
    progress: Progress | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Return the `rank` largest eigenvalues (descending) and eigenvectors (columns), converged.

    The method is block Krylov with full reorthogonalisation and thick restarts, in single
    precision. Converged means that every |P~ s - lambda s| is below the tolerance (the eigenvalues
    lie in [0, 1]).
    """
    n = operator.n_items
    if not 1 <= rank <= n:
        raise UsageError(f"rank {rank} does not fit a catalogue of {n} items")
    width = min(n, rank + min(max(3 * rank, 4 * block), 2048))
    if width + block >= n // 2:
        return _dense_eigenpairs(operator, rank)
    if FILTERED * operator.entries <= n * rank:
        found = _filtered_eigenpairs(operator, rank, seed, tolerance, block, progress)
        if found is not None:
            return found
    keep = min(rank + rank // 2, width - 2 * block)
    rng = np.random.Generator(np.random.Philox(seed))
    basis = np.empty((width, n), np.float32)
    projected = np.zeros((width, width))
    fresh = orthonormalize(rng.standard_normal((n, block)))[0]
    filled = 0
    for restart in range(most_restarts):
        while True:
            columns = np.ascontiguousarray(fresh, np.float32)
            basis[filled : filled + block] = columns.T
            filled += block
            image = operator.times(columns)
            parts = basis[:filled] @ image
            projected[:filled, filled - block : filled] = parts
            projected[filled - block : filled, :filled] = parts.T
            image -= basis[:filled].T @ parts
            image -= basis[:filled].T @ (basis[:filled] @ image)
            fresh, coupling = _next_block(image, basis[:filled], rng)
            if progress:
                progress(restart * (width - keep) + filled, 2 * width - keep)
            if filled + block > width:
                break
        values, rotation = np.linalg.eigh(projected[:filled, :filled])
        values, rotation = values[::-1], rotation[:, ::-1]
        residuals = np.linalg.norm(coupling @ rotation[filled - block : filled, :rank], axis=0)
        converged = residuals.max() < tolerance
        if converged:
            vectors = basis[:filled].T @ rotation[:, :rank].astype(np.float32)
            if not _misses(operator, vectors, values[rank - 1] + tolerance, rng):
                return values[:rank].copy(), vectors
        basis[:keep] = rotation[:, :keep].T.astype(np.float32) @ basis[:filled]
        projected[:] = 0
        projected[range(keep), range(keep)] = values[:keep]
        filled = keep
        if converged:
            fresh = _outside(rng.standard_normal((n, block), np.float32), basis[:keep])
    raise UsageError(f"no convergence to {tolerance} after {most_restarts} restarts")


# Cost of one entry of P~'s factors, in entries of a basis that is orthogonalised. If products are
# the cheaper part, more of them (a polynomial of P~) save columns of the basis.
FILTERED = 2
# Largest value of that polynomial. Rounding of the component with the largest value is noise in all
# others, so values far beyond single-precision resolution are useless.
MOST_RAISED = 2.0**26
SWEEPS = 4


def _filtered_eigenpairs(
    operator: ItemOperator,
    rank: int,
    seed: int,
    tolerance: float,
    block: int,
    progress: Progress | None,
) -> tuple[NDArray[np.float64], NDArray[np.float32]] | None:
    """Return eigenpairs as `leading_eigenpairs` does, from a Krylov space of a polynomial of P~.

    The Chebyshev polynomial is at most one in size for the unwanted eigenvalues and grows quickly
    above them. Ritz values, vectors and residuals are those of P~ itself on the space, so a bad
    polynomial delays convergence but cannot give a wrong result. Returns None without convergence.
    """
    n = operator.n_items
    width = rank + max(rank + rank // 8, 4 * block)
    width += -width % block
    edge = _eigenvalue_number(operator, width, seed)
    rng = np.random.Generator(np.random.Philox(seed))
    basis = np.empty((width, n), np.float32)
    images = np.empty((width, n), np.float32)
    fresh = orthonormalize(rng.standard_normal((n, block)))[0]
    filled = 0
    for sweep in range(SWEEPS):
        edge = max(edge, 0.01)
        while True:
            columns = kernels.aligned((n, block))
            columns[:] = fresh
            basis[filled : filled + block] = columns.T
            last = filled + 2 * block > width
            image, raised = _chebyshev(operator, columns, edge, only_image=last)
            images[filled : filled + block] = image.T
            filled += block
            if progress:
                progress(min(filled, width - 1) + sweep, width + SWEEPS)
            if last:
                break
            before = float(np.linalg.norm(raised, axis=0).max())
            for _ in range(2):
                raised -= basis[:filled].T @ (basis[:filled] @ raised)
            fresh, coupling = orthonormalize(raised)
            lengths = np.diagonal(coupling)
            # Scaling a short column to norm one amplifies its components along the basis.
            if lengths.min() < max(1e-2 * lengths.max(), 1e-4 * before):
                fresh[:, lengths == 0] = rng.standard_normal((n, np.count_nonzero(lengths == 0)))
                fresh = _outside(fresh.astype(np.float32), basis[:filled])
        held, held_images = basis[:filled], images[:filled]
        small = np.asarray(held @ held_images.T, np.float64)
        values, rotation = np.linalg.eigh((small + small.T) / 2)
        values, rotation = values[::-1], rotation[:, ::-1].astype(np.float32)
        vectors = held.T @ rotation[:, :rank]
        residuals = held_images.T @ rotation[:, :rank]
        residuals -= vectors * values[:rank].astype(np.float32)
        lengths = np.linalg.norm(residuals, axis=0)
        start = rng.standard_normal((n, block), np.float32)
        if lengths.max() < tolerance:
            if not _misses(operator, vectors, values[rank - 1] + tolerance, rng):
                straight = np.abs(vectors.T @ vectors - np.eye(rank)).max() < 1e-5
                return (values[:rank].copy(), vectors) if straight else None
        else:
            # Continue with the residuals of the vectors that are furthest from convergence.
            worst = np.argsort(-lengths, kind="stable")[:block]
            worst = worst[lengths[worst] > tolerance]
            start[:, : len(worst)] = residuals[:, worst] / lengths[worst]
        keep = min(rank + rank // 2, width - 2 * block)
        basis[:keep] = rotation[:, :keep].T @ held
        images[:keep] = rotation[:, :keep].T @ held_images
        filled = keep
        fresh = _outside(start, basis[:keep])
        edge = min(edge, float(values[keep - 1]))
    return None


def _chebyshev(
    operator: ItemOperator, columns: NDArray[np.float32], edge: float, only_image: bool = False
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return P~ columns, and T(2 P~ / edge - 1) columns, with |T| at most one on [0, edge].

    T has the highest degree, from 2 to 8, that maps an eigenvalue of 1 to at most `MOST_RAISED`
    (degree 2 if none does).
    """
    highest = np.arccosh(MOST_RAISED) / np.arccosh(max(2 / edge - 1, 1.001))
    degree = min(max(2, int(highest)), 8)
    image = operator.times(columns)
    if only_image:
        return image, image
    scale = np.float32(2 / edge)
    before, raised = columns, scale * image - columns
    for _ in range(1, degree):
        after = operator.times(raised)
        after *= 2 * scale
        after -= 2 * raised
        after -= before
        before, raised = raised, after
    return image, raised


def _eigenvalue_number(operator: ItemOperator, number: int, seed: int) -> float:
    """Estimate the `number`-th largest eigenvalue by Lanczos quadrature from random vectors.

    A random vector has on average equal weight on each eigenvector. The share of eigenvalues above
    a value is therefore about the weight that Gaussian quadrature for the vector's spectral measure
    has there.
    """
    steps, samples = 20, LANES
    rng = np.random.Generator(np.random.Philox(seed + 1))
    start = rng.standard_normal((operator.n_items, samples), np.float32)
    before, vectors = np.zeros_like(start), start / np.linalg.norm(start, axis=0)
    diagonal = np.zeros((samples, steps))
    beside = np.zeros((samples, steps))
    for step in range(steps):
        image = operator.times(vectors)
        diagonal[:, step] = np.einsum("ij,ij->j", vectors, image)
        image -= diagonal[:, step].astype(np.float32) * vectors
        image -= beside[:, step - 1].astype(np.float32) * before
        beside[:, step] = np.linalg.norm(image, axis=0)
        before, vectors = vectors, image / np.maximum(beside[:, step], SINGLE_NOISE)
    nodes, weights = [], []
    for main, next_to_it in zip(diagonal, beside, strict=True):
        values, rotation = sl.eigh_tridiagonal(main, next_to_it[:-1])
        nodes.append(values)
        weights.append(rotation[0] ** 2)
    found, weight = np.concatenate(nodes), np.concatenate(weights) * operator.n_items / samples
    order = np.argsort(-found)
    return float(np.interp(number, np.cumsum(weight[order]), found[order]))


def _next_block(
    image: NDArray[np.float32], basis: NDArray[np.float32], rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return orthonormal columns that span the image, plus random ones for missing dimensions."""
    fresh, coupling = orthonormalize(image)
    smallest = np.diagonal(coupling).min()
    if smallest > 1e-2:
        return fresh, coupling
    if smallest <= SINGLE_NOISE:
        fresh, coupling = _gram_schmidt(image.astype(np.float64), SINGLE_NOISE)
        empty = np.diagonal(coupling) == 0
        fresh[:, empty] = rng.standard_normal((len(image), np.count_nonzero(empty)))
    # Scaling a short column to norm one amplifies its components along the basis.
    return _outside(fresh.astype(np.float32), basis), coupling


def _outside(block: NDArray[np.float32], basis: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return orthonormal columns that span the part of the block orthogonal to the basis rows."""
    for _ in range(2):
        block -= basis.T @ (basis @ block)
    return orthonormalize(block)[0]


def _misses(
    operator: ItemOperator, vectors: NDArray[np.float32], value: float, rng: np.random.Generator
) -> bool:
    """Return True if an eigenvalue above `value` has vectors outside the span of `vectors`.

    A Krylov space holds as many copies of a multiple eigenvalue as its first block has columns.
    Each separate group of items gives one eigenvalue of 1, so there can be any number of copies. A
    few power steps from a few random vectors find one that is missing.
    """
    probe = _outside(rng.standard_normal((operator.n_items, 8), np.float32), vectors.T)
    for _ in range(6):
        columns = np.ascontiguousarray(probe, np.float32)
        image = operator.times(columns)
        image -= vectors @ (vectors.T @ image)
        if rayleigh_ritz(columns, image)[0][0] > value:
            return True
        probe = orthonormalize(image)[0]
    return False


def _dense_eigenpairs(
    operator: ItemOperator, rank: int
) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Return eigenpairs of the dense matrix, for catalogues too small for a Krylov space to pay."""
    n = operator.n_items
    matrix = operator.times(np.eye(n, dtype=np.float32)).astype(np.float64)
    values, vectors = sl.eigh((matrix + matrix.T) / 2, subset_by_index=(n - rank, n - 1))
    return values[::-1].copy(), np.ascontiguousarray(vectors[:, ::-1], np.float32)
