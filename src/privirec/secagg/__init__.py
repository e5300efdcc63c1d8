"""Secure aggregation, sans-IO: sums vectors of integers modulo 2^b and knows nothing else."""
