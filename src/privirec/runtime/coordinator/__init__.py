"""The server of a federation: its clients, sums and journal, and the model it distributes."""

from privirec.runtime.coordinator.coordinator import Coordinator, Stage
