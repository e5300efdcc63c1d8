"""The roster: the clients that the operator approved, with every change since the beginning.

A roster *is* the list of its changes, and its number is their count. Each change is folded into a
chain of digests. The operator signs the number and the last digest, and thereby all changes. A
client or server that has a roster accepts only one that continues it: an older roster, or one with
a different past, is refused.

The operator's key signs rosters and nothing else. The server's messages and models are signed by
the key that the roster names as the server's.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass as checked_dataclass

from privirec.codec import canonical
from privirec.durable import write_whole
from privirec.errors import UsageError
from privirec.runtime.enrolment.cards import (
    Card,
    ClientNumber,
    Name,
    NodeKey,
    PublicKey,
    Rotation,
    Signature,
    check_renewal,
    check_rotation,
    renewal_statement,
)
from privirec.secagg.errors import BadSignature
from privirec.secagg.keys import Identity, Roster, verify

_CHAIN = b"privirec-roster-chain-2"
_SIGNED = b"privirec-roster-2"


# Decisions of the operator. They are not pydantic models, because a device reads thousands of them
# and a model takes two kilobytes.
_STRICT = ConfigDict(extra="forbid")


@checked_dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ServerNamed:
    """A new key of the server."""

    change: Literal["server"] = "server"
    key: PublicKey


@checked_dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class ServerRenewed:
    """A new key of the server, signed by its old one."""

    change: Literal["renew"] = "renew"
    key: PublicKey
    signature: Signature
    """Signature by the old key; see `cards.renewal_statement`."""


@checked_dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Approved:
    """Approval of a client."""

    change: Literal["approve"] = "approve"
    client: ClientNumber
    name: Name
    key: PublicKey
    node: NodeKey


@checked_dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Revoked:
    """Revocation of a client."""

    change: Literal["revoke"] = "revoke"
    client: ClientNumber


@checked_dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Rotated:
    """New keys of a client, signed by its old key."""

    change: Literal["rotate"] = "rotate"
    client: ClientNumber
    key: PublicKey
    node: NodeKey
    signature: Signature
    """Signature by the old key; see `cards.rotation_statement`."""


AnyChange = Annotated[
    ServerNamed | ServerRenewed | Approved | Revoked | Rotated, Field(discriminator="change")
]
WORDS = {
    "approve": "approved",
    "revoke": "revoked",
    "rotate": "new key",
    "server": "server's key",
    "renew": "server's new key",
}
"""Words for the kinds of changes."""


@dataclass(frozen=True, slots=True)
class RosterEntry:
    """A client after the roster's last change."""

    client: int
    name: str
    key: str
    node: str
    lineage: str
    """First key of the client: a lasting name that survives rotations and is never reused."""
    revoked: bool = False


class _Standing:
    """State of a roster after some of its changes."""

    def __init__(self, operator: str) -> None:
        self.operator = operator
        self.server = ""
        self.former_servers: tuple[str, ...] = ()
        """Keys that the server had before; none of them comes back."""
        self.members: dict[int, RosterEntry] = {}
        self._keys: dict[str, int] = {}
        """Client of every key that was ever in use; a key is never assigned again."""
        self._names: dict[str, int] = {}
        """Client of each name; revoked clients are not included."""

    def copy(self) -> _Standing:
        other = _Standing(self.operator)
        other.server, other.members = self.server, dict(self.members)
        other.former_servers = self.former_servers
        other._keys, other._names = dict(self._keys), dict(self._names)
        return other

    def member(self, client: int) -> RosterEntry:
        if client not in self.members:
            raise UsageError(f"client {client} is not in the roster")
        return self.members[client]

    def number_of(self, key: str) -> int:
        if key not in self._keys:
            raise UsageError(f"key {key[:16]} is not in the roster")
        return self._keys[key]

    def take(self, change: AnyChange) -> RosterEntry | None:
        """Apply a change and return the client it concerns, if any; refuse an invalid change."""
        if isinstance(change, ServerNamed | ServerRenewed):
            self._name_server(change)
            return None
        changed = self._approved(change) if isinstance(change, Approved) else self._changed(change)
        self.members[changed.client] = changed
        self._keys[changed.key] = changed.client
        if changed.revoked:
            self._names.pop(changed.name, None)
        else:
            self._names[changed.name] = changed.client
        return changed

    def _name_server(self, change: ServerNamed | ServerRenewed) -> None:
        if change.key in (self.server, *self.former_servers):
            raise UsageError(f"key {change.key[:16]} was the server's before")
        if isinstance(change, ServerRenewed):
            try:
                check_renewal(self.operator, self.server, change.key, change.signature)
            except BadSignature:
                raise UsageError("the server's new key is not signed by its old one") from None
        if self.server:
            self.former_servers = (*self.former_servers, self.server)
        self.server = change.key

    def _approved(self, change: Approved) -> RosterEntry:
        self._check_new(change.key)
        if change.name in self._names:
            there = self._names[change.name]
            raise UsageError(f"client {there} has the name {change.name!r} already")
        if change.client != len(self.members):
            raise UsageError(f"number {change.client} is not the next one")
        return RosterEntry(change.client, change.name, change.key, change.node, lineage=change.key)

    def _changed(self, change: Revoked | Rotated) -> RosterEntry:
        member = self.member(change.client)
        if member.revoked:
            raise UsageError(f"client {change.client} is revoked")
        if isinstance(change, Revoked):
            return replace(member, revoked=True)
        self._check_new(change.key)
        try:
            new = (change.key, change.node)
            check_rotation(self.operator, change.client, member.key, new, change.signature)
        except BadSignature:
            raise UsageError(
                f"the new key of client {change.client} is not signed by its old one"
            ) from None
        return replace(member, key=change.key, node=change.node)

    def _check_new(self, key: str) -> None:
        if key not in self._keys:
            return
        member = self.members[self._keys[key]]
        state = "revoked" if member.revoked else "in the roster"
        raise UsageError(f"key {key[:16]} is {state} already, as client {member.client}")


