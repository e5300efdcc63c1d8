"""One client of a federation: its memory, its answers and the artifacts it receives."""

from privirec.runtime.node.node import Node
