"""Lies about the graph, the shares, the survivors and their confirmations."""

from __future__ import annotations

import random
from dataclasses import replace

from privirec.secagg.bell2020.messages import (
    Confirmed,
    Deliver,
    Neighbours,
    Survivors,
    decode,
)
from privirec.secagg.key_tree import HASH_BYTES
from privirec.secagg.keys import KEY_BYTES, SIGNATURE_BYTES, Roster
from privirec.secagg.messages import encode
from privirec.secagg.participants import read_participants, write_participants


def lie(message: bytes, chance: random.Random, roster: Roster) -> bytes | None:
    """Return a false variant of this message that no client may answer, or None."""
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
        return encode(replace(told, survivors=_about_survivors(told, chance, roster)))
    if isinstance(told, Confirmed):
        return encode(replace(told, signatures=_about_confirmation(told, chance)))
    return None


def _about_neighbours(told: Neighbours, chance: random.Random, roster: Roster) -> Neighbours:
    victim = chance.randrange(len(told.keys))
    keys = list(told.keys)
    kind = chance.randrange(7)
    if kind == 0:
        return replace(told, threshold=told.threshold - 1)
    if kind == 1:
        return replace(told, neighbours=told.neighbours - 1, keys=tuple(keys[1:]))
    if kind == 2:
        # The server's own key, for a man-in-the-middle attack.
        keys[victim] = replace(keys[victim], sealing_key=chance.randbytes(KEY_BYTES))
        return replace(told, keys=tuple(keys))
    if kind == 3:
        return without_receiver(told, roster)
    if kind == 4:
        # A graph chosen before the client has answered.
        return replace(told, root=chance.randbytes(HASH_BYTES))
    if kind == 5:
        return replace(told, path=told.path[1:])
    return replace(told, keys=tuple(keys[:victim] + keys[victim + 1 :]))


def without_receiver(told: Neighbours, roster: Roster) -> Neighbours:
    """Return the message with the receiver removed from the participants."""
    return replace(told, participants=without(told.participants, {told.client}, roster))


def without(bitmap: bytes, clients: set[int], roster: Roster) -> bytes:
    """Return a bit map without these clients."""
    return write_participants(set(read_participants(bitmap, roster).tolist()) - clients, roster)


def _about_survivors(told: Survivors, chance: random.Random, roster: Roster) -> bytes:
    present = read_participants(told.survivors, roster).tolist()
    kind = chance.randrange(3)
    if kind == 0:
        return without(told.survivors, {told.client}, roster)
    if kind == 1:
        return write_participants({told.client}, roster)
    others = [client for client in present if client != told.client]
    return without(told.survivors, set(chance.sample(others, len(others) // 2 + 1)), roster)


def _about_confirmation(told: Confirmed, chance: random.Random) -> tuple[bytes, ...]:
    signatures = list(told.signatures)
    victim = chance.randrange(len(signatures))
    kind = chance.randrange(3)
    if kind == 0:
        del signatures[victim]
    elif kind == 1:
        signatures[victim] = chance.randbytes(SIGNATURE_BYTES)
    else:
        # Rotate the signatures; duplicate a single one.
        signatures.append(signatures.pop(0))
        if len(signatures) == 1:
            signatures *= 2
    return tuple(signatures)
