"""What a client commits to before a run: its people, what it asks of a sum, and its past.

Signed for one run and one roster, so that a server can neither invent nor change it, nor use it
again. Every client is shown the pledges of all; see `privacy.cohorts` for what follows from them.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

from privirec.errors import FederationError
from privirec.privacy.cohorts import Demands, Member
from privirec.secagg import ProtocolError
from privirec.secagg.keys import SIGNATURE_BYTES, Identity, Roster, verify
from privirec.secagg.participants import read_participants, write_participants

MOST_USERS = 1 << 32
"""Of one client."""
_LABEL = b"privirec-pledge-2"

People = Annotated[int, Field(ge=0, lt=MOST_USERS)]
_Number = Annotated[int, Field(ge=0, lt=1 << 63)]
Asked = tuple[_Number, _Number, _Number]
"""Smallest cohort, fewest other people, smallest change."""


Period = Annotated[str, Field(pattern=r"^([0-9]{4}-[0-9]{2}-[0-9]{2} 00:00:00\+00:00)?$")]


class BadPledge(FederationError):
    """A pledge that its client did not make, or that says what cannot be."""


@dataclass(frozen=True)
class Pledge:
    """What one client has signed."""

    people: int
    demands: Demands
    known: bytes = b""
    """Map over the roster of the clients with whom it knows to have been in a sum; empty if
    nobody."""
    past: bytes = b""
    """The same, with those with whom it may have been in one."""
    period: str = ""
    """When the calendar period began whose histories it uses; empty where it has no calendar."""
    signature: bytes = b""

    @classmethod
    def of(cls, member: Member, roster: Roster) -> Self:
        known, past = (
            write_participants(each, roster) if each else b""
            for each in (member.known, member.past)
        )
        return cls(member.people, member.demands, known, past)

    def signed(self, run: str, client: int, identity: Identity, roster: Roster) -> Self:
        return replace(self, signature=identity.sign(self._content(run, client, roster)))

    def check(self, run: str, client: int, roster: Roster) -> None:
        """Raise BadPledge unless this client made it, for this run and with this roster."""
        try:
            verify(roster[client], self.signature, self._content(run, client, roster), client)
        except ProtocolError:
            raise BadPledge(f"the pledge of client {client} is not signed by its key") from None

    def _content(self, run: str, client: int, roster: Roster) -> bytes:
        return b"".join(
            [
                _LABEL,
                bytes.fromhex(run),
                roster.digest,
                struct.pack(">IIQQQ", client, self.people, *self.demands),
                hashlib.sha256(self.known).digest(),
                hashlib.sha256(self.past).digest(),
                hashlib.sha256(self.period.encode()).digest(),
            ]
        )


class PlannedPledge(BaseModel):
    """A pledge as a plan carries it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    users: People
    asks: Asked
    known: int = Field(-1, ge=-1)
    """Place of the set in the plan's list; -1 for nobody."""
    past: int = Field(-1, ge=-1)
    period: Period = ""
    signature: str = Field("", pattern=f"^([0-9a-f]{{{2 * SIGNATURE_BYTES}}})?$")


class Pledges(BaseModel):
    """The pledges of all clients of a plan; sets that several have pledged stand there once."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    clients: dict[int, PlannedPledge]
    sets: tuple[Annotated[str, Field(pattern="^([0-9a-f]{2})+$")], ...] = ()
    """Maps over the roster."""

    @classmethod
    def of(cls, pledges: Mapping[int, Pledge]) -> Self:
        both = [each.hex() for one in pledges.values() for each in (one.known, one.past) if each]
        places = {text: place for place, text in enumerate(sorted(set(both)))}
        clients = {
            client: PlannedPledge(
                users=one.people,
                asks=one.demands,
                known=places.get(one.known.hex(), -1),
                past=places.get(one.past.hex(), -1),
                period=one.period,
                signature=one.signature.hex(),
            )
            for client, one in pledges.items()
        }
        return cls(clients=clients, sets=tuple(places))

    @classmethod
    def unsigned(cls, users: Mapping[int, int]) -> Self:
        """For a plan that nobody will be shown."""
        return cls.of({client: Pledge(n, Demands(0, 0, 1)) for client, n in users.items()})

    def pledge(self, client: int) -> Pledge:
        one = self.clients[client]
        known, past = (self._looked_up(self.sets, place, "") for place in (one.known, one.past))
        return Pledge(
            one.users,
            Demands(*one.asks),
            bytes.fromhex(known),
            bytes.fromhex(past),
            one.period,
            bytes.fromhex(one.signature),
        )

    def check(self, run: str, roster: Roster) -> None:
        """Raise BadPledge unless every client made its own, for this run and with this roster."""
        for client in self.clients:
            self.pledge(client).check(run, client, roster)

    def members(self, roster: Roster) -> dict[int, Member]:
        """What everybody has pledged. Equal sets are one object, so that they compare quickly."""
        try:
            sets = [
                frozenset(read_participants(bytes.fromhex(text), roster).tolist())
                for text in self.sets
            ]
        except ProtocolError:
            raise BadPledge("a pledged set of clients that does not fit the roster") from None
        pairs = {(one.known, one.past) for one in self.clients.values()}
        both = {
            pair: tuple(self._looked_up(sets, place, frozenset[int]()) for place in pair)
            for pair in pairs
        }
        fitting = {pair for pair, (known, past) in both.items() if known <= past}
        found = {}
        for client, one in self.clients.items():
            pair = (one.known, one.past)
            known, past = both[pair]
            if pair not in fitting or (past and client not in past):
                raise BadPledge(f"client {client} pledges a past that it was not in")
            found[client] = Member(one.users, Demands(*one.asks), known, past)
        return found

    @staticmethod
    def _looked_up(sets: Any, place: int, nobody: Any) -> Any:
        if place >= len(sets):
            raise BadPledge("a pledge of a set of clients that the plan does not have")
        return sets[place] if place >= 0 else nobody
