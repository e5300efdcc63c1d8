"""What every aggregation protocol looks like from outside: steps, and bytes that nobody else reads.

A run adds up T vectors over one cohort. It is a sequence of *steps*; in each the server has a
message for every client that is still in, and every client answers. Which steps there are follows
from the protocol's `Schedule` and from T alone, so that a carrier can count them without reading a
byte of what it carries:

    set-up        once: keys, neighbours, secrets for the sums to come
    preparation   for each sum, before the vectors: secrets of this sum alone
    input         for each sum: the vectors, in blocks
    recovery      for each sum, after the vectors: what it takes to open the sum

Sessions own no socket and no clock: the carrier passes messages, decides when it has waited long
enough for a step, and then calls `advance`, or `open_blocks` where the step is the last of its sum.

    while session.step is not None:
        for client, message in session.outgoing(): ...          # carry it there
        ... session.receive(client, answer) ...                 # what comes back
        if session.step.opens_sum: use(session.open_blocks())
        else: session.advance()

A client hands every message that is not empty to `receive`, and in an input step calls `contribute`
after it. A new protocol is a package with two subclasses and a `Protocol`, named in `_PROTOCOLS`.
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
from privirec.secagg.keys import NOTHING_ASKED, Identity, Roster
from privirec.secagg.parameters import Parameters, ServerModel, Statement
from privirec.secagg.randomness import RandomBytes
from privirec.secagg.ring import VectorShape, Words
from privirec.secagg.sizes import SumBytesOf

DEFAULT_BLOCK_ENTRIES = 1 << 18


class Phase(Enum):
    """What a step is for."""

    SETUP = "set-up"
    PREPARATION = "preparation"
    INPUT = "input"
    RECOVERY = "recovery"


@dataclass(frozen=True)
class Step:
    """One exchange between the server and all clients that are still in."""

    phase: Phase
    name: str
    """What clients do in it, such as "share" or "unmask"; unique within a schedule."""
    sum_number: int
    """The sum it belongs to, from 1; 0 in the set-up."""
    opens_sum: bool
    """Whether the sum can be opened when this step is over."""


@dataclass(frozen=True)
class Schedule:
    """The exchanges of a protocol, by the names of what clients do in them."""

    setup: tuple[str, ...]
    preparation: tuple[str, ...] = ()
    recovery: tuple[str, ...] = ()
    first_recovery: tuple[str, ...] = ()
    """What comes before `recovery` in the first sum alone."""

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, in order; the vectors are sent in the one named "input"."""
        after = (*self.first_recovery, *self.recovery)
        return (*self.setup, *self.preparation, "input", *after)

    def steps(self, sums: int) -> tuple[Step, ...]:
        """Every step of a run over so many sums, in order."""
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
    """The one of a protocol's two schedules that a kind of server asks for."""
    if active_schedule is None or server == ServerModel.SEMI_HONEST:
        return schedule
    return active_schedule


class Guarantee(Enum):
    """What stands between the server and one client's vector."""

    CRYPTOGRAPHIC = "secure aggregation: the server learns the sum and nothing else"
    STATISTICAL = "noise only: the server sees every vector, blurred"
    NONE = "no protection: the server sees every vector"


@dataclass(frozen=True)
class Agreement:
    """What a client was promised about a run by other means, to be compared with what a protocol
    announces."""

    run: bytes
    statement: Statement
    shapes: tuple[VectorShape, ...]
    block_entries: int


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
    """Chance 2^-bits that the graph fails."""
    server: ServerModel = ServerModel.SEMI_HONEST
    """The least that the server must be taken for, by protocols to which it makes a difference."""
    proven_sums: bool = False
    """Accept sums whose bound is one on the sum: only where the application has a proof of it."""
    own_noise: float = 1 / (1 << 14)
    """Of protocols that blur: least deviation of the noise that stays in a sum when nobody drops
    out, in parts of the largest possible sum."""
    pair_noise: float = 1.0
    """Of protocols that blur: least deviation of the noise between two clients, in deviations of a
    client's own."""
    agreement: Agreement | None = None
    """What this client was promised: an announcement that differs is refused."""


