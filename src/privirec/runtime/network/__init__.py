"""A federation over a network: node and coordinator, free of transport."""
