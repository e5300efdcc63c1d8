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

import re
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from privirec.data.catalogue import Catalogue, read_catalogue
from privirec.durable import private_folder, write_whole
from privirec.errors import UsageError
from privirec.privacy.policy import Policy
from privirec.runtime.network.enrolment.identities import (
    make_identity,
    make_node_key,
    read_identity,
    read_seed,
)
from privirec.runtime.network.enrolment.roster import RosterFile, read_json
from privirec.runtime.network.histories import FromFile, FromStore, HistorySource
from privirec.runtime.network.node import Node
from privirec.secagg.keys import KEY_BYTES, Identity


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
class OperatorFolder:
    """The operator's folder."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> OperatorFolder:
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
        return Ed25519PrivateKey.from_private_bytes(read_seed(self.folder / "operator.key"))

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
class ClientFolder:
    """A client's folder."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> ClientFolder:
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
        record = read_json(self.folder / "client.json", "a client's settings")
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
