"""Flower as the carrier: it only moves bytes between a coordinator and its nodes."""
