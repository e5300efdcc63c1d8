"""Common interface of all aggregation protocols: sessions, steps and opaque messages.

A run sums T vectors over one cohort. It is a sequence of *steps*. In each step, the server has a
message for every remaining client, and every client answers. The steps follow from the protocol's
`Schedule` and T alone, so that a carrier can count them without parsing any message:

    set-up        once: keys, neighbours, secrets for all sums
    preparation   for each sum, before the vectors: secrets of this sum alone
    input         for each sum: the vectors
    recovery      for each sum, after the vectors: shares or pieces that open the sum

Sessions have no socket and no clock. The carrier transports messages, decides how long to wait for
a step, and then calls `advance`, or `open_blocks` if the step is the last of its sum.

    while session.step is not None:
        for client, message in session.outgoing(): ...          # deliver to the client
        ... session.receive(client, answer) ...                 # pass on each answer
        ... session.add_vector(client, number, vector) ...      # in an input step
        if session.step.opens_sum: use(session.open_blocks())
        else: session.advance()

A client passes every non-empty message to `receive`, and in an input step then calls `contribute`.
To add a protocol, write a package with two subclasses and a `Protocol`, and name it in an entry
point (`registry`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from privirec.secagg.keys import LABEL, NOTHING_ASKED, Identity, RandomBytes, Roster
from privirec.secagg.messages import ProtocolMessage
from privirec.secagg.parameters import Parameters, ServerModel, Statement
from privirec.secagg.ring import VectorShape, Words
from privirec.secagg.sizes import SumBytesOf

DEFAULT_BLOCK_ENTRIES = 1 << 18


class Phase(Enum):
    """Purpose of a step."""

    SETUP = "set-up"
    PREPARATION = "preparation"
    INPUT = "input"
    RECOVERY = "recovery"


@dataclass(frozen=True)
class Step:
    """One exchange between the server and all remaining clients."""

    phase: Phase
    name: str
    """Action of the clients, such as "share" or "unmask"; unique within a schedule."""
    sum_number: int
    """Number of the sum, from 1; 0 in the set-up."""
    opens_sum: bool
    """True if the sum can be opened when this step ends."""


@dataclass(frozen=True)
class Schedule:
    """Steps of a protocol, named by the action of the clients."""

    setup: tuple[str, ...]
    preparation: tuple[str, ...] = ()
    recovery: tuple[str, ...] = ()
    first_recovery: tuple[str, ...] = ()
    """Steps before `recovery` in the first sum only."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all steps in order; clients send their vectors in the step "input"."""
        after = (*self.first_recovery, *self.recovery)
        return (*self.setup, *self.preparation, "input", *after)

    def steps(self, sums: int) -> tuple[Step, ...]:
        """Return all steps of a run over `sums` sums, in order."""
        found = [Step(Phase.SETUP, name, 0, opens_sum=False) for name in self.setup]
        for number in range(1, sums + 1):
            found += [Step(Phase.PREPARATION, name, number, False) for name in self.preparation]
            after = (*(self.first_recovery if number == 1 else ()), *self.recovery)
            found.append(Step(Phase.INPUT, "input", number, opens_sum=not after))
            found += [
                Step(Phase.RECOVERY, name, number, opens_sum=name == after[-1]) for name in after
            ]
        return tuple(found)


def schedule_against(
    server: ServerModel, schedule: Schedule, active_schedule: Schedule | None
) -> Schedule:
    """Return the one of a protocol's two schedules that applies to this server model."""
    if active_schedule is None or server == ServerModel.SEMI_HONEST:
        return schedule
    return active_schedule


@dataclass(frozen=True)
class MessageOrder:
    """Message types of a protocol and their order."""

    name: str
    code: int
    """Number of the protocol in announcements and in stored clients."""
    version: int
    """Version of the protocol in messages, derived keys and stored clients."""
    schedule: Schedule
    decode: Callable[[bytes], ProtocolMessage]
    told: tuple[type[ProtocolMessage], ...]
    """Messages from the server to a client in order of arrival, the announcement first."""
    answers: Mapping[type[ProtocolMessage], str]
    """Type of a client's answer -> step it belongs to; vectors have no type."""
    active_schedule: Schedule | None = None
    """Schedule against an active server; see `Protocol`."""

    @property
    def label(self) -> bytes:
        """Prefix of derived keys: the protocol and its version."""
        return LABEL + bytes([self.code, self.version])

    def schedule_for(self, statement: Statement) -> Schedule:
        """Return the schedule of a run under this statement."""
        return schedule_against(statement.server, self.schedule, self.active_schedule)


