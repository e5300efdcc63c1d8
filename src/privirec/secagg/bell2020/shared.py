"""What client and server of this protocol have in common."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

from privirec.secagg.bell2020.messages import (
    Advertise,
    Confirm,
    Confirmed,
    Deliver,
    Neighbours,
    Shares,
    Survivors,
    Unmask,
    decode,
)
from privirec.secagg.exchange import Exchange
from privirec.secagg.keys import LABEL
from privirec.secagg.messages import Announce
from privirec.secagg.parameters import Parameters, Statement
from privirec.secagg.protocol import Schedule
from privirec.secagg.shamir import SHARE_BYTES

# A sum's shares of one client: of its seed, then of its mask key.
PAIR_BYTES = 2 * SHARE_BYTES


_SCHEDULE = Schedule(setup=("advertise", "share"), recovery=("unmask",))


@dataclass(frozen=True, kw_only=True)
class Scheme(Exchange):
    """What tells the protocols of this exchange apart: which graph a statement asks for."""

    parameters: Callable[[Statement], Parameters]
    complete: bool

    @classmethod
    def of(
        cls,
        name: str,
        code: int,
        parameters: Callable[[Statement], Parameters],
        *,
        complete: bool = False,
        confirms: bool = True,
    ) -> Scheme:
        """`confirms`: against an active server, clients confirm the first sum's survivors."""
        return cls(
            name,
            code,
            _SCHEDULE,
            decode,
            told=(Announce, Neighbours, Deliver, Survivors, Confirmed),
            answers={
                Advertise: "advertise",
                Shares: "share",
                Confirm: "confirm",
                Unmask: "unmask",
            },
            active_schedule=replace(_SCHEDULE, first_recovery=("confirm",)) if confirms else None,
            parameters=parameters,
            complete=complete,
        )


def survivors_statement(
    announcement: bytes, graph: bytes, parameters: Parameters, survivors: bytes
) -> bytes:
    """What a client signs when it confirms: the announced run, its graph, who is in the sum.

    The graph's seed stands for who takes part, too.
    """
    numbers = struct.pack(">II", parameters.neighbours, parameters.threshold)
    return LABEL + b"survivors" + announcement + graph + numbers + survivors
