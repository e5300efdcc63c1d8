"""One client of a federation: its memory, its answers and the artifacts it receives."""

from privirec.runtime.network.node.node import Node

__all__ = ["Node"]
