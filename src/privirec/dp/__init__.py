"""Differential privacy with integer noise that many clients add together.

`gaussian` converts between noise levels and (epsilon, delta). `discrete` bounds the distance
between the sum of many clients' noise and the Gaussian of those formulas. `tables` and `sampler`
draw the noise.
"""
