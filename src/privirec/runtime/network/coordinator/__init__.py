"""The server of a federation: its clients, sums and journal, and the model it distributes."""

from privirec.runtime.network.coordinator.coordinator import Coordinator, Deadlines, Stage

__all__ = ["Coordinator", "Deadlines", "Stage"]
