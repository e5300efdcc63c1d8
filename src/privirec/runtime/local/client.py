"""One participant: histories that stay, and answers that are in the registry."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from privirec.errors import FederationError
from privirec.federated.contributions import REGISTRY, Contribution, Histories


class Client:
    """Holds the histories of one user, or of the users of one silo."""

    def __init__(self, histories: Histories) -> None:
        self._histories = histories

    def __repr__(self) -> str:
        return "Client(<redacted>)"

    def answer(self, ask: Contribution) -> Iterator[NDArray[np.int64]]:
        """The contribution, block by block; anything unknown is refused."""
        if REGISTRY.get(ask.name) is not type(ask):
            raise FederationError(f"this client does not compute {ask.name!r}")
        if ask.n_items != self._histories.n_items:  # type: ignore[attr-defined]
            raise FederationError("asked about another catalogue than this client's")
        _ = ask.encoding  # refuses a sum that could leave its ring
        yield from ask.blocks(self._histories)
