"""Stored state of a client with correlated noise."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from privirec.secagg.keys import Secret
from privirec.secagg.stored import StoredState


@dataclass(slots=True)
class CorrelatedState(StoredState):
    """State of one client. The seeds of a sum are wiped when its contribution begins."""

    peers: array[int] = field(default_factory=lambda: array("I"))
    """Neighbours, ascending."""
    private_key: Secret = field(default_factory=lambda: Secret(b""))
    own_seeds: Secret = field(default_factory=lambda: Secret(b""))
    """Seeds of own noise, one per sum."""
    pair_secrets: Secret = field(default_factory=lambda: Secret(b""))
    """Secrets common with each peer, ordered by sum, then by peer.

    The seeds of common noise are derived from them and the digest of what the sum asks for.
    """
