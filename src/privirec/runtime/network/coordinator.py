"""The server of a federation, free of transport: it says what to send to whom and takes replies.

Every change of its state is an event in a journal, on the disk before anything follows from it, and
a restarted server applies the journal again. Vectors are not kept: clients send the same bytes
again. Which clients are in a sum is written down before anybody is asked to open it, so a
round is never opened with two different sets of clients.

    FOLDER/journal        events
    FOLDER/sums/N         opened sums: under secure aggregation, all that this server ever learns
    FOLDER/status.json    where the run stands, for people

A client that is missing before the first sum is opened drops out of the run. One that is missing
later ends it: the difference of two sums would be its history.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from privirec.device.catalogue import Catalogue
from privirec.durable import Journal, private_folder, sync, write_whole
from privirec.errors import FederationError, PrivirecError, UsageError
from privirec.federated import wire
from privirec.federated.contributions import Contribution
from privirec.federated.programs import Broadcast, Program, program
from privirec.filters.components import Components
from privirec.privacy.ledger import Ledger
from privirec.runtime.network import envelope
from privirec.runtime.network.envelope import EVERYBODY, BadEnvelope, Envelope
from privirec.runtime.network.run_plan import MOST_USERS, RunPlan, RunTerms
from privirec.secagg import ProtocolError, ServerSession, protocol
from privirec.secagg.errors import ReplayedMessage
from privirec.secagg.keys import Identity, Roster
from privirec.secagg.participants import write_participants
from privirec.secagg.protocol import ServerSettings
from privirec.secagg.randomness import RandomBytes
from privirec.secagg.ring import VectorShape, Words
from privirec.version import __version__

log = logging.getLogger("privirec.server")

Address = Hashable
"""How a carrier names the other end of a line; not trusted with anything."""

ON_DISK = 1 << 28
"""Bytes of a sum from which on it is kept in a file while it is added up."""

LONGEST_WAIT = 5.0
"""Seconds between two looks at the clock that count as waiting."""


class Stage(Enum):
    """What the server waits for."""

    HELLO = "gathering clients"
    ADVERTISE = "exchanging keys"
    SHARES = "sharing secrets"
    INPUT = "vectors"
    UNMASK = "opening the sum"
    COMPUTED = "computed"
    ARTIFACT = "handing out the model"
    DONE = "done"
    ABORTED = "stopped"


class Deadlines(BaseModel):
    """How long a stage may take, in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hello: float = Field(120.0, gt=0)
    setup: float = Field(300.0, gt=0)
    input: float = Field(1800.0, gt=0)
    unmask: float = Field(600.0, gt=0)
    artifact: float = Field(900.0, gt=0)
    silence: float = Field(300.0, gt=0)
    """After so long without an answer the same message is sent again."""
    retry: float = Field(2.0, gt=0)
    """The same after a failure that was reported."""


@dataclass
class Line:
    """What the server knows of one client."""

    state: str = "not here"
    address: Address | None = None
    users: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    said: str = ""
    """Its last refusal."""
    gone: str = ""
    """Why it takes no further part."""
    sent_at: float | None = None
    retry_at: float | None = None
    received: int = 0
    """Blocks of the upload, or bytes of the artifact, that have arrived."""


