"""Attacker that knows what everybody but one person sent.

The contributions of all others can be subtracted from every noisy sum. The rest is noise, plus the
person's vector if the person took part. The likelihood ratio of the two hypotheses is the most
powerful test (Neyman and Pearson), so no attacker can do better.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from privirec.data.interactions import Interactions
from privirec.federated.contributions import Histories, ItemDegrees, NoisyHeadGram, NoisyPopularity
from privirec.federated.contributions.noisy import NormedSum
from privirec.federated.contributions.noisy_gram import gram_of, pair_length
from privirec.privacy.releases import Federation, Release

Floats = NDArray[np.float64]
Items = NDArray[np.int32]


@dataclass(frozen=True)
class OtherSum:
    """Remainder of a sum of another kind."""

    ask: NormedSum
    left: NDArray[Any]
    """Remainder in units of the sum."""
    deviation: float
    """Standard deviation of the noise, in the values of the sum."""


@dataclass(frozen=True)
class Rest:
    """Remainders of the sums after all known contributions are subtracted, in the values of the
    sums."""

    votes: Floats | None
    votes_deviation: float
    gram: Floats | None
    """Gram matrix with zeros on the diagonal; each entry is multiplied by the weights of its two
    items."""
    weights: Floats
    """Weights of the items of the Gram matrix."""
    gram_deviation: float
    place: NDArray[np.int64]
    """Item -> its row of the Gram matrix, or -1."""
    others: tuple[OtherSum, ...] = ()

    def head(self, history: Items) -> NDArray[np.int64]:
        """Return the rows of those items of a history that are in the head."""
        rows = self.place[history]
        return rows[rows >= 0]

    def log_ratio(self, history: Items, took_part: bool) -> float:
        """Return log P[observation | took part] - log P[observation | did not take part]."""
        score = 0.0
        if self.votes is not None and len(history):
            product = float(self.votes[history].sum()) / np.sqrt(len(history))
            score += (product + took_part - 0.5) / self.votes_deviation**2
        if self.gram is not None and len(rows := self.head(history)) > 1:
            product = float(self.gram[np.ix_(rows, rows)].sum()) / pair_length(self.weights[rows])
            score += (product + took_part - 0.5) / self.gram_deviation**2
        for other in self.others:
            own = vector_of(other.ask, history)
            unit = 4.0**-other.ask.fraction_bits
            product, square = float((other.left * own).sum()) * unit, float((own**2).sum()) * unit
            score += (product + (took_part - 0.5) * square) / other.deviation**2
        return score


def vector_of(ask: NormedSum, history: Items) -> Floats:
    """Return the vector that a person with this history adds to a sum, in units."""
    shape = (1, ask.n_items)
    ones = np.ones(len(history), np.float32)
    alone = sp.csr_array((ones, history, np.array([0, len(history)])), shape=shape)
    vector: Floats = ask.total(Histories(alone), []).astype(np.float64)
    return vector


def has_noise(release: Release) -> bool:
    return bool(release.opened(NormedSum))  # type: ignore[type-abstract]


def rest_of(release: Release, federation: Federation, known: Interactions) -> Rest:
    """Return the sums of a release without the contributions of the known people."""
    votes = gram = None
    votes_deviation = gram_deviation = 1.0
    weights = np.zeros(0)
    place = np.full(known.n_items, -1, np.int64)
    others: list[OtherSum] = []
    for one in release.sums:
        ask = one.ask
        if isinstance(ask, ItemDegrees):
            votes = (one.total - federation.exact(ask, known)).astype(np.float64)
        elif isinstance(ask, NormedSum):
            left = one.total - federation.exact(ask, known)
            deviation = release.deviation(ask)
            if isinstance(ask, NoisyPopularity):
                votes = np.ldexp(left.astype(np.float64), -ask.fraction_bits)
                votes_deviation = deviation
            elif isinstance(ask, NoisyHeadGram):
                gram = gram_of(left, len(ask.items), ask.fraction_bits, np.zeros(len(ask.items)))
                weights = ask.weights / ask.weights.max()
                gram *= np.outer(weights, weights)
                gram_deviation = deviation
                place[ask.items] = np.arange(len(ask.items))
            else:
                others.append(OtherSum(ask, left, deviation))
    return Rest(votes, votes_deviation, gram, weights, gram_deviation, place, tuple(others))
