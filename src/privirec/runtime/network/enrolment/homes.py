"""The folders of an operator and of a client: identities, roster, settings.

    operator's folder                          client's folder
      operator.key     signs all it says         identity.key    signs all it says
      roster.json      who may take part         roster.json     the operator's, brought by hand
      catalogue.txt    item ids, in order        catalogue.txt   the same
      nodes/           Flower keys to register   node.key        Flower's own authentication
      tls/             certificates              ca.crt          whom to believe to be the server
      runs/NAME/       one folder for each run   policy.toml     what this client agrees to
                                                 client.json     number, server, where histories are

The roster is signed by the operator and names the operator's key. A client trusts the key that came
with its first roster: compare its fingerprint by telephone, not by the network.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from privirec.data.interactions import Interactions
from privirec.device.catalogue import Catalogue
from privirec.device.store import Store
from privirec.durable import private_folder, write_whole
from privirec.errors import UsageError
from privirec.privacy.policy import Policy
from privirec.runtime.network.histories import FromFile, FromStore, HistorySource, read_catalogue
from privirec.runtime.network.node import Node
from privirec.secagg.errors import BadSignature
from privirec.secagg.keys import KEY_BYTES, MAX_CLIENT_ID, Identity, Roster, verify

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
        signature = operator.sign(_SIGNED_ROSTER + _canonical(content)).hex()
        text = json.dumps({"roster": content, "signature": signature}, indent=2) + "\n"
        write_whole(path, text.encode())

    @classmethod
    def read(cls, path: Path, operator: str | None = None) -> RosterFile:
        """Read and check the signature, of this operator if one is named."""
        record = _read_json(path, "a roster")
        try:
            found = cls.model_validate(record["roster"])
            signature = bytes.fromhex(record["signature"])
            message = _SIGNED_ROSTER + _canonical(record["roster"])
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


class ClientSettings(BaseModel):
    """What a client's folder says about itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    client: int
    operator: str = Field(pattern="^[0-9a-f]{64}$")
    server: str = ""
    """host:port of the server."""
    histories: str = "history.db"
    """A store (.db) or a file of interactions, relative to the folder."""


@dataclass(frozen=True)
class ServerHome:
    """The operator's folder."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> ServerHome:
        """A new operator; an existing one is kept."""
        home = cls(folder)
        private_folder(folder)
        if not (folder / "operator.key").exists():
            make_identity(folder / "operator.key")
        if not (folder / "roster.json").exists():
            home.save(RosterFile(operator=home.operator.public.hex()))
        private_folder(folder / "nodes")
        private_folder(folder / "runs")
        return home

    def check(self) -> None:
        """Refuse a folder that is no operator's."""
        _ = self.operator

    @property
    def operator(self) -> Identity:
        return read_identity(self.folder / "operator.key")

    @property
    def signing_key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(_seed(self.folder / "operator.key"))

    @property
    def members(self) -> RosterFile:
        return RosterFile.read(self.folder / "roster.json", self.operator.public.hex())

    @property
    def catalogue(self) -> Catalogue:
        return read_catalogue(self.folder / "catalogue.txt")

    def save(self, members: RosterFile) -> None:
        members.write(self.folder / "roster.json", self.operator)

    def run(self, name: str) -> Path:
        if not name or not all(c.isalnum() or c in "-_." for c in name) or name[0] == ".":
            raise UsageError(f"{name!r} cannot be the name of a run: letters, digits, - _ .")
        return self.folder / "runs" / name


