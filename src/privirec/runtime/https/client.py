"""A client's process: its node, made from its folder, and its `Connection`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from privirec.durable import alone, private_folder
from privirec.errors import PrivirecError
from privirec.privacy.policy import Policy
from privirec.runtime.enrolment.folders import ClientFolder
from privirec.runtime.envelope import Sealed
from privirec.runtime.https.connection import Connection, Unreachable, trusting
from privirec.runtime.logs import logged_to
from privirec.runtime.node import Node
from privirec.secagg.keys import Identity

log = logging.getLogger("privirec.client")

_READ_ONCE = ("client.json", "roster.json", "policy.toml", "catalogue.txt", "identity.key")


class Answering:
    """The node of a client's folder, created again when one of its files changes."""

    def __init__(self, home: ClientFolder) -> None:
        self._home = home
        self._node: Node | None = None
        self._seen: tuple[int, ...] = ()

    def answer(self, message: bytes) -> Sealed:
        try:
            node = self.node()
            answer = node.answer(message)
            node.rest()  # frees caches: no other client in this process shares them
            return answer
        except (PrivirecError, OSError) as error:
            log.error("cannot answer: %s", error)
            raise Unreachable("this client cannot answer; its log says why") from None

    def largest(self) -> int:
        """Return the largest message to accept, in bytes: the policy's limit for a whole run."""
        try:
            return Policy.load(self._home.folder / "policy.toml").most_bytes_down
        except (PrivirecError, OSError) as error:
            log.error("cannot take a message: %s", error)
            raise Unreachable("this client cannot answer; its log says why") from None

    def node(self) -> Node:
        seen = tuple(_changed_at(self._home.folder / name) for name in _READ_ONCE)
        if self._node is None or seen != self._seen:
            self.close()
            self._node, self._seen = self._home.node(), seen
        return self._node

    def keys(self) -> tuple[Identity, bytes]:
        """Return this client's identity and the server's key, as they are in the folder now."""
        try:
            return self.node().keys
        except (PrivirecError, OSError) as error:
            log.error("cannot read keys: %s", error)
            raise Unreachable("this client's keys cannot be read; its log says why") from None

    def close(self) -> None:
        if self._node is not None:
            self._node.close()
            self._node = None


def _changed_at(path: Path) -> int:
    """Return the time of a file's last change; 0 if it is missing, as policy.toml may be."""
    return path.stat().st_ctime_ns if path.exists() else 0


def stay(folder: Path, server: str, tell: Callable[[str], None]) -> None:
    """Stay connected and answer what the policy allows, until interrupted."""
    home = ClientFolder(folder)
    answering = Answering(home)
    client, keys = answering.node().client, answering.node().keys

    with (
        logged_to(folder / "client.log"),
        alone(private_folder(folder / "https"), wait=False),
    ):
        tell(f"Client {client} connects to {server}; what it does is in {folder / 'client.log'}")
        connection = Connection(
            server,
            client,
            *keys,
            trusting(folder / "ca.crt"),
            answering.answer,
            largest=answering.largest,
            keys=answering.keys,
        )
        try:
            connection.stay(tell)
        finally:
            connection.close()
            answering.close()
