"""Additions: the Flower carrier, and aggregation protocols found by entry points."""
