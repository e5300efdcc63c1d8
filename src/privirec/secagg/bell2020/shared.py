"""What client and server of this protocol have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from privirec.secagg.bell2020.messages import (
    Advertise,
    Deliver,
    Neighbours,
    Shares,
    Survivors,
    Unmask,
    decode,
)
from privirec.secagg.exchange import Exchange
from privirec.secagg.messages import Announce
from privirec.secagg.parameters import Parameters, Statement
from privirec.secagg.protocol import Schedule
from privirec.secagg.shamir import SHARE_BYTES

# A sum's shares of one client: of its seed, then of its mask key.
PAIR_BYTES = 2 * SHARE_BYTES


@dataclass(frozen=True)
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
    ) -> Scheme:
        return cls(
            name,
            code,
            Schedule(setup=("advertise", "share"), recovery=("unmask",)),
            decode,
            told=(Announce, Neighbours, Deliver, Survivors),
            answers={Advertise: "advertise", Shares: "share", Unmask: "unmask"},
            parameters=parameters,
            complete=complete,
        )
