"""What a client of Bell et al. remembers."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from privirec.secagg.keys import Secret
from privirec.secagg.stored import StoredState


@dataclass(slots=True)
class BellState(StoredState):
    """All that a client remembers."""

    cohort_size: int = 0
    """Number of participants."""
    degree: int = 0
    """Neighbours in the graph, whether they sent shares or not."""
    threshold: int = 0
    leaf: bytes = b""
    """Its own leaf in the tree of keys."""
    graph: bytes = b""
    """Seed of the graph."""
    cohort: bytes = b""
    """Map of the clients in the first sum, once it was accepted: all later sums have the same."""
    peers: array[int] = field(default_factory=lambda: array("I"))
    """Neighbours, ascending; once shares are delivered, those who sent them."""
    active: array[int] = field(default_factory=lambda: array("I"))
    """Peers with masks in this sum: those who sent shares, then those who survived."""
    gone: array[int] = field(default_factory=lambda: array("I"))
    """Neighbours that sent no shares."""
    peer_mask_keys: bytes = b""
    """All sums' public keys of the first peer, of the second ..."""
    sealing_private: Secret = field(default_factory=lambda: Secret(b""))
    mask_privates: Secret = field(default_factory=lambda: Secret(b""))
    seeds: Secret = field(default_factory=lambda: Secret(b""))
    opening_keys: Secret = field(default_factory=lambda: Secret(b""))
    """Keys for the shares that each peer will send."""
    held_shares: Secret = field(default_factory=lambda: Secret(b""))
    """Sum by sum, peer by peer."""