class RosterFile(BaseModel):
    """A roster with its history; revoked clients stay listed, to keep their numbers and keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[2] = 2
    operator: PublicKey
    changes: tuple[AnyChange, ...] = ()
    signature: str = ""

    # --- content ----------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        return len(self.changes)

    @cached_property
    def digests(self) -> list[bytes]:
        """Digests of the roster before its first change and after each change."""
        first = hashlib.sha256(_CHAIN + bytes.fromhex(self.operator)).digest()
        return [first, *_chained(first, self.changes)]

    @cached_property
    def _standing(self) -> _Standing:
        """State after all changes, each of which is checked."""
        standing = _Standing(self.operator)
        for number, change in enumerate(self.changes, 1):
            try:
                standing.take(change)
            except UsageError as error:
                raise UsageError(f"change {number} of the roster: {error}") from None
        return standing

    @property
    def server(self) -> str:
        """Public key of the server, which signs messages to clients and models."""
        return self._standing.server

    @property
    def former_servers(self) -> tuple[str, ...]:
        """Public keys that the server had before, oldest first."""
        return self._standing.former_servers

    @property
    def members(self) -> tuple[RosterEntry, ...]:
        return tuple(self._standing.members.values())

    def member(self, client: int) -> RosterEntry:
        return self._standing.member(client)

    def has(self, client: int) -> bool:
        """Return True if this client is listed, even if it is revoked."""
        return client in self._standing.members

    def number_of(self, key: str) -> int:
        """Return the number of the client that has had this key; raise UsageError if none has."""
        return self._standing.number_of(key)

    def roster(self) -> Roster:
        """Return the keys of the clients that may take part now."""
        return Roster({m.client: bytes.fromhex(m.key) for m in self.members if not m.revoked})

    def lineages(self) -> dict[int, str]:
        """Return the lasting name of each client, which stays the same through rotations.

        A client that was revoked and approved again under another number, or that lost its old key,
        counts as a new client.
        """
        return {m.client: m.lineage for m in self.members if not m.revoked}

    def keys_of(self, client: int) -> tuple[bytes, ...]:
        """Return all keys that a client has had, oldest first."""
        return tuple(
            bytes.fromhex(change.key)
            for change in self.changes
            if isinstance(change, Approved | Rotated) and change.client == client
        )

    def since(self, before: RosterFile | None) -> list[tuple[str, RosterEntry | None, str]]:
        """Return the changes since an earlier roster, or all changes, as (kind, client, key)."""
        standing = before._standing.copy() if before else _Standing(self.operator)
        found = []
        for change in self.changes[before.number if before else 0 :]:
            member = standing.take(change)
            key = member.key if member else standing.server
            found.append((WORDS[change.change], member, key))
        return found

    # --- changes ----------------------------------------------------------------------------------

    def name_server(self, key: str) -> RosterFile:
        """Return a roster that names this key as the server's."""
        return self._with(ServerNamed(key=key))

    def renew_server(self, old: Identity, key: str) -> RosterFile:
        """Return a roster with a new key of the server, which the old one signs."""
        signature = old.sign(renewal_statement(self.operator, self.server, key)).hex()
        return self._with(ServerRenewed(key=key, signature=signature))

    def approve(self, card: Card) -> RosterFile:
        """Return a roster with one more client, under the next free number."""
        number = len(self._standing.members)
        return self._with(Approved(client=number, name=card.name, key=card.key, node=card.node))

    def revoke(self, client: int) -> RosterFile:
        """Return a roster in which this client is revoked."""
        return self._with(Revoked(client=client))

    def rotate(self, rotation: Rotation) -> RosterFile:
        """Return a roster with a client's new keys in place of its old ones."""
        if rotation.operator != self.operator:
            raise UsageError(f"a change of keys for operator {rotation.operator[:16]}")
        if self.member(rotation.client).key != rotation.old:
            raise UsageError(
                f"client {rotation.client} has another key than {rotation.old[:16]}, which signed "
                "this change"
            )
        card = rotation.card
        return self._with(
            Rotated(
                client=rotation.client,
                key=card.key,
                node=card.node,
                signature=rotation.signature,
            )
        )

    def _with(self, *changes: AnyChange, signature: str = "") -> RosterFile:
        """Return a roster with more changes.

        Only the new changes are checked; the others were checked when they were made or read.
        """
        standing = self._standing.copy()
        for number, change in enumerate(changes, 1):
            try:
                standing.take(change)
            except UsageError as error:
                if not signature:
                    raise
                raise UsageError(f"change {self.number + number} of the roster: {error}") from None
        changed = self.model_copy(
            update={"changes": (*self.changes, *changes), "signature": signature}
        )
        chain = [*self.digests, *_chained(self.digests[-1], changes)]
        vars(changed).update(_standing=standing, digests=chain)
        return changed

    # --- signature and file -----------------------------------------------------------------------

    def signed(self, operator: Identity) -> RosterFile:
        if operator.public.hex() != self.operator:
            raise UsageError(
                f"this is the key of operator {operator.public.hex()[:16]}, and the roster is "
                f"{self.operator[:16]}'s"
            )
        signature = operator.sign(_statement(self.number, self.digests[-1])).hex()
        return self.model_copy(update={"signature": signature})

    def write(self, path: Path) -> None:
        write_whole(path, json.dumps(self.model_dump(mode="json"), indent=1).encode() + b"\n")

    @classmethod
    def read(cls, path: Path, operator: str | None = None) -> RosterFile:
        """Read a roster, and check its signature, its operator (if given) and its changes."""
        content = _read(path, "a roster")
        try:
            # Parsing with `json` first would need twice the memory on every device.
            found = cls.model_validate_json(content)
            signature = bytes.fromhex(found.signature)
            statement = _statement(found.number, found.digests[-1])
            verify(bytes.fromhex(found.operator), signature, statement, 0)
            _ = found._standing
        except BadSignature:
            raise UsageError(f"{path}: the operator's signature does not fit") from None
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None
        except (TypeError, ValueError):
            record = _parsed(path, content, "a roster")
            if isinstance(record, dict) and "roster" in record:
                raise UsageError(
                    f"{path}: a roster of an earlier version, without a history; the operator "
                    "makes a new one: privirec server new"
                ) from None
            raise UsageError(f"{path}: not a roster") from None
        if operator is not None and found.operator != operator:
            raise UsageError(
                f"{path}: signed by operator {found.operator[:16]}, where {operator[:16]} is "
                "trusted"
            )
        return found

    # --- differences ------------------------------------------------------------------------------

    def difference(self, since: int) -> RosterDifference:
        """Return the changes after the first `since` ones, as a server shows them to a client."""
        since = min(since, self.number)
        return RosterDifference(
            operator=self.operator,
            since=since,
            after=self.digests[since].hex(),
            changes=self.changes[since:],
            signature=self.signature,
        )

    def continued(self, shown: RosterDifference) -> RosterFile:
        """Return the roster that a server shows as the continuation of this one.

        Raise UsageError, in one line, if it goes back, leaves a gap, has another past, undoes a
        change, or is not signed by the operator.
        """
        if shown.operator != self.operator:
            raise UsageError(
                f"the server shows a roster of operator {shown.operator[:16]}, where "
                f"{self.operator[:16]} is trusted"
            )
        if not shown.is_signed:
            raise UsageError(
                f"the server shows a roster {shown.number} that the operator did not sign"
            )
        if shown.since > self.number:
            raise UsageError(
                f"the server shows the roster from change {shown.since + 1} on, and changes from "
                f"{self.number + 1} on are missing"
            )
        own = [digest.hex() for digest in self.digests[shown.since :]]
        shared = min(len(own), len(shown.changes) + 1)
        if own[:shared] != [shown.after, *(digest.hex() for digest in shown.chain)][:shared]:
            raise UsageError(
                f"the server shows a roster {shown.number} with another past than roster "
                f"{self.number}, which is in place: the operator signed both, and may show others "
                "another roster; ask the operator"
            )
        if shown.number < self.number:
            raise UsageError(
                f"the server shows roster {shown.number}, which is older than roster "
                f"{self.number}, which is in place; going back is refused"
            )
        new = shown.changes[self.number - shown.since :]
        return self._with(*new, signature=shown.signature)

    def check_continues(self, before: RosterFile) -> None:
        """Raise UsageError unless this roster begins with all changes of an earlier one."""
        if self.operator != before.operator:
            raise UsageError(
                f"a roster of operator {self.operator[:16]}, where {before.operator[:16]} is "
                "trusted"
            )
        if self.number < before.number and before.digests[self.number] == self.digests[-1]:
            raise UsageError(
                f"roster {self.number} is older than roster {before.number}, which is in place; "
                "going back to an older roster is refused"
            )
        if self.number < before.number or self.digests[before.number] != before.digests[-1]:
            raise UsageError(
                f"roster {self.number} has another past than roster {before.number}, which is in "
                "place: history was dropped, or others are shown another roster; ask the operator"
            )


