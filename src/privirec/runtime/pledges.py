"""Pledges: a client's commitment before a run to its people, its demands on a sum and its past.

A pledge is signed for one run and one roster, so that a server can neither invent, change nor reuse
it. Every client sees the pledges of all; `privacy.cohorts` explains the consequences.
"""

from __future__ import annotations

import hashlib
import struct
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator

from privirec.errors import FederationError
from privirec.privacy.cohorts import Demands, Pledge
from privirec.secagg import ProtocolError
from privirec.secagg.keys import SIGNATURE_BYTES, Identity, Roster, verify
from privirec.secagg.participants import read_participants, write_participants

MOST_USERS = 1 << 32
"""Upper bound on the users of one client, exclusive."""
_LABEL = b"privirec-pledge-2"

People = Annotated[int, Field(ge=0, lt=MOST_USERS)]
_Number = Annotated[int, Field(ge=0, lt=1 << 63)]
DemandNumbers = tuple[_Number, _Number, _Number]
"""Numbers of `Demands`."""


Period = Annotated[str, Field(pattern=r"^([0-9]{4}-[0-9]{2}-[0-9]{2} 00:00:00\+00:00)?$")]


class BadPledge(FederationError):
    """A pledge that its client did not make, or that is inconsistent."""


@dataclass(frozen=True)
class SignedPledge:
    """A pledge as its client sends it: with maps over the roster and a signature."""

    people: int
    demands: Demands
    known: bytes = b""
    """Bit map over the roster of clients that it knows it shared a sum with; empty if none."""
    past: bytes = b""
    """Bit map of clients that it may have shared a sum with; a superset of `known`."""
    period: str = ""
    """Start of the calendar period whose histories it uses; empty if it has no calendar."""
    signature: bytes = b""

    @classmethod
    def of(cls, pledge: Pledge, roster: Roster) -> Self:
        known, past = (
            write_participants(each, roster) if each else b""
            for each in (pledge.known, pledge.past)
        )
        return cls(pledge.people, pledge.demands, known, past, pledge.period)

    def signed(self, run: str, client: int, identity: Identity, roster: Roster) -> Self:
        return replace(self, signature=identity.sign(self._content(run, client, roster)))

    def check(self, run: str, client: int, roster: Roster) -> None:
        """Raise BadPledge unless this client signed it for this run and this roster."""
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