@dataclass(frozen=True)
class ServerSettings:
    """How a server runs the protocol."""

    min_cohort: int = 3
    block_entries: int = DEFAULT_BLOCK_ENTRIES
    """Entries in one message of an upload; a multiple of 8."""
    run: bytes | None = None
    """The run's number, 16 bytes; drawn at random where none is given."""
    accumulator: Callable[[int, VectorShape], Words] | None = None
    """(sum, shape) -> zeros of shape.ring.dtype and shape.length, for example a memory map."""
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
    def contribute(
        self, sum_number: int, blocks: Iterable[NDArray[Any]], asked: bytes = NOTHING_ASKED
    ) -> Iterator[bytes]:
        """Messages that carry this client's integers for a sum, one block at a time.

        The blocks may have any sizes that add up to the announced length. The sum is spent when
        this is called, whether the messages are sent or not.

        `asked` is a digest, of 32 bytes, of all that the integers are an answer to. Protocols that
        hide vectors open a sum only if all its clients were asked for the same: a server that asks
        one for its history and all others for nothing gets no sum.
        """

    @property
    @abstractmethod
    def participants(self) -> frozenset[int]:
        """Clients that take part in the run, as the server has told; empty before it has."""

    @abstractmethod
    def check_summed(self, clients: frozenset[int]) -> None:
        """Raise unless these can be the clients in the sum that this session helps to open, or has
        opened last.

        A protocol may tell a client less than that; whatever it has told must fit.
        """

    @abstractmethod
    def dump(self) -> bytes:
        """All state, secrets included, so that another process can go on. Keep it safe.

        Store it before anything is sent that `receive` or `contribute` returned, and never restore
        an older one: two vectors under the masks of one sum give away their difference, two
        answers to one recovery both secrets of a client. From the call of `contribute` on, a stored
        client refuses a second vector; one stored before the last block was made takes no further
        part in the sum.
        """

    @abstractmethod
    def close(self) -> None:
        """Wipe all secrets and answer nothing more."""


class ServerSession(ABC):
    """The server in one run."""

    announcement: bytes
    """The message of the first step, the same for every client of the roster."""
    step: Step | None
    """The exchange that is under way; None when the run is done or aborted."""
    asked: bytes = NOTHING_ASKED
    """Digest of what the clients are asked for in the sum under way, as they compute it; to be set
    before the messages of its first step are asked for."""
    aborted: bool

    @abstractmethod
    def outgoing(self) -> Iterator[tuple[int, bytes]]:
        """(client, message) of this step, to be asked for once; empty where there is nothing to
        say, which happens only in an input step."""

    @abstractmethod
    def receive(self, client: int, message: bytes) -> None:
        """Take a message that the carrier got from `client`.

        A ProtocolError is about this message alone: the session is as it was before.
        """

    @abstractmethod
    def waiting_for(self) -> set[int]:
        """Clients whose answer in this step is still missing."""

    @abstractmethod
    def advance(self) -> None:
        """End this step with the clients that made it, and begin the next.

        Raises a ProtocolError, and aborts the run, when it cannot go on safely. Not for a step
        that `opens_sum`: call `open_blocks` there.
        """

    @abstractmethod
    def open_blocks(self) -> Iterator[Words]:
        """The sum, block by block, in the ring of the protocol's `opened_shape`; ends the step.

        Aborts where too few answers are there. The next sum begins with the call, not with the
        last block.
        """

    @abstractmethod
    def skip_sum(self, survivors: Iterable[int]) -> None:
        """After a restart: the sum under way, over these clients, is known; begin the next one."""

    def open_sum(self) -> Words:
        """The whole sum at once."""
        return np.concatenate(list(self.open_blocks()))

    @property
    @abstractmethod
    def parameters(self) -> Parameters:
        """Degree and threshold of the graph, known once the first step is over."""

    @property
    @abstractmethod
    def survivors(self) -> tuple[int, ...]:
        """Clients whose inputs are in the sum that was opened last or is being opened."""

    @property
    def deviation(self) -> float:
        """Standard deviation of an entry's error in the sum that was opened last; 0: exact."""
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
    """A protocol by name, with all it takes to run it."""

    name: str
    code: int
    """Its number in announcements."""
    guarantee: Guarantee
    schedule: Schedule
    parameters: Callable[[Statement], Parameters]
    client: ClientFactory
    load_client: ClientLoader
    server: ServerFactory
    sum_bytes: SumBytesOf
    """What a client sends and receives in each sum of a run in which everybody stays."""
    active_schedule: Schedule | None = None
    """The exchanges against an active server; None where its model makes no difference."""
    opened_shape: Callable[[VectorShape, Statement], VectorShape] = _as_announced
    """The ring in which an opened sum is to be read: wider and signed where noise stays in it."""
    deviation: Callable[[VectorShape, Statement], float] = _exact
    """Standard deviation of the error of an opened entry when as many clients drop out as may."""

    def schedule_for(self, statement: Statement) -> Schedule:
        """The exchanges of a run under this statement."""
        return schedule_against(statement.server, self.schedule, self.active_schedule)

    @property
    def is_exact(self) -> bool:
        """Whether an opened sum is the sum, to the last bit."""
        return self.deviation is _exact


_PROTOCOLS = {
    "secagg+": ("privirec.secagg.bell2020", "SECAGG_PLUS"),
    "secagg": ("privirec.secagg.bell2020", "SECAGG"),
    "lightsecagg": ("privirec.secagg.lightsecagg", "LIGHTSECAGG"),
    "none": ("privirec.secagg.plain", "NONE"),
    "correlated-noise": ("privirec.secagg.correlated", "CORRELATED_NOISE"),
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


def zeros(_sum_number: int, shape: VectorShape) -> Words:
    """The accumulator of a server that was given none."""
    return np.zeros(shape.length, shape.ring.dtype)
