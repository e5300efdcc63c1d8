"""What a client of LightSecAgg remembers."""

from __future__ import annotations

from dataclasses import dataclass, field

from privirec.secagg.keys import Secret
from privirec.secagg.stored import StoredState


@dataclass(slots=True)
class LightState(StoredState):
    """All that a client remembers: its keys and one seed, whatever the length of the vectors."""

    private: int = 0
    needed: int = 0
    cohort: bytes = b""
    """Map of the survivors of the first sum, once this client has confirmed them."""
    confirmed: int = 0
    """The last sum whose survivors it has confirmed."""
    sealing_private: Secret = field(default_factory=lambda: Secret(b""))
    sealing_keys: Secret = field(default_factory=lambda: Secret(b""))
    """For each participant, ascending: the key for pieces to it and the key for pieces from it;
    zeros in the place of the client itself."""
    asked: bytes = b""
    """Digest of what this sum was said to be about when its pieces were dealt."""
    seed: Secret = field(default_factory=lambda: Secret(b""))
    """Of this sum's mask."""
    own_piece: Secret = field(default_factory=lambda: Secret(b""))
    """The piece of its own mask that is the client's own, packed."""
