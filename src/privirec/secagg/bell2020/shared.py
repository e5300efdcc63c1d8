"""What client and server of this protocol have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from privirec.secagg.parameters import Parameters, Statement
from privirec.secagg.shamir import SHARE_BYTES

# A round's shares of one client: of its seed, then of its mask key.
PAIR_BYTES = 2 * SHARE_BYTES

COHORT_CHANGED = (
    "the cohort changed after the first round: the sums of two rounds would differ by the "
    "clients that left, and would show them"
)


@dataclass(frozen=True)
class Scheme:
    """What tells the two protocols of this package apart: which graph a statement asks for."""

    name: str
    code: int
    parameters: Callable[[Statement], Parameters]
    complete: bool


def least_participants(statement: Statement) -> int:
    """Clients that must advertise; the corrupt ones among fewer could be too large a part."""
    return statement.clients - statement.dropped
