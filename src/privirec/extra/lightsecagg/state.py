"""Stored state of a client of LightSecAgg."""

from __future__ import annotations

from dataclasses import dataclass, field

from privirec.secagg.keys import Secret
from privirec.secagg.stored import StoredState


@dataclass(slots=True)
class LightState(StoredState):
    """State of one client: its keys and one seed, whatever the length of the vectors."""

    private: int = 0
    needed: int = 0
    cohort: bytes = b""
    """Bit map of the survivors of the first sum, once this client has confirmed them."""
    confirmed: int = 0
    """Number of the last sum whose survivors this client has confirmed."""
    sealing_private: Secret = field(default_factory=lambda: Secret(b""))
    sealing_keys: Secret = field(default_factory=lambda: Secret(b""))
    """Keys for pieces to and from each participant, ascending by participant.

    The entries of the client itself are zeros.
    """
    asked: bytes = b""
    """Digest of what this sum asks for, as announced when its pieces were dealt."""
    seed: Secret = field(default_factory=lambda: Secret(b""))
    """Seed of this sum's mask."""
    own_piece: Secret = field(default_factory=lambda: Secret(b""))
    """The piece of the client's own mask that it keeps for itself, packed."""
