"""The server's knowledge of each client: presence, answers and when to ask again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from privirec.runtime.pledges import SignedPledge
from privirec.runtime.spec import RunSpec

Address = Hashable
"""A carrier's name for the other end of a connection; not trusted."""

MOST_COMPLAINTS, MOST_ADDRESSES = 100, 100_000
"""Maximum log lines about bad messages per address, and maximum number of addresses counted."""
LONGEST_WAIT = 5.0
"""Maximum seconds between two readings of the clock that count as waiting."""


class ClientState(StrEnum):
    """State of a client, in the words that users see."""

    NOT_HERE = "not here"
    REFUSES = "refuses"
    """Refused to begin for now; the server asks again."""
    HERE = "here"
    WAITING = "waiting"
    """Owes the server an answer."""
    ANSWERED = "answered"
    DROPPED = "dropped"
    REFUSED = "refused"
    """Refused for good."""
    RECEIVING = "receiving"
    INSTALLED = "installed"
    TOLD = "told"
    """Informed that the run is over."""

    @property
    def is_missing(self) -> bool:
        """True if a client in this state is not in the sums."""
        return self in _MISSING


_MISSING = {
    ClientState.NOT_HERE,
    ClientState.REFUSES,
    ClientState.DROPPED,
    ClientState.REFUSED,
}


@dataclass
class RemoteClient:
    """One client of the roster, as the server sees it."""

    state: ClientState = ClientState.NOT_HERE
    address: Address | None = None
    users: int = 0
    pledge: SignedPledge | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    last_refusal: str = ""
    over_budget: bool = False
    """True if its last refusal was for its privacy budget."""
    room: float | None = None
    """Level of a run that it could still pay for, if it said so."""
    returns: str = ""
    """Day from which it could pay for this run, if it said so."""
    gone: str = ""
    """Reason why it takes no further part; empty if it does."""
    sent_at: float | None = None
    retry_at: float | None = None
    received: int = 0
    """Bytes of the artifact that it has received."""

    def ask_at_once(self) -> None:
        """Make the next message to this client due immediately."""
        self.sent_at = self.retry_at = None

    def is_due(self, now: float, spec: RunSpec) -> bool:
        if self.sent_at is None:
            return True
        if self.retry_at is not None:
            return now >= self.retry_at
        return now - self.sent_at >= spec.silence

    def as_row(self) -> dict[str, Any]:
        return {
            "state": self.state.value,
            "users": self.users,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "why": self.gone or self.last_refusal,
        }


class Patience:
    """Seconds that the server has spent waiting; clock jumps and computing time hardly count."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock()
        self._elapsed = 0.0

    def now(self) -> float:
        now = self._clock()
        self._elapsed += min(max(now - self._last, 0.0), LONGEST_WAIT)
        self._last = now
        return self._elapsed


class Directory:
    """Addresses of the clients, and connected addresses that have not been identified yet."""

    def __init__(self, roster: Iterable[int], spec: RunSpec, patience: Patience) -> None:
        self.clients = {client: RemoteClient() for client in roster}
        self._strangers: dict[Address, float | None] = {}
        self._complaints: dict[Address, int] = {}
        self._spec = spec
        self._patience = patience

    def connected(self, addresses: Iterable[Address]) -> None:
        """Update the set of connected addresses; unknown ones are asked to identify themselves."""
        addresses = set(addresses)
        for client in self.clients.values():
            if client.address is not None and client.address not in addresses:
                client.address = None  # it may return under another address
        bound = {client.address for client in self.clients.values()}
        for address in addresses - bound - self._strangers.keys():
            self._strangers[address] = None
        for address in set(self._strangers) - addresses:
            del self._strangers[address]

    def strangers_to_greet(self) -> Iterator[Address]:
        """Yield unidentified addresses that are due for a greeting."""
        now = self._patience.now()
        for address, sent in self._strangers.items():
            if sent is None or now - sent > self._spec.silence:
                self._strangers[address] = now
                yield address

    def is_stranger(self, address: Address) -> bool:
        return address in self._strangers

    def may_complain(self, address: Address) -> bool:
        """Return True if a bad message from this address may be logged.

        The limit keeps an address that sends junk from filling the disk.
        """
        if len(self._complaints) < MOST_ADDRESSES:
            self._complaints[address] = self._complaints.get(address, 0) + 1
        return self._complaints.get(address, MOST_COMPLAINTS + 1) <= MOST_COMPLAINTS

    def leave_alone(self, address: Address) -> None:
        """Send no greeting to this address for a while."""
        self._strangers[address] = self._patience.now()

    def bind(self, client: RemoteClient, address: Address) -> None:
        """Record that this client is at this address."""
        if client.address is None:
            client.ask_at_once()  # it is back: send the message it missed
        client.address = address
        self._strangers.pop(address, None)

    def failed(self, address: Address) -> None:
        """Schedule a retry, because a message to this address was not answered."""
        now = self._patience.now()
        if address in self._strangers:
            self._strangers[address] = now - self._spec.silence + self._spec.retry
        for client in self.clients.values():
            if client.address == address and client.sent_at is not None:
                client.retry_at = now + self._spec.retry

    def begin_wait(self, in_run: set[int] | None) -> None:
        """Begin to wait for every client; mark clients that are no longer in the run as dropped."""
        for number, client in self.clients.items():
            client.ask_at_once()
            if client.state in (ClientState.ANSWERED, ClientState.HERE):
                client.state = ClientState.WAITING
            out = in_run is not None and number not in in_run
            if out and client.state is ClientState.WAITING:
                client.state = ClientState.DROPPED
