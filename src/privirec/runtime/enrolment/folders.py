"""The folders of an operator and of a client: identities, roster, settings.

    operator's folder                          client's folder
      operator.key     signs rosters             identity.key    signs the client's messages
      operator.pub     public part of it         node.key        authenticates to Flower
      run.key          signs messages, models    next/           keys that wait for the roster
      roster.json      clients and their keys    roster.json     copy from the operator
      catalogue.txt    item ids, in order        catalogue.txt   copy from the operator
      invitations.db   clients that may enrol
      tls/             certificates              ca.crt          CA of the server's certificate
      runs/NAME/       one folder per run        policy.toml     what this client agrees to
      carrier          carrier that ran last     client.json     number, server, path of histories
                                                 runs/           memory, created on joining

A server needs everything but `operator.key`, which can be kept elsewhere. The operator signs the
roster, which names two keys: the operator's and the server's. A client trusts the operator's key in
its first roster. Compare the fingerprint of that key by telephone, not over the network.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from privirec.data.catalogue import Catalogue, read_catalogue
from privirec.durable import alone, check_folder, file_sha256, private_folder, sync, write_whole
from privirec.errors import FederationError, UsageError
from privirec.privacy.policy import Policy
from privirec.runtime.enrolment.cards import Card, Rotation
from privirec.runtime.enrolment.identities import (
    is_told,
    make_identity,
    make_node_key,
    read_identity,
    read_seed,
)
from privirec.runtime.enrolment.roster import RosterFile, read_json
from privirec.runtime.histories import FromFile, FromStore, HistorySource
from privirec.runtime.node import Node, calendar
from privirec.runtime.node.budget import Budget
from privirec.runtime.node.memory import FILE as MEMORY_FILE
from privirec.runtime.node.memory import Memory
from privirec.runtime.operator_log import note_all
from privirec.secagg.keys import Identity

WAITING = "waiting-roster.json"
"""Newer roster that waits for the owner's consent; see `delivery`."""
_HOST = r"(?!-)[^/?#@\s\x00-\x20]+"


def is_https(server: str) -> bool:
    """Return True if a server is reached by plain HTTPS, and False if by Flower."""
    return server.startswith("https://")


def check_address(server: str) -> None:
    """Raise UsageError if this is not the address of a server."""
    if server.startswith("http://"):
        raise UsageError(f"{server!r}: only https, so that nobody on the way reads or changes it")
    if is_https(server):
        if not re.fullmatch(rf"https://{_HOST}/?", server) or not _has_a_host(server):
            raise UsageError(f"{server!r} is not https://HOST or https://HOST:PORT")
    elif not re.fullmatch(rf"{_HOST}:[0-9]+", server) or not _has_a_host(f"//{server}"):
        raise UsageError(
            f"{server!r} is neither https://HOST:PORT nor HOST:PORT (of IPv6: [::1]:PORT)"
        )


def _has_a_host(server: str) -> bool:
    """Return True if an address has a valid host and no invalid port."""
    try:
        parts = urlsplit(server)
        return bool(parts.hostname and parts.hostname.encode("idna")) and parts.port != 0
    except ValueError:
        return False


class ClientSettings(BaseModel):
    """Settings in a client's folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    client: int
    operator: str = Field(pattern="^[0-9a-f]{64}$")
    server: str = ""
    """https://host[:port] of the server, or host:port of a server behind Flower."""
    histories: str = "history.db"
    """Store (.db) or file of interactions, relative to the folder."""