class Guarantee(Enum):
    """Protection of a client's vector from the server."""

    CRYPTOGRAPHIC = "secure aggregation: the server learns the sum and nothing else"
    STATISTICAL = "noise only: the server sees every vector, blurred"
    NONE = "no protection: the server sees every vector"


@dataclass(frozen=True)
class Agreement:
    """Terms of a run that a client agreed on beforehand; the announcement must match them."""

    run: bytes
    statement: Statement
    shapes: tuple[VectorShape, ...]
    block_entries: int


@dataclass(frozen=True)
class ClientPolicy:
    """Minimum requirements of a client, independent of the server's announcement."""

    min_cohort: int = 3
    """Minimum number of clients in a sum."""
    corrupt_share: float = 0.05
    """Minimum share of corrupt clients that the parameters must withstand."""
    dropped_share: float = 0.0
    """Minimum share of dropped clients for which the graph must stay connected."""
    max_dropped_share: float = 0.3
    """Maximum announced share of dropped clients.

    The larger this share, the fewer secret shares suffice to open a secret.
    """
    security_bits: int = 40
    """The graph may fail with probability at most 2^-security_bits."""
    server: ServerModel = ServerModel.SEMI_HONEST
    """Weakest server model that a client accepts, in protocols that distinguish models."""
    proven_sums: bool = False
    """If true, accept shapes whose bound applies to the sum itself (`VectorShape.bounds_sum`).

    Set it only if the application has a proof of the bound.
    """
    own_noise: float = 1 / (1 << 14)
    """Minimum standard deviation of the noise that remains in a sum if no client drops out.

    It is a fraction of the largest possible sum. It applies to protocols that add noise.
    """
    pair_noise: float = 1.0
    """Minimum standard deviation of pairwise noise, relative to that of a client's own noise.

    It applies to protocols that add noise.
    """
    agreement: Agreement | None = None
    """Terms agreed on beforehand; the client refuses an announcement that differs from them."""


@dataclass(frozen=True)
class ServerSettings:
    """Settings of a server for one run."""

    min_cohort: int = 3
    block_entries: int = DEFAULT_BLOCK_ENTRIES
    """Number of entries that are masked or added at a time; a multiple of 8."""
    run: bytes | None = None
    """Run id of 16 bytes (default: random)."""
    accumulator: Callable[[int, VectorShape], Words] | None = None
    """(sum, shape) -> zeros of shape.ring.dtype and shape.length, for example a memory map."""
    spool: Callable[[], BinaryIO] | None = None
    """Factory of temporary files for content that the server keeps for other clients.

    Without one, it is kept in memory.
    """


class ClientSession(ABC):
    """One client in one run."""

    client: int

    @abstractmethod
    def receive(self, message: bytes) -> bytes | None:
        """Process a message from the server and return the answer, if any.

        Raise a ProtocolError instead of answering. If it is `fatal`, the session is closed and its
        secrets are wiped; otherwise the session is unchanged.
        """

    @abstractmethod
    def contribute(
        self,
        sum_number: int,
        blocks: Iterable[NDArray[Any]],
        asked: bytes = NOTHING_ASKED,
        length: int | None = None,
    ) -> Iterator[bytes]:
        """Return an iterator over the packed blocks of this client's masked vector for a sum.

        Joined, they are the vector that `ServerSession.add_vector` takes, of `vector_bytes` bytes.
        The blocks of `blocks` may have any sizes that add up to `length`, by default the announced
        one, which is also the largest. The call itself uses up the masks of the sum, even if
        nothing is ever sent.

        `asked` is a 32-byte digest of the question that the integers answer, the length included.
        Protocols that hide vectors open a sum only if all its clients have the same digest. A
        server that asks one client for its history and all others for nothing gets no sum.
        """

    @abstractmethod
    def vector_bytes(self, sum_number: int, length: int | None = None) -> int:
        """Return the size of this client's packed vector for a sum."""

    @property
    @abstractmethod
    def participants(self) -> frozenset[int]:
        """Participants of the run according to the server; empty until the server names them."""

    @abstractmethod
    def check_summed(self, clients: frozenset[int]) -> None:
        """Raise a ProtocolError unless these can be the clients in the current or last sum.

        A protocol may tell a client only a part of the list; `clients` must match that part.
        """

    @abstractmethod
    def dump(self) -> bytes:
        """Return the whole state, including secrets, so that another process can resume.

        Keep it safe. Store it before you send anything that `receive` or `contribute` returned, and
        never restore an older state. Two vectors under the masks of one sum reveal their
        difference, and two answers to one recovery step reveal both secrets of a client. Once
        `contribute` was called, a restored client refuses a second vector. A client that was stored
        before its last block was made takes no further part in the sum.
        """

    @abstractmethod
    def close(self) -> None:
        """Wipe all secrets and refuse all further messages."""