@dataclass
class _Round:
    """The sum that is being computed."""

    ask: Contribution
    number: int
    encoded: bytes
    fixed: frozenset[int] | None = None
    """Clients in the sum, once that is decided."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.encoded).hexdigest()


class Coordinator:
    """A server in one run, new or resumed from its folder."""

    def __init__(
        self,
        folder: Path,
        operator: Identity,
        roster: Roster,
        catalogue: Catalogue,
        terms: RunTerms,
        deadlines: Deadlines | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        random_bytes: RandomBytes = os.urandom,
        on_round: Callable[[str], None] | None = None,
    ) -> None:
        self.terms = terms
        self.ledger = Ledger()
        self.stage = Stage.HELLO
        self.reason = ""
        self.components: Components | None = None
        self.lines = {client: Line() for client in roster}
        self._folder = private_folder(folder)
        self._sums = private_folder(folder / "sums")
        self._operator = operator
        self._roster = roster
        self._catalogue = catalogue
        self.deadlines = deadlines or Deadlines()
        self._clock = clock
        self._on_round = on_round
        self._last = clock()
        self._elapsed = 0.0
        self._begun = 0.0
        self._plan: RunPlan | None = None
        self._session: ServerSession | None = None
        self._program: Program | None = None
        self._round: _Round | None = None
        self._messages: dict[int, bytes] = {}
        self._taking_part: tuple[int, ...] = ()
        self._strangers: dict[Address, float | None] = {}
        self._notices: list[tuple[Address, bytes]] = []
        self._artifact: list[tuple[str, Path, int]] = []
        self._piece: tuple[int, bytes] = (-1, b"")
        self._counted = (0.0, 0.0)
        self._spools: list[BinaryIO] = []
        self._status = ""
        self._resuming = False
        program(terms.settings, 1, len(catalogue))  # settings that cannot work are refused here
        self._journal = Journal(self._folder / "journal")
        self._resume(list(self._journal.records()), random_bytes)

    def __repr__(self) -> str:
        return f"<coordinator of run {self.run[:8]}, {self.stage.value}>"

    # --- the carrier's side -----------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self.stage in (Stage.DONE, Stage.ABORTED)

    def met(self, addresses: Iterable[Address]) -> None:
        """Who is connected at present: those nobody knows are asked who they are."""
        addresses = set(addresses)
        for line in self.lines.values():
            if line.address is not None and line.address not in addresses:
                line.address = None  # it may come back under another one
        bound = {line.address for line in self.lines.values()}
        for address in addresses - bound - self._strangers.keys():
            self._strangers[address] = None
        for address in set(self._strangers) - addresses:
            del self._strangers[address]

    def outgoing(self) -> Iterator[tuple[Address, bytes]]:
        """Messages that are due, each to be carried once."""
        now = self._now()
        while self._notices:
            yield self._notices.pop()
        if self.stage is Stage.DONE:
            return
        if self.stage is not Stage.ABORTED:
            for address, sent in self._strangers.items():
                if sent is None or now - sent > self.deadlines.silence:
                    self._strangers[address] = now
                    yield address, self._hello
        for client in sorted(self.waiting_for()):
            line = self.lines[client]
            if line.address is None or not self._due(line, now):
                continue
            message = self._message_for(client)
            line.sent_at, line.retry_at = now, None
            line.bytes_down += len(message)
            yield line.address, message

    def failed(self, address: Address) -> None:
        """A message could not be carried, or nobody answered it."""
        now = self._now()
        if address in self._strangers:
            # So that it is asked again in a moment.
            self._strangers[address] = now - self.deadlines.silence + self.deadlines.retry
        for line in self.lines.values():
            if line.address == address and line.sent_at is not None:
                line.retry_at = now + self.deadlines.retry

    def receive(self, address: Address, message: bytes) -> None:
        """Take a reply. What does not belong here is dropped with a line in the log."""
        if self.finished:
            return
        try:
            reply = envelope.peek(message)
            public = self._roster.get(reply.client)
            if public is None:
                raise _Stranger(f"client {reply.client} is not in the roster")
            try:
                envelope.check(message, public, "to-server")
            except BadEnvelope:
                raise _Stranger(
                    f"a message in the name of client {reply.client} is not signed by the key in "
                    "the roster"
                ) from None
            if reply.run != self.run and reply.kind != "refused":
                raise BadEnvelope(
                    f"client {reply.client} sent a message of another run: a replay, or a late one"
                )
            self.lines[reply.client].bytes_up += len(message)
            self._take(address, reply)
        except (BadEnvelope, ProtocolError) as error:
            # From a line whose client is known it is damage; from another, somebody who is not.
            if isinstance(error, _Stranger) and address in self._strangers:
                self._turn_away(address, str(error))
                return
            log.warning("dropped from %s: %s", address, error)
            self.failed(address)

    def tick(self) -> None:
        """Go on as far as what has arrived, and the time that has passed, allow."""
        try:
            while not self.finished and self._advance():
                pass
        except PrivirecError as error:
            self._abort(str(error))
        self._write_status()

    def distribute(self, artifact: Path) -> None:
        """Hand a saved and signed model out to the clients; ends the run."""
        names = ("model.safetensors", "manifest.json", "manifest.sig")
        self._artifact = [
            (name, artifact / name, (artifact / name).stat().st_size)
            for name in names
            if (artifact / name).exists()
        ]
        for line in self.lines.values():
            line.received = 0
        self._enter(Stage.ARTIFACT)

    def abort(self, reason: str) -> None:
        """Stop the run from outside."""
        if not self.finished:
            self._abort(reason)
            self._write_status()

    def close(self) -> None:
        """Let go of files; the run can be resumed from its folder."""
        for spool in self._spools:
            spool.close()

    def raise_if_stopped(self) -> None:
        if self.stage is Stage.ABORTED:
            raise FederationError(self.reason)

    def waiting_for(self) -> set[int]:
        """Clients whose answer is still missing in this stage."""
        known = {client for client, line in self.lines.items() if not line.gone}
        session = self._session
        if self.stage in (Stage.HELLO, Stage.COMPUTED, Stage.DONE):
            return set()
        if self.stage is Stage.ABORTED:
            return {
                client
                for client, line in self.lines.items()
                if line.address is not None and line.state != "told"
            }
        if self.stage is Stage.ARTIFACT:
            whole = sum(size for _, _, size in self._artifact)
            return {
                client
                for client, line in self.lines.items()
                if line.address is not None and line.received < whole
            }
        assert session is not None  # noqa: S101 - all other stages have one
        waiting = session.waiting_for()
        if self.stage is Stage.INPUT and self._round and self._round.fixed is not None:
            waiting &= self._round.fixed
        if self.stage is Stage.ADVERTISE:
            waiting &= set(self.plan.users)
        return waiting & known

    @property
    def cohort(self) -> tuple[int, ...]:
        """Clients that the current stage counts on; once a sum is open, those in it."""
        return self._taking_part

    @property
    def plan(self) -> RunPlan:
        if self._plan is None:
            raise FederationError("this run has no plan yet")
        return self._plan

    # --- what is sent -----------------------------------------------------------------------------

    def _due(self, line: Line, now: float) -> bool:
        if line.sent_at is None:
            return True
        if line.retry_at is not None:
            return now >= line.retry_at
        return now - line.sent_at >= self.deadlines.silence

    def _message_for(self, client: int) -> bytes:
        if self.stage is Stage.ABORTED:
            self.lines[client].state = "told"
            return self._seal("abort", client, 0, {"reason": self.reason})
        if self.stage is Stage.ARTIFACT:
            return self._artifact_piece(self.lines[client].received)
        if self.stage is Stage.INPUT:
            current, _ = self._current()
            received = self.lines[client].received
            if received or current.fixed is not None:
                more = {"round": current.number, "first": received}
                return self._seal("more", client, 2 * current.number + 1, more)
        return self._messages[client]

    def _artifact_piece(self, offset: int) -> bytes:
        if self._piece[0] != offset:
            room, position, parts = self.terms.part_bytes, 0, []
            for _, path, size in self._artifact:
                inside = offset - position
                if 0 <= inside < size and room:
                    with path.open("rb") as file:
                        file.seek(inside)
                        parts.append(file.read(min(room, size - inside)))
                    room -= len(parts[-1])
                    offset += len(parts[-1])
                position += size
            content = b"".join(parts)
            start = offset - len(content)
            files = [[name, size] for name, _, size in self._artifact]
            step = 2 * len(self.plan.sums()) + 3
            sealed = self._seal(
                "artifact", EVERYBODY, step, {"files": files, "offset": start}, content
            )
            self._piece = (start, sealed)
        return self._piece[1]

    def _seal(
        self, kind: str, client: int, step: int, more: dict[str, Any] | None = None, *parts: bytes
    ) -> bytes:
        sealed = Envelope(kind, self.run, client, step, more or {}, parts)
        return sealed.seal(self._operator, "to-client")

    def _turn_away(self, address: Address, reason: str) -> None:
        log.warning("turned away %s: %s", address, reason)
        self._strangers[address] = self._now()
        notice = self._seal("turned-away", EVERYBODY, 0, {"reason": reason})
        self._notices.append((address, notice))

    # --- what arrives -----------------------------------------------------------------------------

    def _take(self, address: Address, reply: Envelope) -> None:
        client = reply.client
        line = self.lines[client]
        if reply.kind == "refused":
            self._take_refusal(address, reply)
            return
        if reply.kind == "here":
            self._take_here(address, reply)
            return
        if line.address is None and self.stage is not Stage.HELLO:
            self._bind(line, address)  # signed for this run: it is there
        if line.address != address:
            raise BadEnvelope(f"a message of client {client} from where it is not")
        expected = {
            Stage.ADVERTISE: "advertise",
            Stage.SHARES: "shares",
            Stage.INPUT: "upload",
            Stage.UNMASK: "unmask",
            Stage.ARTIFACT: "received",
        }
        if reply.kind != expected.get(self.stage) or client not in self.waiting_for():
            return  # late or twice
        if reply.kind == "received":
            self._take_receipt(line, reply)
        elif reply.kind == "upload":
            self._take_upload(line, reply)
        elif len(reply.parts) == 1:
            # Checked by the session first: what is in the journal can be applied again.
            content = bytes(reply.parts[0])
            self._receive(client, content)
            self._journal.add(content, what=reply.kind, client=client)
            line.state = "answered"

    def _take_here(self, address: Address, reply: Envelope) -> None:
        client, users = reply.client, reply.more.get("users")
        line = self.lines[client]
        if type(users) is not int or not 0 <= users < MOST_USERS:
            raise BadEnvelope(f"client {client} does not say how many users it has")
        if line.address is not None and line.address != address:
            self._turn_away(
                address, f"client {client} is here already: two machines with one identity"
            )
            return
        if self.stage is Stage.HELLO:
            if line.address is None:
                log.info("client %d is here with %d users", client, users)
            line.users, line.state = users, "here"
        elif self._plan and client not in self._plan.users:
            self._turn_away(address, f"client {client} comes too late for this run")
            return
        self._bind(line, address)

    def _bind(self, line: Line, address: Address) -> None:
        if line.address is None:
            line.sent_at = line.retry_at = None  # back: send what it missed
        line.address = address
        self._strangers.pop(address, None)

    def _take_refusal(self, address: Address, reply: Envelope) -> None:
        line = self.lines[reply.client]
        reason = reply.reason
        if reason != line.said:
            log.warning("client %d: %s", reply.client, reason)
            line.said = reason
        known = line.address == address
        if known and reply.run == self.run and reply.more.get("final") is True:
            line.gone, line.state = line.gone or reason, "refused"
        elif known or line.address is None:
            line.state = line.state if known else "refuses"
            self.failed(address)

    def _take_upload(self, line: Line, reply: Envelope) -> None:
        first = reply.more.get("first")
        if first != line.received or reply.more.get("round") != self._current()[0].number:
            return
        for part in reply.parts:
            try:
                self._receive(reply.client, bytes(part))
            except ProtocolError as error:
                # A message that was signed by the client itself and is no block of its upload.
                log.warning("client %d leaves: %s", reply.client, error)
                line.gone, line.state = str(error), "refused"
                return
            line.received += 1
        line.state = "answered" if reply.client not in self.waiting_for() else "sending"
        line.sent_at = line.retry_at = None

    def _take_receipt(self, line: Line, reply: Envelope) -> None:
        offset = reply.more.get("offset")
        if type(offset) is int and offset > line.received:
            line.received = offset
            line.sent_at = line.retry_at = None
            line.state = "installed" if reply.more.get("installed") is True else "receiving"

    def _receive(self, client: int, content: bytes) -> None:
        assert self._session is not None  # noqa: S101 - stages with answers have one
        self._session.receive(client, content)

    # --- stages -----------------------------------------------------------------------------------

    def _advance(self) -> bool:
        """Leave the stage if it is complete or has taken too long; whether it was left."""
        limits = self.deadlines
        late = self._now() - self._begun
        if self.stage is Stage.HELLO:
            here = {client for client, line in self.lines.items() if line.state == "here"}
            if len(here) < len(self.lines) and late < limits.hello:
                return False
            return self._begin(here)
        if self.stage is Stage.ARTIFACT:
            if self.waiting_for() and late < limits.artifact:
                return False
            self._event("finished")
            return True
        if self.stage is Stage.COMPUTED:
            return False
        limit = {Stage.INPUT: limits.input, Stage.UNMASK: limits.unmask}.get(
            self.stage, limits.setup
        )
        if self.stage is Stage.INPUT and self._stopped_without_the_missing(late >= limit):
            return True
        if self.waiting_for() and late < limit:
            return False
        if self.stage is Stage.ADVERTISE:
            self._event("graph")
        elif self.stage is Stage.SHARES:
            self._event("cohort")
        elif self.stage is Stage.INPUT:
            self._fix_survivors()
        elif self.stage is Stage.UNMASK:
            self._open()
        return True

    def _begin(self, here: set[int]) -> bool:
        terms, roster = self.terms, len(self.lines)
        least = terms.least_clients(roster)
        if len(here) < least:
            self._abort(
                f"{len(here)} of {roster} clients came and {least} are needed (at least "
                f"{terms.smallest_cohort}, and {terms.dropped_share:.0%} of the roster may be "
                "missing): see that they run, reach the server and do not refuse, then start again"
            )
            return True
        if len(here) < roster:
            log.warning("%d clients of the roster are not here", roster - len(here))
        plan = RunPlan(
            run=self.run,
            version=__version__,
            terms=terms,
            n_items=len(self._catalogue),
            catalogue=self._catalogue.fingerprint,
            roster=self._roster.digest.hex(),
            clients=len(self._roster),
            users={client: self.lines[client].users for client in sorted(here)},
        )
        self._event("plan", plan.model_dump_json().encode())
        return True

    def _stopped_without_the_missing(self, too_late: bool) -> bool:
        """After the first sum is open, or being opened, nobody can be left out any more."""
        current, session = self._current()
        if current.number == 1 and current.fixed is None:
            return False
        missing = session.waiting_for()
        if current.fixed is not None:
            missing &= current.fixed
        gone = [client for client in sorted(missing) if self.lines[client].gone]
        if gone:
            why = f"client {gone[0]} left ({self.lines[gone[0]].gone})"
        elif too_late and missing:
            names = ", ".join(map(str, sorted(missing)[:5]))
            why = f"{len(missing)} clients did not answer in time ({names})"
        else:
            return False
        self._abort(
            f"in sum {current.number} of {len(self.plan.sums())} {why}, and a sum without "
            "them, beside the earlier ones, would show their histories; no further sum was "
            "opened. Start a new run when the same clients are back"
        )
        return True

    def _fix_survivors(self) -> None:
        current, session = self._current()
        if current.fixed is None:
            arrived = set(self._taking_part) - session.waiting_for()
            self._event("fixed", clients=sorted(arrived), round=current.number)
        else:  # a restarted server has its vectors again
            self._ask_to_open()

    def _ask_to_open(self) -> None:
        current, session = self._current()
        step = 2 * current.number + 2
        session.advance()
        told = list(session.outgoing())
        listed = write_participants(session.survivors, self._roster)
        self._messages = {
            client: self._seal("survivors", client, step, {}, message, listed)
            for client, message in told
        }
        self._enter(Stage.UNMASK)

    def _open(self) -> None:
        """Take the masks off, put the sum aside, and let the program go on with it."""
        current, session = self._current()
        path = self._sums / str(current.number)
        partial = path.with_suffix(".part")
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            for block in session.open_blocks():
                file.write(memoryview(np.ascontiguousarray(block)).cast("B"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync(self._sums)
        (self._folder / f"adding-{current.number}").unlink(missing_ok=True)
        traffic = {str(c): [line.bytes_up, line.bytes_down] for c, line in self.lines.items()}
        self._event("opened", round=current.number, traffic=traffic)

    def _current(self) -> tuple[_Round, ServerSession]:
        if self._round is None or self._session is None:
            raise FederationError("no sum is being computed")
        return self._round, self._session

    def _enter(self, stage: Stage) -> None:
        self.stage = stage
        if self._round is not None and self._plan is not None:
            sums = len(self._plan.sums())
            log.info("sum %d of %d: %s", self._round.number, sums, stage.value)
        else:
            log.info("%s", stage.value)
        self._begun = self._now()
        for line in self.lines.values():
            line.sent_at = line.retry_at = None
            if stage is Stage.INPUT:
                line.received = 0
            if line.state in ("answered", "here", "sending"):
                line.state = "waiting"
        for client, line in self.lines.items():
            if self._session and client not in self._taking_part and line.state == "waiting":
                line.state = "dropped"

    def _abort(self, reason: str) -> None:
        log.error("run %s is stopped: %s", self.run[:8], reason)
        self._event("aborted", reason=reason)

    # --- events -----------------------------------------------------------------------------------

    def _event(self, what: str, content: bytes = b"", **more: Any) -> None:
        self._journal.add(content, what=what, **more)
        self._apply(what, content, more)

    def _resume(self, records: list[tuple[dict[str, Any], bytes]], random: RandomBytes) -> None:
        """Begin a run, or apply the events of one that was begun."""
        self._opened = {more["round"] for more, _ in records if more["what"] == "opened"}
        terms = self.terms.model_dump_json()
        if not records:
            self._event("run", terms.encode(), run=random(16).hex())
            return
        if records[0][1] != terms.encode():
            raise UsageError(
                f"{self._folder}: holds a run with other settings; give a new run another folder"
            )
        if records[-1][0]["what"] == "aborted":  # and stays so
            records = [records[0], records[-1]]
        self._resuming = True
        try:
            for more, content in records:
                self._apply(more["what"], content, more)
        except PrivirecError as error:
            self._resuming = False
            self._abort(str(error))
        self._resuming = False
        if not self.finished:
            log.info("run %s goes on: %s", self.run[:8], self.stage.value)
            self._begun -= self._waited_before()

    def _apply(self, what: str, content: bytes, more: dict[str, Any]) -> None:
        if what == "run":
            self.run = str(more["run"])
            self._hello = self._seal(
                "hello",
                EVERYBODY,
                0,
                {
                    "version": __version__,
                    "catalogue": self._catalogue.fingerprint,
                    "items": len(self._catalogue),
                    "roster": self._roster.digest.hex(),
                },
            )
        elif what == "plan":
            self._start(RunPlan.model_validate_json(content), content)
        elif what in ("advertise", "shares"):
            self._receive(more["client"], content)
        elif what == "unmask":
            # Without the vectors of its round it is no use yet: the client will say it again.
            if self.stage is Stage.UNMASK:
                with suppress(ReplayedMessage):
                    self._receive(more["client"], content)
        elif what == "graph":
            self._next_messages("neighbours", 2)
            self._enter(Stage.SHARES)
        elif what == "cohort":
            self._deliver()
        elif what == "fixed":
            self._fix(more["round"], frozenset(more["clients"]))
        elif what == "asked":
            self._check_asked(more["digest"])
        elif what == "opened":
            for client, (up, down) in more["traffic"].items():
                self.lines[int(client)].bytes_up = up
                self.lines[int(client)].bytes_down = down
            self._go_on(more["round"])
        elif what == "aborted":
            self.reason = more["reason"]
            self._enter(Stage.ABORTED)
        elif what == "finished":
            self._enter(Stage.DONE)

    def _start(self, plan: RunPlan, text: bytes) -> None:
        self._plan = plan
        settings = plan.server_settings()
        self._session = protocol(plan.terms.aggregator).server(
            self._roster,
            plan.statement(),
            plan.shapes(),
            ServerSettings(
                settings.min_cohort,
                settings.block_entries,
                run=bytes.fromhex(self.run),
                accumulator=self._accumulator,
                spool=self._spool,
            ),
            os.urandom,
        )
        self._program = program(plan.terms.settings, plan.n_users, plan.n_items)
        invitation = self._seal("invite", EVERYBODY, 1, {}, text, self._session.announcement)
        self._messages = dict.fromkeys(plan.users, invitation)
        for client, users in plan.users.items():
            self.lines[client].users = users
        self._taking_part = tuple(plan.users)
        self._enter(Stage.ADVERTISE)

    def _next_messages(self, kind: str, step: int) -> None:
        assert self._session is not None  # noqa: S101
        self._session.advance()
        self._messages = {
            client: self._seal(kind, client, step, {}, message)
            for client, message in self._session.outgoing()
        }
        self._taking_part = tuple(self._messages)

    def _check_asked(self, digest: str) -> None:
        if digest != self._current()[0].digest:
            raise FederationError(
                "after a restart this server computes other numbers than before (another machine, "
                "library or number of threads?), and nobody answers two different asks. Start a "
                "new run"
            )

    def _deliver(self) -> None:
        assert self._session is not None  # noqa: S101
        self._session.advance()
        delivered = dict(self._session.outgoing())
        self._taking_part = tuple(delivered)
        self._ask_next(None)
        first, _ = self._current()  # every program begins with a sum
        self._messages = {
            client: self._seal("ask", client, 3, {}, message, first.encoded)
            for client, message in delivered.items()
        }

    def _ask_next(self, total: Any) -> None:
        """Let the program go on until it wants a sum, or is done."""
        assert self._program is not None and self._session is not None  # noqa: S101, PT018
        while True:
            try:
                wanted = self._program.send(total)
            except StopIteration as stop:
                self.components = stop.value
                self._round = None
                self._enter(Stage.COMPUTED)
                return
            if not isinstance(wanted, Broadcast):
                break
            self.ledger.add_broadcast(wanted)
            total = None
        if self._session.step is None:
            raise FederationError(f"the sum of {wanted.name} is one more than was planned")
        number = self._session.step.sum_number
        planned = self.plan.sums()[number - 1]
        if (wanted.name, wanted.length, wanted.encoding.width) != (
            planned.name,
            planned.length,
            planned.ring_bits,
        ):
            raise FederationError(f"the sum of {wanted.name} is not what was planned")
        if self._on_round:
            self._on_round(wanted.name)
        self._round = _Round(wanted, number, wire.encode(wanted))
        if number > 1:
            request = self._seal("ask", EVERYBODY, 2 * number + 1, {}, self._round.encoded)
            self._messages = dict.fromkeys(self._taking_part, request)
        self._enter(Stage.INPUT)
        if not self._resuming:
            self._journal.add(what="asked", round=number, digest=self._round.digest)

    def _fix(self, number: int, clients: frozenset[int]) -> None:
        """Decide who is in a sum. After a restart the vectors have to be sent again, unless the
        sum is open already."""
        current, session = self._current()
        current.fixed = clients
        self._taking_part = tuple(sorted(clients))
        if number in self._opened:
            session.skip_sum(clients)
        elif not session.waiting_for() & clients:
            self._ask_to_open()

    def _go_on(self, number: int) -> None:
        """Give an opened sum to the program."""
        ask = self._current()[0].ask
        total = ask.collect(_pieces(self._sums / str(number), self.plan.shapes()[number - 1], ask))
        up, down = self._bytes_per_client()
        payload = ask.encoding.payload_bytes(ask.length)
        self.ledger.add_sum(ask, round(up) - payload, round(down) - ask.broadcast_bytes)
        self._ask_next(total)

    def _bytes_per_client(self) -> tuple[float, float]:
        """Mean bytes since the last sum, over the clients in it; set-up counts with the first."""
        inside = [self.lines[client] for client in self._taking_part]
        up = float(np.mean([line.bytes_up for line in inside]))
        down = float(np.mean([line.bytes_down for line in inside]))
        before, self._counted = self._counted, (up, down)
        return up - before[0], down - before[1]

    # --- helpers ----------------------------------------------------------------------------------

    def _now(self) -> float:
        """Seconds this server has waited; jumps of the clock, and computing, count little."""
        now = self._clock()
        self._elapsed += min(max(now - self._last, 0.0), LONGEST_WAIT)
        self._last = now
        return self._elapsed

    def _accumulator(self, number: int, shape: VectorShape) -> Words:
        dtype = shape.ring.dtype
        if shape.length * dtype.itemsize < ON_DISK:
            return np.zeros(shape.length, dtype)
        path = self._folder / f"adding-{number}"
        return np.memmap(path, dtype, "w+", shape=(shape.length,))

    def _spool(self) -> BinaryIO:
        file: Any = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - see close
        self._spools = [spool for spool in self._spools if not spool.closed]
        self._spools.append(file)
        return file

    def status(self) -> dict[str, Any]:
        """Where the run stands, in plain values."""
        number = self._round.number if self._round else 0
        return {
            "run": self.run,
            "stage": self.stage.value,
            "sum": self._round.ask.name if self._round else "",
            "round": number,
            "rounds": len(self._plan.sums()) if self._plan else 0,
            "reason": self.reason,
            "waited": int(self._now() - self._begun) // 5 * 5,
            "clients": {
                str(client): {
                    "state": line.state,
                    "users": line.users,
                    "bytes_up": line.bytes_up,
                    "bytes_down": line.bytes_down,
                    "why": line.gone or line.said,
                }
                for client, line in self.lines.items()
            },
        }

    def _waited_before(self) -> float:
        """How long this stage had lasted when the server stopped: restarts do not prolong it."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            status = json.loads((self._folder / "status.json").read_bytes())
            now = self.status()
            if all(status[key] == now[key] for key in ("run", "stage", "round")):
                return float(status["waited"])
        return 0.0

    def _write_status(self) -> None:
        text = json.dumps(self.status())
        if text != self._status:
            self._status = text
            write_whole(self._folder / "status.json", text.encode(), durable=False)


class _Stranger(BadEnvelope):
    """A message from somebody who is not in the roster, or that was damaged."""


def _pieces(path: Path, shape: VectorShape, ask: Contribution) -> Iterator[NDArray[np.int64]]:
    """An opened sum in the pieces that a contribution collects."""
    total = np.memmap(path, shape.ring.dtype, "r", shape=(shape.length,))
    start = 0
    for length in ask.block_lengths():
        yield ask.encoding.from_ring(total[start : start + length].astype(np.uint64))
        start += length
