"""Additions found by entry points: a carrier, aggregation protocols and a model."""
