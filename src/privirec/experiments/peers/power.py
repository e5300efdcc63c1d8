"""The private power method of Nicolas et al. (arXiv 2411.01931) over secure aggregation.

Every step sums A_u^T (A_u X) over the people and adds Gaussian noise. A_u is a person's row of the
normalised matrix, and X is an orthonormal block. Since A_u has length one, the contribution has
length |A_u X| <= 1 for any number of columns, so the noise does not grow with the rank. The clip
C < 1 on |A_u X| (C = 1 means no clipping, as published) was tuned in the method's favour.

Three parts are ours: the head, which noisy popularity chooses and which is paid from the budget;
the division of the budget; and a power of popularity on the scores of the low-pass filter
x D^-1/2 U U^T D^lift.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp

from privirec.experiments.peers.base import ByPopularity, Float32, Floats, PeerInRounds, PeerSteps
from privirec.experiments.peers.sums import RowSum
from privirec.federated.contributions import Histories, PlannedSum
from privirec.filters.eigen import orthonormalize


@dataclass(frozen=True)
class PowerSum(RowSum):
    """One power step: z_u = a_u X, clipped."""

    name: ClassVar[str] = "peer-power-step"
    gives_away: ClassVar[str] = "a noisy step of a power method"
    block: Floats
    right_weights: Floats
    """Weight of each head item in a_u X."""
    clip: float

    @classmethod
    def sized(cls, fixed: Mapping[str, Any], sizes: Mapping[str, Any]) -> Self:
        head, columns = sizes["head"], sizes["columns"]
        return cls(
            **fixed,
            items=np.arange(head),
            weights=np.ones(head),
            least_length=0.0,
            everybody=0.0,
            block=np.zeros((head, columns)),
            right_weights=np.ones(head),
            clip=1.0,
        )

    @property
    def row_length(self) -> int:
        return int(self.block.shape[1])

    @property
    def _broadcast_bytes(self) -> int:
        return super()._broadcast_bytes + 4 * (self.block.size + len(self.items))

    def chosen(self, histories: Histories) -> sp.csr_array:
        return self.on_head(histories).matrix

    def rows(self, matrix: sp.csr_array) -> Floats:
        weighted = matrix.astype(np.float64) * self.right_weights[None, :]
        weighted = sp.csr_array(weighted)
        lengths = np.sqrt(np.asarray(weighted.multiply(weighted).sum(axis=1)).reshape(-1))
        return (weighted @ self.block) / (np.maximum(lengths, 1e-300) * self.clip)[:, None]


@dataclass(frozen=True)
class PrivatePower(PeerInRounds):
    name: ClassVar[str] = "private-power"
    title: ClassVar[str] = "private power method"
    columns: int = 32
    clip: float = 1.0
    """Bound on |A_u X|. At 1, as published, nothing is clipped, since rows have length one."""
    left: float = 0.5
    """Power of popularity by which clients divide the items of their contribution.

    The server applies the rest of the normalisation.
    """
    lift: float = 0.3

    @property
    def _columns(self) -> int:
        return min(self.columns, self.items_on_top)

    @property
    def lengths(self) -> list[int]:
        return [self.n_items, *[self.items_on_top * self._columns] * self.rounds]

    def later_sums(self) -> list[PlannedSum]:
        return [
            PowerSum.planned(
                self.n_items, self.n_users, share, head=self.items_on_top, columns=self._columns
            )
            for share in self.calibration.shares[1:]
        ]

    def later_steps(self, sums: list[PlannedSum], popularity: Floats) -> PeerSteps:
        items, on_head = self.head_of(popularity, self.items_on_top)
        generator = np.random.Generator(np.random.Philox(0))
        basis = orthonormalize(generator.standard_normal((self.items_on_top, self._columns)))[0]
        for planned in sums:
            ask: Any = planned.ask(
                items=items,
                weights=on_head**-self.left,
                least_length=0.0,
                everybody=0.0,
                block=basis,
                right_weights=on_head**-0.5,
                clip=self.clip,
            )
            image = ask.encoding.decode((yield ask)) * on_head[:, None] ** (self.left - 0.5)
            basis = np.linalg.svd(image, full_matrices=False)[0]
        return NoisyLowPass(popularity, items, basis, on_head, self.lift)


@dataclass(frozen=True)
class NoisyLowPass(ByPopularity):
    """Scorer x D^-1/2 U U^T D^lift on the head; other items follow, by popularity."""

    items: Any
    basis: Floats
    on_head: Floats
    lift: float

    def score(self, user_items: sp.csr_array) -> Float32:
        known = sp.csr_array(user_items[:, self.items])
        left = self.on_head[:, None] ** -0.5 * self.basis
        right = (self.on_head[:, None] ** self.lift * self.basis).T
        return self.with_head(self.items, (known @ left) @ right)