@dataclass(frozen=True)
class ClientHome:
    """A client's folder."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> ClientHome:
        """New keys; existing ones are kept."""
        private_folder(folder)
        if not (folder / "identity.key").exists():
            make_identity(folder / "identity.key")
        if not (folder / "node.key").exists():
            make_node_key(folder)
        if not (folder / "policy.toml").exists():
            write_whole(folder / "policy.toml", Policy().as_toml().encode())
        return cls(folder)

    @property
    def identity(self) -> Identity:
        return read_identity(self.folder / "identity.key")

    @property
    def settings(self) -> ClientSettings:
        if not (self.folder / "client.json").exists():
            raise UsageError(f"{self.folder}: has not joined a federation; see: privirec keys join")
        record = _read_json(self.folder / "client.json", "a client's settings")
        try:
            return ClientSettings.model_validate(record)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise UsageError(f"{self.folder / 'client.json'}: {where}: {first['msg']}") from None

    def card(self, name: str) -> dict[str, str]:
        """What the operator needs to approve this client; all of it public."""
        return {
            "name": name,
            "key": self.identity.public.hex(),
            "node": (self.folder / "node.pub").read_text(encoding="ascii").strip(),
        }

    def join(self, roster: Path, *, operator: str | None = None, server: str = "") -> int:
        """Take the operator's roster in; returns this client's number."""
        settings = self.folder / "client.json"
        trusted = self.settings.operator if settings.exists() else operator
        if operator is not None and len(operator) != 2 * KEY_BYTES:
            raise UsageError(f"an operator's key has {2 * KEY_BYTES} digits, not {len(operator)}")
        if operator is not None and operator != trusted:
            raise UsageError(
                f"this client trusts operator {str(trusted)[:16]}, not {operator[:16]}; for "
                "another operator make another client: privirec keys new"
            )
        if server and not re.fullmatch(r".+:\d+", server):
            raise UsageError(f"{server!r} is not HOST:PORT")
        found = RosterFile.read(roster, trusted)
        mine = self.identity.public
        numbers = [client for client, key in found.roster().items() if key == mine]
        if not numbers:
            raise UsageError(
                f"{roster}: key {mine.hex()[:16]} of this client is not approved there"
            )
        before = self.settings if settings.exists() else None
        record = ClientSettings(
            client=numbers[0],
            operator=found.operator,
            server=server or (before.server if before else ""),
            histories=before.histories if before else "history.db",
        )
        write_whole(self.folder / "roster.json", roster.read_bytes())
        self.write(record)
        return numbers[0]

    def write(self, settings: ClientSettings) -> None:
        write_whole(self.folder / "client.json", settings.model_dump_json(indent=2).encode())

    def histories(self) -> HistorySource:
        path = self.folder / self.settings.histories
        return FromStore(path) if path.suffix == ".db" else FromFile(path)

    def look(self, catalogue: Catalogue) -> tuple[Interactions, int]:
        """The histories as a run would see them, without beginning one, and how many interactions
        with items that the catalogue does not have are left out."""
        path = self.folder / self.settings.histories
        if path.suffix == ".db":
            with Store(path) as store:
                return store.interactions(catalogue)
        return FromFile(path).begin("", catalogue), 0

    def node(self) -> Node:
        """The client that lives in this folder."""
        settings = self.settings
        roster = RosterFile.read(self.folder / "roster.json", settings.operator)
        return Node(
            self.folder,
            settings.client,
            self.identity,
            roster.roster(),
            bytes.fromhex(settings.operator),
            read_catalogue(self.folder / "catalogue.txt"),
            self.histories(),
            Policy.load(self.folder / "policy.toml"),
        )


def make_identity(path: Path) -> None:
    """A new Ed25519 key in a file for its owner only."""
    write_whole(path, os.urandom(KEY_BYTES).hex().encode() + b"\n")


def read_identity(path: Path) -> Identity:
    return Identity(_seed(path))


def make_node_key(folder: Path) -> None:
    """The key with which Flower itself authenticates a node: `node.key` and `node.pub`."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_whole(folder / "node.key", private)
    write_whole(folder / "node.pub", public + b"\n")


def _seed(path: Path) -> bytes:
    try:
        if path.stat().st_mode & 0o077:
            raise UsageError(f"{path}: others may read this key; run: chmod 600 {path}")
        seed = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except FileNotFoundError:
        command = "operator" if path.name == "operator.key" else "new"
        raise UsageError(f"{path}: no key there; make one: privirec keys {command}") from None
    except (ValueError, UnicodeDecodeError):
        raise UsageError(f"{path}: not a key") from None
    if len(seed) != KEY_BYTES:
        raise UsageError(f"{path}: not a key")
    return seed


def _read_json(path: Path, kind: str) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file ({kind})") from None
    except ValueError:
        raise UsageError(f"{path}: not {kind}") from None


def _canonical(record: Any) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
