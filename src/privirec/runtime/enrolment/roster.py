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
    check_rotation,
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


AnyChange = Annotated[ServerNamed | Approved | Revoked | Rotated, Field(discriminator="change")]


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
        self.members: dict[int, RosterEntry] = {}
        self._keys: dict[str, int] = {}
        """Client of every key that was ever in use; a key is never assigned again."""
        self._names: dict[str, int] = {}
        """Client of each name; revoked clients are not included."""

    def copy(self) -> _Standing:
        other = _Standing(self.operator)
        other.server, other.members = self.server, dict(self.members)
        other._keys, other._names = dict(self._keys), dict(self._names)
        return other

    def member(self, client: int) -> RosterEntry:
        if client not in self.members:
            raise UsageError(f"client {client} is not in the roster")
        return self.members[client]

    def take(self, change: AnyChange) -> RosterEntry | None:
        """Apply a change and return the client it concerns, if any; refuse an invalid change."""
        if isinstance(change, ServerNamed):
            self.server = change.key
            return None
        changed = self._approved(change) if isinstance(change, Approved) else self._changed(change)
        self.members[changed.client] = changed
        self._keys[changed.key] = changed.client
        if changed.revoked:
            self._names.pop(changed.name, None)
        else:
            self._names[changed.name] = changed.client
        return changed

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
        chain = [hashlib.sha256(_CHAIN + bytes.fromhex(self.operator)).digest()]
        for change in self.changes:
            # `asdict` would copy immutable values, and there may be thousands of changes.
            content = {name: getattr(change, name) for name in change.__dataclass_fields__}
            chain.append(hashlib.sha256(chain[-1] + canonical(content)).digest())
        return chain

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
    def members(self) -> tuple[RosterEntry, ...]:
        return tuple(self._standing.members.values())

    def member(self, client: int) -> RosterEntry:
        return self._standing.member(client)

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
        words = {"approve": "approved", "revoke": "revoked", "rotate": "new key"}
        found = []
        for change in self.changes[before.number if before else 0 :]:
            member = standing.take(change)
            what = words.get(change.change, "server's key")
            found.append((what, member, member.key if member else standing.server))
        return found

    # --- changes ----------------------------------------------------------------------------------

    def name_server(self, key: str) -> RosterFile:
        """Return a roster that names this key as the server's."""
        return self._with(ServerNamed(key=key))

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

    def _with(self, change: AnyChange) -> RosterFile:
        """Return a roster with one more change.

        Only the new change is checked; the others were checked when they were made or read.
        """
        standing = self._standing.copy()
        standing.take(change)
        changed = RosterFile(operator=self.operator, changes=(*self.changes, change))
        vars(changed)["_standing"] = standing
        return changed

    # --- signature and file -----------------------------------------------------------------------

    def signed(self, operator: Identity) -> RosterFile:
        if operator.public.hex() != self.operator:
            raise UsageError(
                f"this is the key of operator {operator.public.hex()[:16]}, and the roster is "
                f"{self.operator[:16]}'s"
            )
        signature = operator.sign(self._statement()).hex()
        return RosterFile(operator=self.operator, changes=self.changes, signature=signature)

    def _statement(self) -> bytes:
        return _SIGNED + self.number.to_bytes(8, "big") + self.digests[-1]

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
            verify(bytes.fromhex(found.operator), signature, found._statement(), 0)
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
