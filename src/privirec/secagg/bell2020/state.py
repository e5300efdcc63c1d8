"""Stored state of a client of Bell et al."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from privirec.secagg.keys import Secret
from privirec.secagg.stored import StoredState


@dataclass(slots=True)
class BellState(StoredState):
    """State of one client."""

    cohort_size: int = 0
    """Number of participants."""
    degree: int = 0
    """Number of neighbours in the graph, including those that sent no shares."""
    threshold: int = 0
    leaf: bytes = b""
    """The client's own leaf in the tree of keys."""
    graph: bytes = b""
    """Seed of the graph."""
    cohort: bytes = b""
    """Bit map of the clients in the first sum, once accepted; later sums have the same."""
    peers: array[int] = field(default_factory=lambda: array("I"))
    """Neighbours, ascending; once shares are delivered, only those that sent shares."""
    active: array[int] = field(default_factory=lambda: array("I"))
    """Peers with common masks in this sum: those that sent shares, later those that survived."""
    gone: array[int] = field(default_factory=lambda: array("I"))
    """Neighbours that sent no shares."""
    peer_mask_keys: bytes = b""
    """Public mask keys for all sums, of the first peer, then of the second, and so on."""
    sealing_private: Secret = field(default_factory=lambda: Secret(b""))
    mask_privates: Secret = field(default_factory=lambda: Secret(b""))
    seeds: Secret = field(default_factory=lambda: Secret(b""))
    opening_keys: Secret = field(default_factory=lambda: Secret(b""))
    """Keys that open the shares from each peer."""
    held_shares: Secret = field(default_factory=lambda: Secret(b""))
    """Shares from the peers, ordered by sum, then by peer."""
