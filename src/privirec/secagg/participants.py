"""Bit maps of the participants of a run, and minimum numbers of participants."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from privirec.secagg.errors import CohortTooSmall, MalformedMessage, NotInGraph
from privirec.secagg.keys import Roster
from privirec.secagg.messages import Announce
from privirec.secagg.parameters import Statement
from privirec.secagg.protocol import ClientPolicy

COHORT_CHANGED = (
    "the cohort changed after the first sum: two sums would differ by the clients that left, and "
    "would show them"
)


def write_participants(clients: Iterable[int], roster: Roster) -> bytes:
    """Return a bit map of the clients in the roster's order, lowest bit of byte 0 first."""
    present = np.zeros(len(roster), np.uint8)
    present[[roster.place(client) for client in clients]] = 1
    return np.packbits(present, bitorder="little").tobytes()


def read_participants(bitmap: bytes, roster: Roster) -> NDArray[np.uint32]:
    """Return the ascending ids in a bit map; raise MalformedMessage unless it fits the roster."""
    check_map(bitmap, roster)
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
    return roster.id_array[np.flatnonzero(bits)]


def check_map(bitmap: bytes, roster: Roster) -> None:
    """Raise MalformedMessage unless a bit map fits the roster."""
    spare = -len(roster) % 8
    if len(bitmap) != (len(roster) + 7) // 8 or (spare and bitmap[-1] >> (8 - spare)):
        raise MalformedMessage("the map of participants does not fit the roster")


def mapped(bitmap: bytes) -> int:
    """Return the number of clients in a bit map.

    Like the functions below, this works on bytes and not on single clients, because each client
    processes maps of the whole roster.
    """
    return int.from_bytes(bitmap, "little").bit_count()


def is_subset(bitmap: bytes, of: bytes) -> bool:
    """Return True if all clients in a map are also in map `of` of the same roster."""
    one, other = (np.frombuffer(each, np.uint8) for each in (bitmap, of))
    return not (one & ~other).any()


def is_in(bitmap: bytes, client: int, roster: Roster) -> bool:
    """Return True if a client is in a map that fits the roster."""
    place = roster.place(client)
    return bool(bitmap[place >> 3] >> (place & 7) & 1)


@lru_cache(maxsize=16)
def one_copy(bitmap: bytes) -> bytes:
    """Return a cached copy of a map, so that many clients in one process share it."""
    return bitmap


def least_participants(statement: Statement) -> int:
    """Return the number of clients that must answer the announcement.

    With fewer participants, the share of corrupt clients among them could be too large.
    """
    return statement.clients - statement.dropped


def check_cohort(clients: int, policy: ClientPolicy, announced_minimum: int) -> None:
    """Raise CohortTooSmall if a cohort is below the minimum of the policy or the announcement."""
    least = max(policy.min_cohort, announced_minimum)
    if clients < least:
        raise CohortTooSmall(f"a cohort of {clients} where at least {least} are asked for")


def accepted_participants(
    bitmap: bytes, client: int, announce: Announce, roster: Roster, policy: ClientPolicy
) -> NDArray[np.uint32]:
    """Return the ascending ids of the participants, if they are enough and include this client."""
    participants = read_participants(bitmap, roster)
    least = max(announce.min_cohort, least_participants(announce.statement))
    check_cohort(len(participants), policy, least)
    if client not in participants:
        raise NotInGraph(f"client {client} is missing from the graph")
    return participants
