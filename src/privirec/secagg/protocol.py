"""What every aggregation protocol looks like from outside: bytes in, bytes out.

A run sums T vectors over one cohort. Sessions own no socket and no clock: the carrier passes
messages, decides when it has waited long enough for a stage, and then calls `advance`.

    server                                clients
    announcement                    ->    receive -> reply                  (set-up)
    receive ..., advance()          ->    receive -> reply or None          (set-up, repeated)
    for each round:
      receive ...                   <-    contribute(round, blocks)         (input)
      advance()                     ->    receive -> reply                  (unmask)
      open_sum()

A new protocol is a module with two subclasses and a `Protocol`, named in `_PROTOCOLS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from privirec.errors import UsageError
from privirec.secagg.keys import Identity, Roster
from privirec.secagg.parameters import Parameters, Statement
from privirec.secagg.randomness import RandomBytes
from privirec.secagg.ring import VectorShape, Words

DEFAULT_BLOCK_ENTRIES = 1 << 18


class Phase(Enum):
    """Where a server session stands."""

    SETUP = "set-up"
    INPUT = "input"
    UNMASK = "unmask"
    DONE = "done"
    ABORTED = "aborted"


@dataclass(frozen=True)
class ClientPolicy:
    """What a client insists on, whatever the server announces."""

    min_cohort: int = 3
    """Fewest clients whose inputs may be summed."""
    corrupt_share: float = 0.05
    """Least share of corrupt clients that the parameters must withstand."""
    dropped_share: float = 0.0
    """Least share of dropped clients under which the graph must stay connected."""
    max_dropped_share: float = 0.3
    """Largest announced share of dropped clients: the larger, the fewer shares open a secret."""
    security_bits: int = 40
    """Chance 2^-bits that the graph fails; for a server that can try many graphs, its work."""
    allow_split_views: bool = False
    """In the complete graph, accept a threshold at which a server that tells clients different
    stories collects both secrets of one of them."""
    proven_sums: bool = False
    """Accept rounds whose bound is one on the sum: only where the application has a proof of it."""
    allow_cohort_change: bool = False
    """Answer rounds whose survivors differ from the first round's. Their difference is then the
    sum over the clients that left: only for sums that reveal nothing when subtracted."""
    previous_participants: frozenset[int] | None = None
    """Clients in the sums of the last run over the same history, if there was one."""
    min_difference: int = 0
    """With previous participants: this run has the same ones, and nobody drops, or at least so many
    others, whoever drops. 0: not checked."""


@dataclass(frozen=True)
class ServerSettings:
    """How a server runs the protocol."""

    min_cohort: int = 3
    block_entries: int = DEFAULT_BLOCK_ENTRIES
    """Entries in one masked message; a multiple of 8."""
    allow_cohort_change: bool = False
    accumulator: Callable[[int, VectorShape], Words] | None = None
    """(round, shape) -> zeros of shape.ring.dtype and shape.length, for example a memory map."""
    spool: Callable[[], BinaryIO] | None = None
    """Where an upload of many messages waits until it is complete, so that a client may drop out in
    the middle of it. Without one, blocks are added as they come, and such a drop-out ends the
    run."""


class ClientSession(ABC):
    """One client in one run."""

    client: int

    @abstractmethod
    def receive(self, message: bytes) -> bytes | None:
        """Take a message of the server; the answer, if there is one, goes back to it.

        Raises a ProtocolError instead of answering. After one that is `fatal` the session is
        closed and its secrets are gone; after any other it is as it was before.
        """

    @abstractmethod
    def contribute(self, round_number: int, blocks: Iterable[NDArray[Any]]) -> Iterator[bytes]:
        """Messages that carry this client's integers for a round, one block at a time, masked
        by every protocol but `none`.

        The blocks may have any sizes that add up to the announced length. The round is spent when
        this is called, whether the messages are sent or not.
        """

    @abstractmethod
    def dump(self) -> bytes:
        """All state, secrets included, so that another process can go on. Keep it safe.

        Store it before anything is sent that `receive` or `contribute` returned, and never restore
        an older one: two vectors under the masks of one round give away their difference, two
        answers to one round both secrets of a client. From the call of `contribute` on, a stored
        client refuses a second vector; one stored before the last block was made takes no further
        part in the round.
        """

    @abstractmethod
    def close(self) -> None:
        """Wipe all secrets and answer nothing more."""


class ServerSession(ABC):
    """The server in one run."""

    announcement: bytes
    """First message, to every client of the roster."""
    phase: Phase
    round_number: int
    """Round that is being summed, from 1."""

    @abstractmethod
    def receive(self, client: int, message: bytes) -> None:
        """Take a message that the carrier got from `client`.

        A ProtocolError is about this message alone: the session is as it was before.
        """

    @abstractmethod
    def waiting_for(self) -> set[int]:
        """Clients whose message of this stage is still missing."""

    @abstractmethod
    def advance(self) -> Iterator[tuple[int, bytes]]:
        """End this stage with the clients that made it: (client, message) pairs to send.

        Raises a ProtocolError, and aborts the run, when it cannot go on safely.
        """

    @abstractmethod
    def open_blocks(self) -> Iterator[Words]:
        """The sum of the round, block by block, modulo 2^width. Aborts under the threshold."""

    @abstractmethod
    def open_sum(self) -> Words:
        """The sum of the round in the round's accumulator."""

    @property
    @abstractmethod
    def parameters(self) -> Parameters:
        """Degree and threshold of the graph, known once the clients have advertised."""

    @property
    @abstractmethod
    def survivors(self) -> tuple[int, ...]:
        """Clients whose inputs are in the sum that was opened last or is being opened."""


ClientFactory = Callable[[int, Identity, Roster, ClientPolicy, RandomBytes], ClientSession]
ServerFactory = Callable[
    [Roster, Statement, Sequence[VectorShape], ServerSettings, RandomBytes], ServerSession
]
ClientLoader = Callable[[bytes, Identity, Roster, ClientPolicy, RandomBytes], ClientSession]


@dataclass(frozen=True)
class Protocol:
    """A protocol by name, with all it takes to run it."""

    name: str
    code: int
    """Its number in announcements."""
    parameters: Callable[[Statement], Parameters]
    client: ClientFactory
    load_client: ClientLoader
    server: ServerFactory


_PROTOCOLS = {
    "secagg+": ("privirec.secagg.bell2020", "SECAGG_PLUS"),
    "secagg": ("privirec.secagg.bell2020", "SECAGG"),
    "none": ("privirec.secagg.plain", "NONE"),
}


def protocol_names() -> tuple[str, ...]:
    return tuple(_PROTOCOLS)


def protocol(name: str) -> Protocol:
    """The protocol of this name."""
    if name not in _PROTOCOLS:
        raise UsageError(
            f"unknown aggregation protocol {name!r}: choose from {', '.join(_PROTOCOLS)}"
        )
    module, attribute = _PROTOCOLS[name]
    found: Protocol = getattr(import_module(module), attribute)
    return found


def zeros(_round_number: int, shape: VectorShape) -> Words:
    """The accumulator of a server that was given none."""
    return np.zeros(shape.length, shape.ring.dtype)
