"""One client of a federation: what it remembers, what it sends, what it takes in."""

from privirec.runtime.network.node.node import Node

__all__ = ["Node"]
