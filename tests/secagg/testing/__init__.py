"""Test tools for protocols: bad networks, lying servers and reproducible randomness.

Nothing in this package is safe to use with real data.
"""

from secagg.testing.bad_network import CALM, Outcome, Scenario, SimulationFailure, Weather, simulate
from secagg.testing.randomness import InsecureSeededBytes

__all__ = [
    "CALM",
    "InsecureSeededBytes",
    "Outcome",
    "Scenario",
    "SimulationFailure",
    "Weather",
    "simulate",
]
