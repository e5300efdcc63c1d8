"""Sums by two servers that do not collude: each client sends one sealed message per sum."""