@dataclass(frozen=True)
class OperatorFolder:
    """The operator's folder."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> OperatorFolder:
        """Create an operator's folder with both keys; existing files are kept."""
        home = cls(folder)
        private_folder(folder)
        if not (folder / "operator.pub").exists():
            if not (folder / "operator.key").exists():
                make_identity(folder / "operator.key")
            public = read_identity(folder / "operator.key").public.hex()
            write_whole(folder / "operator.pub", public.encode() + b"\n")
        if not (folder / "roster.json").exists():
            make_identity(folder / "run.key")
            server = read_identity(folder / "run.key").public.hex()
            home.save(RosterFile(operator=home.operator).name_server(server))
        private_folder(folder / "runs")
        return home

    def check(self) -> None:
        """Raise UsageError unless this is an operator's folder."""
        _ = self.operator

    @property
    def operator(self) -> str:
        """Public key of the operator."""
        path = self.folder / "operator.pub"
        try:
            key = path.read_text(encoding="ascii").strip()
        except (FileNotFoundError, NotADirectoryError):
            check_folder(self.folder, "an operator", UsageError)
            raise UsageError(
                f"{path}: missing; make an operator's folder: privirec server new"
            ) from None
        except UnicodeDecodeError:
            key = ""
        if not re.fullmatch("[0-9a-f]{64}", key):
            raise UsageError(f"{path}: not a key")
        return key

    @property
    def server(self) -> Identity:
        """Identity of the server, which signs messages to clients."""
        return Identity(self._server_seed())

    @property
    def has_server_key(self) -> bool:
        """True if the key that the roster names as the server's is here."""
        try:
            return bool(self._server_seed())
        except UsageError:
            return False

    @property
    def signing_key(self) -> Ed25519PrivateKey:
        """Private key of the server in the form that signs models."""
        return Ed25519PrivateKey.from_private_bytes(self._server_seed())

    def _server_seed(self) -> bytes:
        path = self.folder / "run.key"
        seed = read_seed(path)
        if Identity(seed).public.hex() != self.members.server:
            raise UsageError(f"{path}: not the key that the roster names as the server's")
        return seed

    @property
    def members(self) -> RosterFile:
        return RosterFile.read(self.folder / "roster.json", self.operator)

    @property
    def catalogue(self) -> Catalogue:
        return read_catalogue(self.folder / "catalogue.txt")

    @property
    def has_operator_key(self) -> bool:
        """True if the key that signs rosters is here."""
        return (self.folder / "operator.key").exists()

    @property
    def authority(self) -> str:
        """SHA-256 of the certificates by which clients know the server, in hexadecimal."""
        path = self.folder / "tls" / "ca.crt"
        if not path.is_file():
            raise UsageError(f"{path}: missing; make one: privirec server certificates")
        return file_sha256(path)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock under which the roster changes; the server enrols clients under it too."""
        with alone(self.folder):
            yield

    def save(self, members: RosterFile, operator_key: Path | None = None) -> None:
        """Sign a changed roster and install it; the operator's key may be kept elsewhere."""
        self.install(self.signed(members, operator_key))

    def signed(self, members: RosterFile, operator_key: Path | None = None) -> RosterFile:
        return members.signed(read_identity(operator_key or self.folder / "operator.key"))

    def offered(self, path: Path) -> RosterFile:
        """Return a roster that was signed elsewhere, if it continues the present one."""
        return _continuing(path, self.operator, self.folder / "roster.json")

    def install(self, members: RosterFile) -> None:
        if members.operator != self.operator:
            raise UsageError(f"a roster of operator {members.operator[:16]}, not of this one")
        is_first = not (self.folder / "roster.json").exists()
        changes = members.since(None if is_first else self.members)
        members.write(self.folder / "roster.json")
        note_all(
            self.folder,
            [
                {"did": what, "roster": members.number, "key": key[:16]}
                | ({"client": member.client, "name": member.name} if member else {})
                for what, member, key in changes
            ],
        )

    def run(self, name: str) -> Path:
        if not name or not all(c.isalnum() or c in "-_." for c in name) or name[0] == ".":
            raise UsageError(f"{name!r} cannot be the name of a run: letters, digits, - _ .")
        return self.folder / "runs" / name


