"""Runtimes on one machine: a simulation, and clients in one process."""
