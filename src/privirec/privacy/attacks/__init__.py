"""One file an attack."""
