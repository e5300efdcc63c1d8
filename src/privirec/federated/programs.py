"""PriviRec and PriviRec-k as programs.

A program is a generator that yields what it wants summed over the cohort and is sent the total;
what it returns are the components. It knows nothing of transport or of masks, so the same program
runs in a simulation, in one process and over a network.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from privirec.errors import UsageError
from privirec.federated.contributions import (
    Contribution,
    ItemDegrees,
    ItemItem,
    PowerStep,
    SeededStep,
    UserStart,
)
from privirec.federated.fixed_point import FixedPoint
from privirec.filters import kernels
from privirec.filters.components import Components
from privirec.filters.eigen import leading_eigenpairs, orthonormalize, rayleigh_ritz
from privirec.filters.normalize import degree_power
from privirec.filters.operators import LowRankOperator, SparseOperator

# Enough multiplications for a low-pass filter as good as a converged one on the data we know.
DEFAULT_ROUNDS = 5

Program = Generator["Contribution | Broadcast", Any, Components]
OnStep = Callable[[int, NDArray[np.float64], NDArray[np.float64]], None]


@dataclass(frozen=True)
class Broadcast:
    """Public results that go to every client outside a sum."""

    name: str
    n_bytes: int


class FederatedSettings(BaseModel):
    """How the components are computed with the clients."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Literal["privirec", "privirec-k"]
    rank: int = Field(256, ge=0)
    """k: columns of the power method (0: no low-pass filter)."""
    rounds: int = Field(DEFAULT_ROUNDS, ge=1)
    """L: secure sums of the power method."""
    start: Literal["users", "items"] = "items"
    """The paper's start block with a row per user, or one over items from a public seed."""
    eigenvalues: Literal["diagonal", "rayleigh-ritz"] = "rayleigh-ritz"
    """The paper's diagonal of the QR factor, or the Rayleigh quotient (privirec-k only)."""
    low_pass_from: Literal["clients", "server"] = "clients"
    """With the clients as in the paper, or by the server from the P~ it has (privirec only)."""
    alpha: float = Field(0.5, ge=0, le=1)
    """Normalisation of the item-item matrix."""
    ring_bits: int = Field(32, ge=1, le=64)
    """Width of the ring for the item-item matrix and the power method."""
    seed: int = Field(0, ge=0)

    @property
    def multiplications(self) -> int:
        """How often the start block is multiplied with P~ on the way to S_k."""
        if self.method == "privirec-k" and self.eigenvalues == "rayleigh-ritz":
            # The last product goes into the eigenvalues.
            return self.rounds - 1 if self.start == "items" else max(self.rounds - 2, 0)
        return self.rounds if self.start == "items" else self.rounds - 1


def paper(
    method: Literal["privirec", "privirec-k"], rank: int, **changes: Any
) -> FederatedSettings:
    """Algorithm 1 to the letter with L = 2: a start row per user, eigenvalues off the QR factor."""
    settings: dict[str, Any] = {"rounds": 2, "start": "users", "eigenvalues": "diagonal"}
    return FederatedSettings(method=method, rank=rank, **(settings | changes))


def program(settings: FederatedSettings, n_users: int, n_items: int) -> Program:
    """The program for these settings, after checking that it can run at all."""
    if settings.rank > n_items:
        raise UsageError(f"rank {settings.rank} does not fit a catalogue of {n_items} items")
    if n_users < 1:
        raise UsageError("a federation needs at least one user")
    if settings.rank and settings.alpha != 0.5:
        raise UsageError("the low-pass filter is defined for alpha = 1/2")
    if settings.method == "privirec-k":
        if not settings.rank:
            raise UsageError("privirec-k needs a rank of at least 1")
        if settings.rounds < 2:  # the block before the last product must be orthonormal
            raise UsageError("privirec-k needs at least 2 rounds")
        return _privirec_k(settings, n_users, n_items)
    return _privirec(settings, n_users, n_items)


