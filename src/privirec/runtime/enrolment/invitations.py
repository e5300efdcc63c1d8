"""Invitations: links with which clients enrol themselves, each of them once.

A link holds the server's address and, in its fragment, which a browser would not send:

    version (1 byte) | operator's key (32) | SHA-256 of ca.crt (32) | code (16) | name |
    first bytes of the SHA-256 of address and all before (4)

The code has 128 random bits. It is the seed of a key pair: the server keeps the public key only,
and a client proves with the private key that it knows the code. So the code never leaves the
client, and nobody, not even the server, can put another card into an application.

    SERVER/invitations.db    public keys of codes, with name, end and the client that used each
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from privirec.codec import canonical
from privirec.durable import Database
from privirec.errors import FederationError, UsageError
from privirec.runtime.enrolment.cards import Card, Name, PublicKey, Signature
from privirec.runtime.enrolment.folders import OperatorFolder, check_address
from privirec.runtime.enrolment.identities import fingerprint
from privirec.runtime.messages import one_line
from privirec.runtime.node.calendar import now as time_now
from privirec.secagg.errors import BadSignature
from privirec.secagg.keys import Identity, verify

FILE = "invitations.db"
CODE_BYTES = 16
DAYS = 14
"""Days until a link expires, unless it says otherwise."""
PAGE = "/join#"
_CODE, _APPLICATION = b"privirec-invitation-1", b"privirec-application-1"
_HEAD, _CHECK = 1 + 32 + 32 + CODE_BYTES, 4
_SCHEMA = """
    CREATE TABLE invitation (
        code TEXT PRIMARY KEY, name TEXT NOT NULL, expires TEXT NOT NULL,
        by_hand INTEGER NOT NULL, card TEXT NOT NULL DEFAULT ''
    )
"""


class Why(StrEnum):
    """Reason for which a server turns an application down."""

    UNKNOWN = "unknown"
    USED = "used"
    EXPIRED = "expired"
    REVOKED = "revoked"
    MALFORMED = "malformed"
    NAMED = "named"


IN_WORDS = {
    Why.UNKNOWN: "the server knows no such invitation: the link was altered or withdrawn, or is "
    "from another federation",
    Why.USED: "this link was used before, by another client; ask the operator for a new one",
    Why.EXPIRED: "this link has expired; ask the operator for a new one",
    Why.REVOKED: "this client was revoked; ask the operator for a new link, and join with a new "
    "folder",
    Why.MALFORMED: "the server could not read the application; install the server's version",
    Why.NAMED: "another client has the name of this invitation; ask the operator for a new link",
}


class NotEnrolled(FederationError):
    """An application that the server turns down."""

    def __init__(self, why: Why) -> None:
        super().__init__(IN_WORDS[why])
        self.why = why


@dataclass(frozen=True)
class Invitation:
    """A link, as the client has it."""

    address: str
    operator: str
    authority: str
    """SHA-256 of ca.crt in hexadecimal."""
    name: str
    code: bytes = field(repr=False)

    @property
    def link(self) -> str:
        head = bytes([1]) + bytes.fromhex(self.operator + self.authority) + self.code
        body = head + self.name.encode()
        whole = body + _check(self.address, body)
        return self.address + PAGE + base64.urlsafe_b64encode(whole).decode().rstrip("=")

    @classmethod
    def parse(cls, link: str) -> Invitation:
        """Parse a link; raise UsageError if it is not a whole and unchanged one."""
        address, page, text = link.strip().partition(PAGE)
        try:
            if not page or not text.isascii():
                raise ValueError
            whole = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            body, check = whole[:-_CHECK], whole[-_CHECK:]
            if len(body) <= _HEAD or body[0] != 1 or check != _check(address, body):
                raise ValueError
            found = cls(
                address,
                *(body[1:33].hex(), body[33:65].hex()),
                name=body[_HEAD:].decode(),
                code=body[65:_HEAD],
            )
            if found.link != link.strip():
                raise ValueError
        except (ValueError, binascii.Error):
            raise UsageError(
                "not a whole invitation link, or it was altered on its way: copy it again"
            ) from None
        check_address(found.address)
        return found

    @property
    def identity(self) -> Identity:
        """Key pair of the code."""
        return Identity(hashlib.sha256(_CODE + self.code).digest())

    def application(self, client: Identity, node: str) -> Application:
        """Return a client's application for the place in the roster that it is invited to."""
        return Application.make(self, Card.make(self.name, client, node))


class Application(BaseModel):
    """A client's card, with the proof that it knows the code of an invitation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    operator: PublicKey
    code: PublicKey
    """Public key of the code."""
    card: Card
    signature: Signature
    """Signature by the key of the code."""

    @classmethod
    def make(cls, invitation: Invitation, card: Card) -> Application:
        identity = invitation.identity
        said = _statement(invitation.operator, card)
        return cls(
            operator=invitation.operator,
            code=identity.public.hex(),
            card=card,
            signature=identity.sign(said).hex(),
        )

    @classmethod
    def parse(cls, content: bytes, operator: str) -> Application:
        """Return an application to this operator; raise NotEnrolled if it is not valid."""
        try:
            found = cls.model_validate_json(content)
            found.card.check()
            said = _statement(found.operator, found.card)
            verify(bytes.fromhex(found.code), bytes.fromhex(found.signature), said, 0)
        except (ValidationError, BadSignature, ValueError):
            raise NotEnrolled(Why.MALFORMED) from None
        if found.operator != operator:
            raise NotEnrolled(Why.UNKNOWN)
        return found


class Admitted(BaseModel):
    """Reply to a client that is in the roster: its number, and the server's key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    client: Annotated[int, Field(ge=0)]
    server: PublicKey
    name: Name


