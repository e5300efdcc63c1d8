"""The server of a federation: its clients, the sum under way, its journal, the model it hands out."""

from privirec.runtime.network.coordinator.coordinator import Coordinator, Deadlines, Stage

__all__ = ["Coordinator", "Deadlines", "Stage"]
