"""The server of a federation: its clients, the sums, its journal, the model it hands out."""

from privirec.runtime.network.coordinator.coordinator import Coordinator, Stage

__all__ = ["Coordinator", "Stage"]
