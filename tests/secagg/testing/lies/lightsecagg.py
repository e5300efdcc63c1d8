"""Lies about the holders of pieces, keys, survivors and confirmations."""

from __future__ import annotations

import random
from dataclasses import replace

from privirec.extra.lightsecagg.messages import Deal, LightSurvivors, Open, decode
from privirec.secagg.keys import KEY_BYTES, Roster
from privirec.secagg.messages import ProtocolMessage, encode


def lie(message: bytes, chance: random.Random, roster: Roster) -> bytes | None:
    """Return a false variant of this message that no client may answer, or None."""
    told = decode(message)
    if isinstance(told, Deal):
        return encode(_about_dealing(told, chance, roster))
    if isinstance(told, LightSurvivors):
        return encode(_about_survivors(told, chance, roster))
    if isinstance(told, Open):
        return encode(_about_opening(told, chance))
    return None


def without(bitmap: bytes, place: int) -> bytes:
    """Return a bit map without the client at a place of the roster."""
    present = bytearray(bitmap)
    present[place // 8] &= ~(1 << place % 8)
    return bytes(present)


def _about_dealing(told: Deal, chance: random.Random, roster: Roster) -> ProtocolMessage:
    kind = chance.randrange(5)
    if kind == 0:
        return replace(told, private=told.private - 1)
    if kind == 1:
        return replace(told, needed=told.needed - 1)
    if kind == 2:
        return replace(told, receivers=without(told.receivers, roster.place(told.client)))
    if kind == 3 and told.keys:
        return replace(told, keys=told.keys[1:])
    # The server's own key, for a man-in-the-middle attack.
    own = chance.randbytes(KEY_BYTES)
    if not told.keys:
        return replace(told, receivers=bytes(len(told.receivers)))
    victim = chance.randrange(len(told.keys))
    keys = list(told.keys)
    keys[victim] = replace(keys[victim], sealing_key=own)
    return replace(told, keys=tuple(keys))


def _about_survivors(
    told: LightSurvivors, chance: random.Random, roster: Roster
) -> ProtocolMessage:
    if chance.randrange(2):
        return replace(told, survivors=without(told.survivors, roster.place(told.client)))
    alone = bytearray(len(told.survivors))
    place = roster.place(told.client)
    alone[place // 8] |= 1 << place % 8
    return replace(told, survivors=bytes(alone))


def _about_opening(told: Open, chance: random.Random) -> ProtocolMessage:
    kind = chance.randrange(3)
    if kind == 0 and told.signatures:
        first = bytearray(told.signatures[0])
        first[chance.randrange(len(first))] ^= 1
        return replace(told, signatures=(bytes(first), *told.signatures[1:]))
    size = len(told.pieces) // told.count
    if kind == 1:
        return replace(told, count=told.count - 1, pieces=told.pieces[size:])
    pieces = bytearray(told.pieces)
    pieces[chance.randrange(len(pieces))] ^= 1
    return replace(told, pieces=bytes(pieces))
