"""A client's process: its node, made from its folder, and its `Connection`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from privirec.durable import alone, private_folder
from privirec.errors import PrivirecError, UsageError
from privirec.privacy.policy import Policy
from privirec.runtime.enrolment.delivery import Outcome, RosterDelivery
from privirec.runtime.enrolment.folders import ClientFolder
from privirec.runtime.envelope import Sealed
from privirec.runtime.https.connection import Connection, Unreachable, trusting
from privirec.runtime.logs import logged_to
from privirec.runtime.node import Node
from privirec.secagg.keys import Identity

log = logging.getLogger("privirec.client")

LOOK_AGAIN = 60.0
"""Seconds before a roster that was not installed is fetched again; its owner may have consented."""
_READ_ONCE = ("client.json", "roster.json", "policy.toml", "catalogue.txt", "identity.key")


class Answering:
    """The node of a client's folder, created again when one of its files changes."""

    def __init__(self, home: ClientFolder) -> None:
        self._home = home
        self._node: Node | None = None
        self._seen: tuple[int, ...] = ()
        self._tries_next = False

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
        """Return this client's identity and the server's key, as they are in the folder now.

        While new keys of this client wait for their roster, return the old and the new identity in
        turns: the server may know the new one already.
        """
        try:
            identity, server_key = self.node().keys
            self._tries_next = not self._tries_next
            waiting = self._home.next_identity if self._tries_next else None
            return waiting or identity, server_key
        except (PrivirecError, OSError) as error:
            log.error("cannot read keys: %s", error)
            raise Unreachable("this client's keys cannot be read; its log says why") from None

    def close(self) -> None:
        if self._node is not None:
            self._node.close()
            self._node = None


class Rosters:
    """Keeper of a client's roster: it tells the owner what it takes, and what it refuses."""

    def __init__(self, home: ClientFolder, tell: Callable[[str], None]) -> None:
        self._delivery = RosterDelivery(home)
        self._tell = tell
        self._told = ""
        self._asked = -1
        self._not_taken: tuple[int, float] = (-1, 0.0)
        """Number of a roster that was not installed, and the time at which to look again."""

    @property
    def number(self) -> int:
        return self._delivery.members.number

    def wants(self, number: int) -> bool:
        self._asked = number
        refused, until = self._not_taken
        return number != self.number and (number != refused or time.monotonic() >= until)

    def take(self, content: bytes) -> None:
        try:
            outcome, said = self._delivery.take(content)
        except UsageError as error:
            outcome, said = None, f"Refused: {error}"
        except (PrivirecError, OSError) as error:
            log.error("cannot take a roster: %s", error)
            raise Unreachable("this client cannot take a roster; its log says why") from None
        if outcome not in (Outcome.INSTALLED, Outcome.KNOWN):
            self._not_taken = self._asked, time.monotonic() + LOOK_AGAIN
        if said and said != self._told:
            self._told = said
            self._tell(said[0].upper() + said[1:])


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
            rosters=Rosters(home, tell),
        )
        try:
            connection.stay(tell)
        finally:
            connection.close()
            answering.close()
