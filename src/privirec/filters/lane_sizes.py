"""How many numbers compiled loops take at once; apart, so that it can be known without them."""

LANES = 16
"""Numbers side by side: a cache line of single precision."""
STAGE = 2 * LANES
"""Terms of an inner product between two looks at how far it has come."""
