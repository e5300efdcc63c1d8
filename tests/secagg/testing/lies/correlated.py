"""Lies about participants and keys, the only data that the server sends after the announcement."""

from __future__ import annotations

import random
from dataclasses import replace

from privirec.extra.correlated.messages import NoisyNeighbours, decode
from privirec.secagg.keys import KEY_BYTES, Roster
from privirec.secagg.messages import encode


def lie(message: bytes, chance: random.Random, roster: Roster) -> bytes | None:
    """Return a false variant of this message that no client may answer, or None."""
    told = decode(message)
    if not isinstance(told, NoisyNeighbours):
        return None
    keys = list(told.keys)
    victim = chance.randrange(len(keys))
    kind = chance.randrange(4)
    if kind == 0:
        # The server's own key, which would let it compute the noise.
        keys[victim] = replace(keys[victim], noise_key=chance.randbytes(KEY_BYTES))
    elif kind == 1:
        del keys[victim]
    elif kind == 2:
        return encode(_without(told, told.client, roster))
    else:
        return encode(_without(told, keys[victim].client, roster))
    return encode(replace(told, keys=tuple(keys)))


def _without(told: NoisyNeighbours, client: int, roster: Roster) -> NoisyNeighbours:
    """Return the message with a client removed from the participants."""
    place = roster.place(client)
    present = bytearray(told.participants)
    present[place // 8] &= ~(1 << place % 8)
    return replace(told, participants=bytes(present))
