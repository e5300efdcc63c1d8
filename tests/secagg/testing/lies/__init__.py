"""False messages that a server could send, by protocol.

To add a protocol, write a module with a `Lie` named `lie`, and register it here.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib import import_module

from privirec.secagg.keys import Roster

Lie = Callable[[bytes, random.Random, Roster], bytes | None]
"""(message, chance, roster) -> a false message that no client may answer, or None."""

_LIES = {
    "secagg+": "secagg.testing.lies.bell2020",
    "secagg": "secagg.testing.lies.bell2020",
    "lightsecagg": "secagg.testing.lies.lightsecagg",
    "none": "secagg.testing.lies.plain",
    "correlated-noise": "secagg.testing.lies.correlated",
}


def lie_of(protocol_name: str) -> Lie:
    """Return the function `lie` of this protocol's module."""
    found: Lie = import_module(_LIES[protocol_name]).lie
    return found


def damaged(message: bytes, chance: random.Random) -> bytes:
    """Return bytes that are not a message of any protocol."""
    return chance.choice(
        [
            message[: chance.randrange(len(message))],
            message + b"\0",
            bytes([message[0] + 1]) + message[1:],
        ]
    )
