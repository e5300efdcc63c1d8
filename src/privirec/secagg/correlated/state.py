"""What a client remembers."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from privirec.secagg.keys import Secret
from privirec.secagg.stored import StoredState


@dataclass(slots=True)
class CorrelatedState(StoredState):
    """All that a client remembers. The seeds of a sum are wiped when its contribution begins."""

    peers: array[int] = field(default_factory=lambda: array("I"))
    """Neighbours, ascending."""
    private_key: Secret = field(default_factory=lambda: Secret(b""))
    own_seeds: Secret = field(default_factory=lambda: Secret(b""))
    """Of each sum one."""
    pair_secrets: Secret = field(default_factory=lambda: Secret(b""))
    """Sum by sum, peer by peer: with what is asked for, they give the seeds of common noise."""