@dataclass(frozen=True)
class Invited:
    """An invitation as the operator's folder has it."""

    code: str
    name: str
    expires: datetime
    by_hand: bool
    card: Card | None
    """Card of the client that used it."""


class Invitations:
    """The invitations of an operator."""

    def __init__(self, home: OperatorFolder) -> None:
        self._home = home
        home.check()

    def make(
        self, names: list[str], address: str, *, days: float, by_hand: bool = False
    ) -> list[Invitation]:
        """Invite clients by these names; all of the invitations are made, or none."""
        check_address(address)
        authority = self._home.authority
        taken = {m.name for m in self._home.members.members if not m.revoked}
        taken |= {each.name for each in self.open()}
        for place, name in enumerate(names):
            if not name or len(name) > 100 or one_line(name) != name:
                raise UsageError(f"{name!r}: a client's name has 1 to 100 printable characters")
            if name in taken or name in names[:place]:
                raise UsageError(f"{name!r} is a client or invited already; nothing was changed")
        made = [
            Invitation(address, self._home.operator, authority, name, os.urandom(CODE_BYTES))
            for name in names
        ]
        until = (time_now() + timedelta(days=days)).isoformat()
        with closing(self._database()) as database, database.transaction() as changes:
            changes.executemany(
                "INSERT INTO invitation (code, name, expires, by_hand) VALUES (?, ?, ?, ?)",
                [(each.identity.public.hex(), each.name, until, by_hand) for each in made],
            )
        return made

    def all(self) -> list[Invited]:
        """Return all invitations."""
        return self._found("")

    def open(self) -> list[Invited]:
        """Return the invitations that nobody has used, and that have not expired."""
        return [each for each in self.all() if each.card is None and each.expires > time_now()]

    def waiting(self) -> list[Invited]:
        """Return the used invitations whose client the operator has not approved yet."""
        known = {member.lineage for member in self._home.members.members}
        return [each for each in self.all() if each.card and each.card.key not in known]

    def approve_waiting(self, operator_key: Path | None = None) -> list[str]:
        """Approve the clients that came with a valid link and wait; return their names."""
        with self._home.changing():
            members, cards = self._home.members, [each.card for each in self.waiting()]
            for card in filter(None, cards):
                members = members.approve(card)
            if cards:
                self._home.save(members, operator_key)
        return [card.name for card in cards if card]

    def withdraw(self, name: str) -> None:
        """Withdraw an unused invitation."""
        with closing(self._database()) as database, database.transaction() as changes:
            done = changes.execute("DELETE FROM invitation WHERE name = ? AND card = ''", (name,))
            if not done.rowcount:
                raise UsageError(f"{name!r}: no invitation of this name is open")

    def enrol(self, application: Application) -> Admitted | None:
        """Use an invitation; return the client's place, or None if it waits for the operator.

        Raise NotEnrolled if the application is turned down. The same application may be made
        again, after any interruption, with the same effect.
        """
        with self._home.changing():
            invited = self._claimed(application)
            card, members = application.card, self._home.members
            for member in members.members:
                if member.lineage == card.key:
                    if member.revoked:
                        raise NotEnrolled(Why.REVOKED)
                    return Admitted(client=member.client, server=members.server, name=member.name)
            if invited.by_hand or not self._home.has_operator_key:
                return None
            try:
                members = members.approve(card)
            except UsageError:
                raise NotEnrolled(Why.NAMED) from None
            self._home.save(members)
            number = members.number_of(card.key)
            return Admitted(client=number, server=members.server, name=card.name)

    def _claimed(self, application: Application) -> Invited:
        """Record that this client uses an invitation, before anything follows from it."""
        found = self._found("WHERE code = ?", application.code)
        if not found or found[0].name != application.card.name:
            raise NotEnrolled(Why.UNKNOWN)
        (invited,) = found
        if invited.card is not None:
            if invited.card.key != application.card.key:
                raise NotEnrolled(Why.USED)
            return invited
        if invited.expires <= time_now():
            raise NotEnrolled(Why.EXPIRED)
        with closing(self._database()) as database, database.transaction() as changes:
            changes.execute(
                "UPDATE invitation SET card = ? WHERE code = ? AND card = ''",
                (application.card.model_dump_json(), application.code),
            )
        return invited

    def _found(self, where: str, *values: str) -> list[Invited]:
        if not (self._home.folder / FILE).exists():
            return []
        query = f"SELECT code, name, expires, by_hand, card FROM invitation {where} ORDER BY rowid"  # noqa: S608
        with closing(self._database()) as database:
            rows = database.read(query, values)
        return [
            Invited(
                code,
                name,
                datetime.fromisoformat(expires),
                bool(by_hand),
                Card.model_validate_json(card) if card else None,
            )
            for code, name, expires, by_hand, card in rows
        ]

    def _database(self) -> Database:
        return Database(self._home.folder / FILE, _SCHEMA, otherwise="invite these clients again")


def in_lines(invited: Invitation) -> list[str]:
    """Return what a person may compare before joining."""
    return [
        f"Invitation for {invited.name} to {invited.address}",
        f"Operator's fingerprint {fingerprint(invited.operator)}",
    ]


def _statement(operator: str, card: Card) -> bytes:
    said = {"operator": operator, "card": card.model_dump(mode="json")}
    return _APPLICATION + canonical(said)


def _check(address: str, body: bytes) -> bytes:
    return hashlib.sha256(_CODE + address.encode() + b"\0" + body).digest()[:_CHECK]
