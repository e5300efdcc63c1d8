"""Runtimes on one machine: simulations, and clients in one process."""
