"""Computations with the clients, independent of transport and cryptography."""