def _privirec(settings: FederatedSettings, n_users: int, n_items: int) -> Program:
    degrees = yield from _item_degrees(n_users, n_items)
    released = yield from item_item_sum(settings, degrees)
    operator = SparseOperator(released.astype(np.float32))
    basis = None
    if settings.rank and settings.low_pass_from == "server":
        _, basis = leading_eigenpairs(operator, settings.rank, seed=settings.seed)
    elif settings.rank:
        steps = yield from power_rounds(settings, degrees, n_users)
        basis = steps.basis.astype(np.float32)
    components = Components(degrees, operator, basis, settings.alpha)
    yield Broadcast("filters", _matrix_bytes(operator) + (0 if basis is None else basis.nbytes))
    return components


def _privirec_k(settings: FederatedSettings, n_users: int, n_items: int) -> Program:
    degrees = yield from _item_degrees(n_users, n_items)
    steps = yield from power_rounds(settings, degrees, n_users)
    if settings.eigenvalues == "rayleigh-ritz":
        values, vectors = rayleigh_ritz(steps.before, steps.image)
        values = np.clip(values, 0.0, None)
    else:
        values, vectors = np.diagonal(steps.triangle).copy(), steps.basis
    basis = np.ascontiguousarray(vectors, np.float32)
    yield Broadcast("filters", basis.nbytes + 4 * len(values))
    return Components(degrees, LowRankOperator(basis, values), basis, 0.5)


def _item_degrees(
    n_users: int, n_items: int
) -> Generator[Contribution | Broadcast, Any, NDArray[np.int64]]:
    degrees = yield ItemDegrees(n_items, n_users)
    yield Broadcast("item-degrees", 4 * n_items)
    return degrees


def item_item_sum(
    settings: FederatedSettings, degrees: NDArray[np.int64]
) -> Generator[Contribution | Broadcast, Any, sp.csr_array]:
    """P~ in double precision, from one sum."""
    ask = ItemItem(len(degrees), int(degrees.max(initial=0)), settings.alpha, settings.ring_bits)
    total = yield ask
    return normalized(total, ask.encoding, degrees, settings.alpha)


def normalized(
    total: sp.csr_array, encoding: FixedPoint, degrees: NDArray[np.int64], alpha: float
) -> sp.csr_array:
    """P~ = V^(alpha-1) P' V^(alpha-1) from the summed integers."""
    matrix = sp.csr_array(
        (encoding.decode(total.data), total.indices, total.indptr), shape=total.shape
    )
    scale = degree_power(degrees, alpha - 1)
    kernels.scale_sparse(matrix.indptr, matrix.indices, matrix.data, scale, scale)
    return matrix


@dataclass(frozen=True)
class PowerResult:
    """The last step: image = P~ before = basis triangle."""

    before: NDArray[np.float64]
    image: NDArray[np.float64]
    basis: NDArray[np.float64]
    triangle: NDArray[np.float64]


def power_rounds(
    settings: FederatedSettings,
    degrees: NDArray[np.int64],
    n_users: int,
    on_step: OnStep | None = None,
) -> Generator[Contribution | Broadcast, Any, PowerResult]:
    """Algorithm 1: L sums, each followed by one QR on the server.

    `on_step(round, basis, triangle)` sees the state after each round: a run of L rounds contains
    all shorter ones.
    """
    scale = degree_power(degrees, -0.5)[:, None]
    width, rank = settings.ring_bits, settings.rank
    rng = np.random.Generator(np.random.Philox(settings.seed))
    ask: Contribution
    if settings.start == "users":
        # Column by column, so that a smaller rank starts from the first columns of a larger one.
        block = orthonormalize(rng.standard_normal((rank, n_users)).T)[0]
        ask = UserStart.of(block, degrees, width)
        before = np.zeros((len(degrees), rank))
    else:
        ask = SeededStep(degrees, rng.bytes(32), rank, width)
        before = ask.start()
    number = 1
    while True:
        total = yield ask
        image = ask.encoding.decode(total)
        del total
        image *= scale
        basis, triangle = orthonormalize(image)
        if on_step:
            on_step(number, basis, triangle)
        if number == settings.rounds:
            break
        number += 1
        before = basis
        ask = PowerStep.of(before, degrees, width)
    return PowerResult(before, image, basis, triangle)


def _matrix_bytes(operator: SparseOperator) -> int:
    matrix = operator.matrix
    return int(matrix.data.nbytes + matrix.indices.nbytes + matrix.indptr.nbytes)
