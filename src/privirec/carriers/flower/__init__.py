"""Flower as the carrier: it moves bytes between a coordinator and its nodes, and nothing else."""
