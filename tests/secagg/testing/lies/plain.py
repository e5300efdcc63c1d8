"""Lies about participants and survivors, by a server that sees every vector."""

from __future__ import annotations

import random
from dataclasses import replace

from privirec.secagg.bell2020.messages import Neighbours, Survivors, decode
from privirec.secagg.keys import Roster
from privirec.secagg.messages import encode
from secagg.testing.lies.bell2020 import without, without_receiver


def lie(message: bytes, chance: random.Random, roster: Roster) -> bytes | None:
    """Return a false variant of this message that no client may answer, or None."""
    told = decode(message)
    if isinstance(told, Neighbours):
        lies = (replace(told, neighbours=2, threshold=1), without_receiver(told, roster))
        return encode(chance.choice(lies))
    if isinstance(told, Survivors):
        return encode(replace(told, survivors=without(told.survivors, {told.client}, roster)))
    return None
