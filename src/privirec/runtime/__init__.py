"""Runs: their description, and the runtimes that compute sums on one machine or a network."""