class ServerSession(ABC):
    """The server in one run."""

    announcement: bytes
    """Message of the first step, identical for every client of the roster."""
    step: Step | None
    """Current step; None when the run is done or aborted."""
    asked: bytes
    """Digest of what the clients are asked for in the current sum, as they compute it."""
    aborted: bool

    @abstractmethod
    def ask(self, asked: bytes, length: int | None = None) -> None:
        """State what the clients are asked for in the current sum, before its first step.

        `asked` is the digest that they compute. `length` is that of the sum; by default it is the
        announced one, which is also the largest.
        """

    @abstractmethod
    def outgoing(self) -> Iterator[tuple[int, bytes]]:
        """Return an iterator over (client, message) of this step; call it once per step.

        Messages are empty only in input steps, if the server has nothing to send.
        """

    @abstractmethod
    def receive(self, client: int, message: bytes) -> None:
        """Process a message that the carrier received from `client`.

        A ProtocolError concerns this message only and leaves the session unchanged.
        """

    @abstractmethod
    def add_vector(self, client: int, sum_number: int, packed: bytes | memoryview) -> None:
        """Add the packed vector of `client` to the sum.

        The carrier must know that this client made it for this sum of this run. A ProtocolError
        concerns this vector only and leaves the session unchanged.
        """

    @abstractmethod
    def waiting_for(self) -> set[int]:
        """Return the clients that have not yet answered in this step."""

    @abstractmethod
    def advance(self) -> None:
        """End this step with the clients that completed it, and begin the next.

        If the run cannot continue safely, abort it and raise a ProtocolError. For a step that
        `opens_sum`, call `open_blocks` instead.
        """

    @abstractmethod
    def open_blocks(self) -> Iterator[Words]:
        """End the step and return the sum in blocks, in the ring of the `opened_shape`.

        Abort the run if too few clients have answered. The next sum begins with this call, not with
        the last block.
        """

    @abstractmethod
    def skip_sum(self, survivors: Iterable[int]) -> None:
        """Skip the current sum after a restart, if its result over `survivors` is already known."""

    def open_sum(self) -> Words:
        """Return the whole sum at once."""
        return np.concatenate(list(self.open_blocks()))

    @property
    @abstractmethod
    def parameters(self) -> Parameters:
        """Degree and threshold of the graph; known when the first step has ended."""

    @property
    @abstractmethod
    def survivors(self) -> tuple[int, ...]:
        """Clients whose vectors are in the last opened sum or the sum that is being opened."""

    @property
    def deviation(self) -> float:
        """Standard deviation of an entry's error in the last opened sum; 0 if exact."""
        return 0.0


ClientFactory = Callable[[int, Identity, Roster, ClientPolicy, RandomBytes], ClientSession]
ServerFactory = Callable[
    [Roster, Statement, Sequence[VectorShape], ServerSettings, RandomBytes], ServerSession
]
ClientLoader = Callable[[bytes, Identity, Roster, ClientPolicy, RandomBytes], ClientSession]


def _as_announced(shape: VectorShape, _statement: Statement) -> VectorShape:
    return shape


def _exact(_shape: VectorShape, _statement: Statement) -> float:
    return 0.0


@dataclass(frozen=True)
class Protocol:
    """Definition of a protocol: name, schedule, sessions and costs."""

    name: str
    code: int
    """Number of the protocol in announcements."""
    guarantee: Guarantee
    schedule: Schedule
    parameters: Callable[[Statement], Parameters]
    client: ClientFactory
    load_client: ClientLoader
    server: ServerFactory
    sum_bytes: SumBytesOf
    """Function that returns a client's bytes in each sum if no client drops out."""
    active_schedule: Schedule | None = None
    """Schedule against an active server; None if the server model makes no difference."""
    opened_shape: Callable[[VectorShape, Statement], VectorShape] = _as_announced
    """Function that returns the shape of an opened sum; wider and signed if noise remains in it."""
    deviation: Callable[[VectorShape, Statement], float] = _exact
    """Function that returns the standard deviation of an opened entry's error.

    It assumes that as many clients drop out as the statement allows.
    """

    def schedule_for(self, statement: Statement) -> Schedule:
        """Return the schedule of a run under this statement."""
        return schedule_against(statement.server, self.schedule, self.active_schedule)

    @property
    def is_exact(self) -> bool:
        """True if an opened sum is exact."""
        return self.deviation is _exact


def zeros(_sum_number: int, shape: VectorShape) -> Words:
    """Return the default accumulator."""
    return np.zeros(shape.length, shape.ring.dtype)
