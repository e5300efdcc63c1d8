"""Lies about the graph, the shares and the survivors of Bell et al."""

from __future__ import annotations

import random
from dataclasses import replace

from privirec.secagg.bell2020.messages import Deliver, Neighbours, Survivors, decode
from privirec.secagg.keys import KEY_BYTES, Roster
from privirec.secagg.messages import encode


def lie(message: bytes, chance: random.Random, roster: Roster) -> bytes | None:
    """Something else instead of this message that no client may answer."""
    told = decode(message)
    if isinstance(told, Neighbours):
        return encode(_about_neighbours(told, chance, roster))
    if isinstance(told, Deliver) and told.shares:
        victim = chance.randrange(len(told.shares))
        shares = list(told.shares)
        sealed = shares[victim].sealed
        shares[victim] = replace(shares[victim], sealed=sealed[:-1] + bytes([sealed[-1] ^ 1]))
        return encode(replace(told, shares=tuple(shares)))
    if isinstance(told, Survivors):
        return encode(_about_survivors(told, chance))
    return None


def _about_neighbours(told: Neighbours, chance: random.Random, roster: Roster) -> Neighbours:
    victim = chance.randrange(len(told.keys))
    keys = list(told.keys)
    kind = chance.randrange(5)
    if kind == 0:
        return replace(told, threshold=told.threshold - 1)
    if kind == 1:
        return replace(told, neighbours=told.neighbours - 1, keys=tuple(keys[1:]))
    if kind == 2:
        # A key of the server's own, to sit between the two.
        keys[victim] = replace(keys[victim], sealing_key=chance.randbytes(KEY_BYTES))
        return replace(told, keys=tuple(keys))
    if kind == 3:
        return without_receiver(told, roster)
    return replace(told, keys=tuple(keys[:victim] + keys[victim + 1 :]))


def without_receiver(told: Neighbours, roster: Roster) -> Neighbours:
    """A map of participants in which the client is missing."""
    place = roster.place(told.client)
    present = bytearray(told.participants)
    present[place // 8] &= ~(1 << place % 8)
    return replace(told, participants=bytes(present))


def _about_survivors(told: Survivors, chance: random.Random) -> Survivors:
    kind = chance.randrange(4)
    if kind == 0 and told.survivors:
        both = tuple(sorted({*told.dropped, told.survivors[0]}))
        return replace(told, dropped=both)
    if kind == 1 and told.survivors:
        return replace(told, survivors=told.survivors[1:])
    if kind == 2:
        stranger = tuple(sorted({*told.survivors, told.client}))
        return replace(told, survivors=stranger)
    return replace(told, cohort=1)
