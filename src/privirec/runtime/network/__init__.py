"""A federation over a network: node and coordinator, independent of the transport."""
