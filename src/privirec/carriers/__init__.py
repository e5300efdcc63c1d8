"""Who moves the bytes of a federation between its server and its clients."""
