"""Definitions common to the client and the server of this protocol."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace

from privirec.secagg.bell2020.messages import (
    VERSION,
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
from privirec.secagg.keys import LABEL
from privirec.secagg.messages import Announce
from privirec.secagg.parameters import Parameters, Statement
from privirec.secagg.protocol import MessageOrder, Schedule
from privirec.secagg.shamir import SHARE_BYTES

# Shares of one client in one sum: one of its seed, then one of its mask key.
PAIR_BYTES = 2 * SHARE_BYTES


_SCHEDULE = Schedule(setup=("advertise", "share"), recovery=("unmask",))


@dataclass(frozen=True, kw_only=True)
class Scheme(MessageOrder):
    """An exchange with the graph parameters that distinguish its variants."""

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
        """Return a scheme.

        If `confirms` is true, clients confirm the first sum's survivors against an active server.
        """
        return cls(
            name,
            code,
            VERSION,
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
    """Return what a client signs to confirm: the announced run, its graph and the survivors.

    The seed of the graph also covers the list of participants.
    """
    numbers = struct.pack(">II", parameters.neighbours, parameters.threshold)
    return LABEL + b"survivors" + announcement + graph + numbers + survivors
