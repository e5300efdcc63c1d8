"""Attack by an active server that asks about single items instead of following an honest run.

In the power method the server chooses the block that is multiplied by P'. With one column per item,
the products *are* rows of P'. The attack takes those of the rarest items first, each of which is a
sum of few histories. In a protected run the server chooses the head: it takes rare items, on which
a person's few items have the most weight. Clients have a policy against aimed blocks. This attack
shows why, and how far noise alone protects without the policy.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from privirec.errors import PrivirecError, UsageError
from privirec.federated.contributions import NoisyHeadGram, NoisyPowerStep, PlannedSum, PowerStep
from privirec.privacy.attacks.base import Attack, Found, Progress, there
from privirec.privacy.attacks.cliques import guessed
from privirec.privacy.attacks.few_users import Cascade, Weights, peeled
from privirec.privacy.attacks.views import item_item_view, popularity_view
from privirec.privacy.policy import Policy
from privirec.privacy.releases import Federation, Release

_RUN = 100_001


class Aimed(Attack):
    """Histories of the users of chosen items."""

    name: ClassVar[str] = "aimed-server"
    needs: ClassVar[str] = "a run in which the server chooses a block or a head of items"

    def applies_to(self, release: Release) -> bool:
        federation = release.federation
        return federation is not None and bool(_aimable(federation))

    def run(self, release: Release, progress: Progress | None = None) -> Found:
        federation = release.federation
        planned = [] if federation is None else _aimable(federation)
        if federation is None or not planned:
            raise UsageError(f"{self.name} needs {self.needs}")
        if planned[0].kind is not PowerStep:
            return _by_head(release, federation, planned[0], progress)
        return _by_blocks(release, federation, planned, progress)


def _aimable(federation: Federation) -> list[PlannedSum]:
    kinds = (PowerStep, NoisyHeadGram, NoisyPowerStep)
    return [one for one in federation.planned() if one.kind in kinds]


def _by_blocks(
    release: Release, federation: Federation, planned: list[PlannedSum], progress: Progress | None
) -> Found:
    degrees = there(release.item_degrees)
    columns = planned[0].shape.length // len(degrees)
    in_use = np.flatnonzero(degrees)
    rarest = in_use[np.argsort(degrees[in_use], kind="stable")][: columns * len(planned)]
    asks = []
    for first in range(0, len(rarest), columns):
        x = np.zeros((len(degrees), columns))
        aimed_at = rarest[first : first + columns]
        x[aimed_at, np.arange(len(aimed_at))] = 1.0
        asks.append(planned[0].ask(x=x, item_degrees=degrees))
    answers = federation.ask(asks, _RUN)
    rows, tolerances = [], np.zeros(len(degrees))
    for number, one in enumerate(answers.sums):
        aimed_at = rarest[number * columns : (number + 1) * columns]
        encoding, roots = one.ask.encoding, np.sqrt(degrees[aimed_at].astype(float))
        # Every user rounds once; the server then undoes V^-1/2.
        tolerances[aimed_at] = 4 * 2.0**-encoding.fraction_bits * roots * degrees[aimed_at]
        values = encoding.decode(one.total[:, : len(aimed_at)]) * roots
        values[np.abs(values) <= tolerances[aimed_at]] = 0
        rows.append(sp.csr_array(values.T))
    matrix = _in_place(sp.csr_array(sp.vstack(rows)), rarest, len(degrees))
    longest = int(np.diff(matrix.indptr).max(initial=1))
    cascade = Cascade(matrix, degrees, Weights(1.0, longest), tolerances)
    cascade.run(progress)
    return Found.histories(
        cascade.histories,
        facts={"items_aimed_at": len(rarest), "refused_by_policy": _refused(asks[0])},
    )


def _in_place(rows: sp.csr_array, numbers: NDArray[np.int64], n_items: int) -> sp.csr_array:
    """Return a matrix over all items with these rows at their item numbers and no others."""
    wide = sp.coo_array(rows)
    out = sp.csr_array((wide.data, (numbers[wide.row], wide.col)), shape=(n_items, n_items))
    out.sort_indices()
    return out


def _by_head(
    release: Release, federation: Federation, planned: PlannedSum, progress: Progress | None
) -> Found:
    popularity = there(popularity_view(release))
    head, columns = _size_of_head(release, planned)
    rarest = np.sort(np.argsort(popularity.votes, kind="stable")[:head])
    alike = np.ones(head, np.int64)
    if planned.kind is NoisyHeadGram:
        ask = planned.ask(items=rarest, weights=alike)
    else:  # one column for each of some items: the results are their rows
        block = np.eye(head, columns, dtype=np.int32)
        ask = planned.ask(items=rarest, block=block, weights=alike)
    answer = federation.ask([ask], _RUN)
    view = there(item_item_view(answer))
    # With equal weights, a person's contribution to a pair is known, so rows can be read.
    found = peeled(view, answer, progress) if view.rule is not None else Found.nothing()
    if len(found.indptr) <= 1:
        found = guessed(view, answer, progress)
    facts = {"items_aimed_at": head, "refused_by_policy": _refused(ask)}
    return Found(found.indptr, found.indices, found.visible_items, facts=facts)


def _size_of_head(release: Release, planned: PlannedSum) -> tuple[int, int]:
    """Return the agreed number of items in the head, and of columns (0 for a Gram matrix)."""
    for asked, _ in release.opened(NoisyPowerStep):
        return len(asked.items), asked.columns
    triangle = planned.shape.length
    return int((np.sqrt(8 * triangle + 1) - 1) / 2), 0


def _refused(ask: object) -> bool:
    """Return True if a client with the default policy would refuse to answer."""
    aim = getattr(ask, "aim", None)
    if aim is None:
        return False
    try:
        Policy().check_aim(aim)
    except PrivirecError:
        return True
    return False
