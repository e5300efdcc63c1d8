"""Differential privacy with integer noise that many clients add together.

`gaussian` converts between noise levels and (epsilon, delta). `discrete` bounds the distance
between the sum of many clients' noise and the Gaussian of those formulas. `tables` and `sampler`
draw the noise. `mechanism` is the interface to all of this, and the lines below register the
mechanisms that exist.
"""

from privirec.federated.dp.discrete_gaussian import DISCRETE_GAUSSIAN
from privirec.federated.dp.mechanism import MECHANISMS

MECHANISMS.register(DISCRETE_GAUSSIAN)
DEFAULT_MECHANISM = DISCRETE_GAUSSIAN.name