class PledgeContent(BaseModel):
    """Content of a pledge without its client; most clients of a plan have the same content."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    users: People
    demands: DemandNumbers
    known: int = Field(-1, ge=-1)
    """Index into `Pledges.sets`; -1 for the empty set."""
    past: int = Field(-1, ge=-1)
    period: Period = ""


class Pledges(BaseModel):
    """Pledges of all clients of a plan.

    Equal contents are stored once, so that a client costs little more than its signature.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    clients: Annotated[tuple[Annotated[int, Field(ge=0, lt=1 << 32)], ...], FailFast()]
    """Client numbers in ascending order."""
    content_of: Annotated[tuple[Annotated[int, Field(ge=0)], ...], FailFast()]
    """Index into `contents` for each client."""
    contents: Annotated[tuple[PledgeContent, ...], FailFast()]
    sets: Annotated[tuple[Annotated[str, Field(pattern="^([0-9a-f]{2})+$")], ...], FailFast()] = ()
    """Bit maps over the roster, in hexadecimal."""
    signatures: str = Field("", pattern="^[A-Za-z0-9+/]*={0,2}$")
    """Concatenated signatures of all clients in base 64; empty in a plan that no client sees."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.content_of) != len(self.clients):
            raise ValueError("clients without a pledge")
        if any(after <= before for before, after in pairwise(self.clients)):
            raise ValueError("clients that are not in ascending order")
        # Every entry must be used, so the number of clients limits the number of entries.
        if set(self.content_of) != set(range(len(self.contents))):
            raise ValueError("contents of pledges that are missing, or that no client has pledged")
        places = {place for one in self.contents for place in (one.known, one.past)} - {-1}
        if places != set(range(len(self.sets))) or len(set(self.sets)) != len(self.sets):
            raise ValueError("sets of clients that nobody pledges, or that are there twice")
        if len(self._signatures) not in (0, SIGNATURE_BYTES * len(self.clients)):
            raise ValueError("signatures that are not one for each client")
        return self

    @classmethod
    def of(cls, pledges: Mapping[int, SignedPledge]) -> Self:
        both = [each.hex() for one in pledges.values() for each in (one.known, one.past) if each]
        places = {text: place for place, text in enumerate(sorted(set(both)))}
        contents: dict[PledgeContent, int] = {}
        content_of, signatures = [], []
        for _, one in sorted(pledges.items()):
            content = PledgeContent(
                users=one.people,
                demands=one.demands,
                known=places.get(one.known.hex(), -1),
                past=places.get(one.past.hex(), -1),
                period=one.period,
            )
            content_of.append(contents.setdefault(content, len(contents)))
            signatures.append(one.signature)
        return cls(
            clients=tuple(sorted(pledges)),
            content_of=tuple(content_of),
            contents=tuple(contents),
            sets=tuple(places),
            signatures=b64encode(b"".join(signatures)).decode(),
        )

    @classmethod
    def unsigned(cls, users: Mapping[int, int]) -> Self:
        """Return pledges without signatures, for a plan that no client sees."""
        return cls.of({client: SignedPledge(n, Demands(0, 0, 1)) for client, n in users.items()})

    def users(self) -> dict[int, int]:
        """Return the number of people of each client."""
        counts = [one.users for one in self.contents]
        return {client: counts[place] for client, place in self._each()}

    def periods(self) -> set[str]:
        """Return the calendar periods whose histories the clients use."""
        return {self.contents[place].period for place in set(self.content_of)}

    def signed(self, client: int) -> SignedPledge:
        at = bisect_left(self.clients, client)
        if self.clients[at : at + 1] != (client,):
            raise KeyError(client)
        return replace(self._unsigned(self.content_of[at]), signature=self._signature(at))

    def check(self, run: str, roster: Roster) -> None:
        """Raise BadPledge unless every client signed its pledge for this run and this roster."""
        unsigned = [self._unsigned(place) for place in range(len(self.contents))]
        for at, (client, place) in enumerate(self._each()):
            replace(unsigned[place], signature=self._signature(at)).check(run, client, roster)

    def read(self, roster: Roster) -> dict[int, Pledge]:
        """Return the pledge of every client; raise BadPledge if one cannot be true.

        Clients with equal pledges share one object, and equal sets are one object.
        """
        try:
            sets = [
                frozenset(read_participants(bytes.fromhex(text), roster).tolist())
                for text in self.sets
            ]
        except ProtocolError:
            raise BadPledge("a pledged set of clients that does not fit the roster") from None
        read = []
        for one in self.contents:
            known, past = (
                self._looked_up(sets, place, frozenset[int]()) for place in (one.known, one.past)
            )
            read.append(Pledge(one.users, Demands(*one.demands), known, past, one.period))
        fits = [one.known <= one.past for one in read]
        for client, place in self._each():
            past = read[place].past
            if not fits[place] or (past and client not in past):
                raise BadPledge(f"client {client} pledges a past that it was not in")
        return {client: read[place] for client, place in self._each()}

    def _each(self) -> Iterator[tuple[int, int]]:
        """Yield every client with its index into `contents`."""
        return zip(self.clients, self.content_of, strict=True)

    def _unsigned(self, place: int) -> SignedPledge:
        one = self.contents[place]
        known, past = (self._looked_up(self.sets, each, "") for each in (one.known, one.past))
        people, demands = one.users, Demands(*one.demands)
        return SignedPledge(people, demands, bytes.fromhex(known), bytes.fromhex(past), one.period)

    @cached_property
    def _signatures(self) -> bytes:
        return b64decode(self.signatures, validate=True)

    def _signature(self, at: int) -> bytes:
        return self._signatures[SIGNATURE_BYTES * at : SIGNATURE_BYTES * (at + 1)]

    @staticmethod
    def _looked_up(sets: Any, place: int, nobody: Any) -> Any:
        if place >= len(sets):
            raise BadPledge("a pledge of a set of clients that the plan does not have")
        return sets[place] if place >= 0 else nobody
