"""Peeling for inexact entries: single precision, or noise of a known level."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from privirec.errors import UsageError
from privirec.privacy.attacks.base import Attack, Found, Progress
from privirec.privacy.attacks.cliques import n_items_of
from privirec.privacy.attacks.few_users import Cascade, Weights, longest_in
from privirec.privacy.attacks.peeling import Peeling
from privirec.privacy.attacks.views import MatrixView, item_item_view
from privirec.privacy.releases import Release

SURE = 5.0
"""Number of standard deviations within which an entry is assumed to lie; one in 3.5 million exceeds
it in one direction."""


class LikelihoodPeeling(Attack):
    """Histories recovered from rows of few users, as far as they exceed the errors."""

    name: ClassVar[str] = "likelihood-peeling"
    needs: ClassVar[str] = "an item-item matrix with noise or rounding of a known level"

    def applies_to(self, release: Release) -> bool:
        return not Peeling().applies_to(release) and _readable(release) is not None

    def run(self, release: Release, progress: Progress | None = None) -> Found:
        view = _readable(release)
        if view is None:
            raise UsageError(f"{self.name} needs {self.needs}")
        return peeled(view, release, progress)


def _readable(release: Release) -> MatrixView | None:
    """Return the item-item matrix if a person's contribution to an entry is known."""
    view = item_item_view(release)
    return view if view is not None and (view.diagonal or view.rule is not None) else None


def peeled(view: MatrixView, release: Release, progress: Progress | None = None) -> Found:
    """Return the histories that can be read from a view of a release."""
    longest = longest_in(view.matrix)
    weights = Weights(view.exponent, longest, view.rule)
    cascade = Cascade(
        view.matrix, view.degrees, weights, SURE * view.errors, diagonal=view.diagonal
    )
    cascade.run(progress)
    facts = {"largest_error": float(view.errors.max(initial=0.0))}
    if view.items is None:
        return Found.histories(cascade.histories, facts=facts)
    visible = np.zeros(n_items_of(release), np.bool_)
    visible[view.items] = True
    found = [np.sort(view.items[history]).astype(np.int32) for history in cascade.histories]
    return Found.histories(found, visible_items=visible, facts=facts)
