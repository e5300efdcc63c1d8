"""Numbers that compiled loops process at once, in a module that does not import the loops."""

LANES = 16
"""Numbers processed side by side: a cache line of single precision."""
STAGE = 2 * LANES
"""Terms of an inner product between two checks of its bound."""
