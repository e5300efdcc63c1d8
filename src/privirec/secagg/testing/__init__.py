"""For tests of protocols: runs over a bad network, servers that lie, randomness that repeats.

Nothing in here is safe to use with real data.
"""

from privirec.secagg.testing.bad_network import (
    CALM,
    Outcome,
    Scenario,
    SimulationFailure,
    Weather,
    simulate,
)
from privirec.secagg.testing.randomness import InsecureSeededBytes

__all__ = [
    "CALM",
    "InsecureSeededBytes",
    "Outcome",
    "Scenario",
    "SimulationFailure",
    "Weather",
    "simulate",
]
