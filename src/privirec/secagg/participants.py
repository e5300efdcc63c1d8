"""Who takes part: the map that names them, and how few of them are enough."""

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
    """Bit map over the roster's order, lowest bit of byte 0 first."""
    present = np.zeros(len(roster), np.uint8)
    present[[roster.place(client) for client in clients]] = 1
    return np.packbits(present, bitorder="little").tobytes()


def read_participants(bitmap: bytes, roster: Roster) -> NDArray[np.uint32]:
    """Ascending ids of the clients in a bit map; MalformedMessage unless it fits the roster."""
    check_map(bitmap, roster)
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
    return roster.id_array[np.flatnonzero(bits)]


def check_map(bitmap: bytes, roster: Roster) -> None:
    """MalformedMessage unless a bit map fits the roster."""
    spare = -len(roster) % 8
    if len(bitmap) != (len(roster) + 7) // 8 or (spare and bitmap[-1] >> (8 - spare)):
        raise MalformedMessage("the map of participants does not fit the roster")


def mapped(bitmap: bytes) -> int:
    """How many clients are in a bit map. Like what follows, this looks at bytes and not at clients:
    a client reads maps of everybody, and everybody is many."""
    return int.from_bytes(bitmap, "little").bit_count()


def is_subset(bitmap: bytes, of: bytes) -> bool:
    """Whether all clients in a map are in another of the same roster."""
    one, other = (np.frombuffer(each, np.uint8) for each in (bitmap, of))
    return not (one & ~other).any()


def is_in(bitmap: bytes, client: int, roster: Roster) -> bool:
    """Whether a client is in a map that fits the roster."""
    place = roster.place(client)
    return bool(bitmap[place >> 3] >> (place & 7) & 1)


@lru_cache(maxsize=16)
def one_copy(bitmap: bytes) -> bytes:
    """The same map: where many clients are in one process, they share it."""
    return bitmap


def least_participants(statement: Statement) -> int:
    """Clients that must answer the announcement; the corrupt ones among fewer could be too large a
    part."""
    return statement.clients - statement.dropped


def check_cohort(clients: int, policy: ClientPolicy, announced_minimum: int) -> None:
    """Refuse, as a client, a cohort smaller than its policy or the announcement asks for."""
    least = max(policy.min_cohort, announced_minimum)
    if clients < least:
        raise CohortTooSmall(f"a cohort of {clients} where at least {least} are asked for")


def accepted_participants(
    bitmap: bytes, client: int, announce: Announce, roster: Roster, policy: ClientPolicy
) -> NDArray[np.uint32]:
    """Ascending ids of those who take part, if they are enough and this client is one of them."""
    participants = read_participants(bitmap, roster)
    least = max(announce.min_cohort, least_participants(announce.statement))
    check_cohort(len(participants), policy, least)
    if client not in participants:
        raise NotInGraph(f"client {client} is missing from the graph")
    return participants