class RosterDifference(BaseModel):
    """The end of a roster: changes, the digest before them, and the signature of the whole."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    operator: PublicKey
    since: int = Field(ge=0, lt=1 << 32)
    """Number of changes before those that are shown."""
    after: str = Field(pattern="^[0-9a-f]{64}$")
    """Digest of the roster before the changes that are shown."""
    changes: tuple[AnyChange, ...] = ()
    signature: Signature

    @classmethod
    def parse(cls, content: bytes) -> RosterDifference:
        """Parse JSON; raise UsageError if it is not a difference."""
        try:
            return cls.model_validate_json(content)
        except ValueError:
            raise UsageError("the server shows a roster that cannot be read") from None

    @property
    def number(self) -> int:
        return self.since + len(self.changes)

    @cached_property
    def chain(self) -> list[bytes]:
        """Digests of the roster after each change that is shown."""
        return _chained(bytes.fromhex(self.after), self.changes)

    @property
    def is_signed(self) -> bool:
        """True if the operator signed a roster that ends like this one.

        Two such rosters, of which neither continues the other, prove that the operator cheats.
        """
        end = self.chain[-1] if self.changes else bytes.fromhex(self.after)
        try:
            statement = _statement(self.number, end)
            verify(bytes.fromhex(self.operator), bytes.fromhex(self.signature), statement, 0)
        except BadSignature:
            return False
        return True


def _chained(digest: bytes, changes: Sequence[AnyChange]) -> list[bytes]:
    """Return the digest after each of these changes."""
    chain = []
    for change in changes:
        # `asdict` would copy immutable values, and there may be thousands of changes.
        content = {name: getattr(change, name) for name in change.__dataclass_fields__}
        digest = hashlib.sha256(digest + canonical(content)).digest()
        chain.append(digest)
    return chain


def _statement(number: int, end: bytes) -> bytes:
    """Return what the operator signs of a roster: the number of changes and the last digest."""
    return _SIGNED + number.to_bytes(8, "big") + end


def read_json(path: Path, kind: str) -> Any:
    """Return the content of a JSON file; raise UsageError if it is missing or not JSON."""
    return _parsed(path, _read(path, kind), kind)


def _read(path: Path, kind: str) -> bytes:
    try:
        return path.read_bytes().removeprefix(codecs.BOM_UTF8)  # some editors add it
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file ({kind})") from None


def _parsed(path: Path, content: bytes, kind: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise UsageError(f"{path}: not {kind}") from None
