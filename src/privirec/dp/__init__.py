"""Differential privacy: noise of integers that adds up, and what it buys.

`gaussian` converts between a level of noise and (epsilon, delta); `discrete` says how near a sum of
many clients' noise is to the Gaussian of those formulas; `tables` and `sampler` draw it.
"""
