"""What a server could say instead of the truth, protocol by protocol.

A new protocol adds a module with a `Lie`, and a line here.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib import import_module

from privirec.secagg.keys import Roster

Lie = Callable[[bytes, random.Random, Roster], bytes | None]
"""(message, chance, roster) -> another message, which no client may answer, or None where there is
no lie to tell."""

_LIES = {
    "secagg+": "privirec.secagg.testing.lies.bell2020",
    "secagg": "privirec.secagg.testing.lies.bell2020",
    "lightsecagg": "privirec.secagg.testing.lies.lightsecagg",
    "none": "privirec.secagg.testing.lies.plain",
    "correlated-noise": "privirec.secagg.testing.lies.correlated",
}


def lie_of(protocol_name: str) -> Lie:
    """The lies of a server of this protocol: the function `lie` of its module."""
    found: Lie = import_module(_LIES[protocol_name]).lie
    return found


def damaged(message: bytes, chance: random.Random) -> bytes:
    """Bytes that are no message of any protocol."""
    return chance.choice(
        [
            message[: chance.randrange(len(message))],
            message + b"\0",
            bytes([message[0] + 1]) + message[1:],
        ]
    )
