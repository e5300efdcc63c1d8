"""Runtimes, which compute sums over clients: on one machine or over a network."""