@dataclass(frozen=True)
class ClientFolder:
    """A client's folder."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> ClientFolder:
        """Create a client's folder with new keys; existing files are kept."""
        private_folder(folder)
        if not (folder / "identity.key").exists():
            make_identity(folder / "identity.key")
        if not (folder / "node.pub").exists():  # written after node.key
            make_node_key(folder)
        if not (folder / "policy.toml").exists():
            write_whole(folder / "policy.toml", Policy().as_toml().encode())
        return cls(folder)

    def check(self) -> None:
        """Raise UsageError unless the folder exists."""
        check_folder(self.folder, "a client", UsageError)

    @property
    def identity(self) -> Identity:
        self.check()
        return read_identity(self.folder / "identity.key")

    @property
    def settings(self) -> ClientSettings:
        if not self.has_joined:
            self.check()
            raise UsageError(
                f"{self.folder}: has not joined a federation; see: privirec client join LINK"
            )
        record = read_json(self.folder / "client.json", "a client's settings")
        try:
            return ClientSettings.model_validate(record)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise UsageError(f"{self.folder / 'client.json'}: {where}: {first['msg']}") from None

    def card(self, name: str) -> Card:
        """Return the card that the operator needs to approve this client; all of it is public."""
        return Card.make(name, self.identity, self.node_key)

    @property
    def node_key(self) -> str:
        """Public key with which this client authenticates to Flower."""
        return _node_key(self.folder)

    def rotate(self) -> Rotation:
        """Create new keys in `next/`, and return the rotation that the old key signed.

        The new keys wait there until a roster contains them.
        """
        settings = self.settings
        own = self.members.member(settings.client)
        waiting = private_folder(self.folder / "next")
        if not (waiting / "node.pub").exists():
            make_node_key(waiting)
        if not (waiting / "identity.key").exists():
            make_identity(waiting / "identity.key")
        new = read_identity(waiting / "identity.key")
        card = Card.make(own.name, new, _node_key(waiting))
        return Rotation.make(settings.operator, settings.client, self.identity, card)

    @property
    def members(self) -> RosterFile:
        """The roster that this client installed."""
        return RosterFile.read(self.folder / "roster.json", self.settings.operator)

    @property
    def has_joined(self) -> bool:
        return (self.folder / "client.json").exists()

    def offered(self, path: Path, *, operator: str | None = None) -> RosterFile:
        """Return a roster that this client may install.

        It must be signed by the client's operator and continue the present roster. `operator` is
        the operator's key, or its fingerprint, as the user was told it.
        """
        trusted = self.settings.operator if self.has_joined else None
        if trusted is not None and operator is not None and not is_told(trusted, operator):
            raise UsageError(
                f"this client trusts operator {trusted[:16]}, not {operator[:16]}; for another "
                "operator make another client: privirec client new"
            )
        found = _continuing(path, trusted, self.folder / "roster.json")
        if operator is not None and not is_told(found.operator, operator):
            raise UsageError(
                f"{path}: signed by operator {found.operator[:16]}, not by {operator[:16]}"
            )
        if not found.server:
            raise UsageError(f"{path}: names no server")
        self._number_in(found, path)
        return found

    def check_is_in(self, found: RosterFile) -> None:
        """Raise UsageError unless a roster approves a key of this client."""
        self._number_in(found, self.folder)

    def join(self, found: RosterFile, *, server: str = "") -> int:
        """Install a roster from `offered`, and return this client's number."""
        if server:
            check_address(server)
        number = self._number_in(found, self.folder)
        if found.member(number).key != self.identity.public.hex():
            self._use_next_keys()
        before = self.settings if self.has_joined else None
        record = ClientSettings(
            client=number,
            operator=found.operator,
            server=server or (before.server if before else ""),
            histories=before.histories if before else "history.db",
        )
        if before is None:
            # From now on, a folder without a memory has lost it.
            Memory(self.folder / "runs").close()
        found.write(self.folder / "roster.json")
        self.write(record)
        (self.folder / WAITING).unlink(missing_ok=True)
        return number

    @property
    def next_identity(self) -> Identity | None:
        """Identity that waits for a roster with it, if there is one."""
        path = self.folder / "next" / "identity.key"
        return read_identity(path) if path.exists() else None

    def _number_in(self, found: RosterFile, path: Path) -> int:
        mine = [self.identity.public.hex()]
        if waiting := self.next_identity:
            mine.append(waiting.public.hex())
        for member in found.members:
            if member.key in mine and not member.revoked:
                return member.client
        raise UsageError(f"{path}: key {mine[0][:16]} of this client is not approved there")

    def _use_next_keys(self) -> None:
        """Move the keys in `next/` into place, the identity last.

        After a crash in between, joining again with the same roster completes the move.
        """
        for name in ("node.key", "node.pub", "identity.key"):
            waiting = self.folder / "next" / name
            if waiting.exists():
                os.replace(waiting, self.folder / name)
        sync(self.folder)

    def write(self, settings: ClientSettings) -> None:
        write_whole(self.folder / "client.json", settings.model_dump_json(indent=2).encode())

    @property
    def histories_exist(self) -> bool:
        return (self.folder / self.settings.histories).exists()

    def histories(self) -> HistorySource:
        path = self.folder / self.settings.histories
        return FromStore(path) if path.suffix == ".db" else FromFile(path)

    def memory(self) -> Memory:
        """Return what this client remembers for its lifetime."""
        self._check_memory()
        return Memory(self.folder / "runs")

    def _check_memory(self) -> None:
        """Raise FederationError if the client's memory is gone.

        Nobody else knows which sums with noise this client was in, and a new record would claim
        that nothing was spent.
        """
        if not self._memory_file.exists():
            _ = self.settings  # refuses a client that has not joined
            raise FederationError(
                f"{self._memory_file}: gone, and with it what this client has spent. A backup "
                "would be too old; make a new client: privirec client new"
            )

    @property
    def _memory_file(self) -> Path:
        return self.folder / "runs" / MEMORY_FILE

    @property
    def is_new(self) -> bool:
        """True if this client was never in a federation."""
        return not self.has_joined and not self._memory_file.exists()

    def budget(self, memory: Memory) -> Budget:
        """Return this client's budget, which needs no approval, catalogue or histories."""
        keys: tuple[bytes, ...] = (self.identity.public,)
        server = b""
        if self.has_joined:
            found = self.members
            keys, server = found.keys_of(self.settings.client), bytes.fromhex(found.server)
        policy = Policy.load(self.folder / "policy.toml")
        return Budget(self.identity, keys, policy, memory, server, calendar.now)

    def node(self) -> Node:
        """Return the node that this folder belongs to."""
        settings = self.settings
        found = self.members
        self._check_memory()  # a node would create a new one
        return Node(
            self.folder,
            settings.client,
            self.identity,
            found.roster(),
            bytes.fromhex(found.server),
            read_catalogue(self.folder / "catalogue.txt"),
            self.histories(),
            Policy.load(self.folder / "policy.toml"),
            lineages=found.lineages(),
            own_keys=found.keys_of(settings.client),
        )


def _continuing(path: Path, operator: str | None, present: Path) -> RosterFile:
    """Return the roster at `path`, if it continues the one at `present` (if any)."""
    found = RosterFile.read(path, operator)
    if present.exists():
        found.check_continues(RosterFile.read(present, operator))
    return found


def _node_key(folder: Path) -> str:
    try:
        return (folder / "node.pub").read_text(encoding="ascii").strip()
    except FileNotFoundError:
        raise UsageError(f"{folder}: no client's folder; make one: privirec client new") from None
