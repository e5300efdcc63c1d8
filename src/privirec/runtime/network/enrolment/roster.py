"""The roster: who may take part, as the operator says, under the operator's signature."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from privirec.codec import canonical
from privirec.durable import write_whole
from privirec.errors import UsageError
from privirec.secagg.errors import BadSignature
from privirec.secagg.keys import MAX_CLIENT_ID, Identity, Roster, verify

_SIGNED_ROSTER = b"privirec-roster-1"


class Member(BaseModel):
    """One line of the roster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    client: int = Field(ge=0, le=MAX_CLIENT_ID)
    name: str = Field(min_length=1, max_length=100)
    key: str = Field(pattern="^[0-9a-f]{64}$")
    """Ed25519 public key."""
    revoked: bool = False


class RosterFile(BaseModel):
    """Who may take part, as the operator says; revoked ones stay listed, so numbers stay theirs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = 1
    operator: str = Field(pattern="^[0-9a-f]{64}$")
    members: tuple[Member, ...] = ()

    def roster(self) -> Roster:
        """Those who may take part now."""
        return Roster({m.client: bytes.fromhex(m.key) for m in self.members if not m.revoked})

    def approve(self, name: str, key: str) -> RosterFile:
        """With one more client, under the next free number."""
        for member in self.members:
            if member.key == key:
                state = "revoked" if member.revoked else "in the roster"
                raise UsageError(f"key {key[:16]} is {state} already, as client {member.client}")
            if member.name == name and not member.revoked:
                raise UsageError(f"client {member.client} has the name {name!r} already")
        number = max((member.client for member in self.members), default=-1) + 1
        added = Member(client=number, name=name, key=key)
        return self.model_copy(update={"members": (*self.members, added)})

    def revoke(self, client: int) -> RosterFile:
        """Without this client from now on."""
        self.member(client)
        members = tuple(
            member.model_copy(update={"revoked": True}) if member.client == client else member
            for member in self.members
        )
        return self.model_copy(update={"members": members})

    def rotate(self, client: int, key: str) -> RosterFile:
        """A client's new key in place of its old one."""
        if any(member.key == key for member in self.members):
            raise UsageError(f"key {key[:16]} has been in the roster before")
        if self.member(client).revoked:
            raise UsageError(f"client {client} is revoked")
        members = tuple(
            member.model_copy(update={"key": key}) if member.client == client else member
            for member in self.members
        )
        return self.model_copy(update={"members": members})

    def member(self, client: int) -> Member:
        for member in self.members:
            if member.client == client:
                return member
        raise UsageError(f"client {client} is not in the roster")

    def write(self, path: Path, operator: Identity) -> None:
        """Sign and write."""
        content = self.model_dump(mode="json")
        signature = operator.sign(_SIGNED_ROSTER + canonical(content)).hex()
        text = json.dumps({"roster": content, "signature": signature}, indent=2) + "\n"
        write_whole(path, text.encode())

    @classmethod
    def read(cls, path: Path, operator: str | None = None) -> RosterFile:
        """Read and check the signature, of this operator if one is named."""
        record = read_json(path, "a roster")
        try:
            found = cls.model_validate(record["roster"])
            signature = bytes.fromhex(record["signature"])
            message = _SIGNED_ROSTER + canonical(record["roster"])
            verify(bytes.fromhex(found.operator), signature, message, 0)
        except BadSignature:
            raise UsageError(f"{path}: the operator's signature does not fit") from None
        except (KeyError, TypeError, ValueError, ValidationError):
            raise UsageError(f"{path}: not a roster") from None
        if operator is not None and found.operator != operator:
            raise UsageError(
                f"{path}: signed by operator {found.operator[:16]}, where {operator[:16]} is "
                "trusted"
            )
        return found


def read_json(path: Path, kind: str) -> Any:
    """A file that must be there and be JSON."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file ({kind})") from None
    except ValueError:
        raise UsageError(f"{path}: not {kind}") from None
