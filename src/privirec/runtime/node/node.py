"""One client of a federation: bytes in, bytes out, and a folder that outlives the process.

A carrier may start a new process for every message, kill it at any moment and deliver messages
twice. The following order keeps every step of a run safe:

1. *bind*: record which message this step answers; the step never answers another one;
2. compute the answer from the state before it (after a crash, the same bytes come out again, or
   nothing of the first attempt has left);
3. *commit*: record the answer and the state after it;
4. send the answer.

Thus no mask ever hides two vectors, since that would take a second message for the same step.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from privirec.data.catalogue import Catalogue
from privirec.data.interactions import Interactions
from privirec.durable import alone, mapped, private_folder, write_pieces, write_whole
from privirec.errors import DataError, FederationError, PrivirecError, SitsOut
from privirec.federated.dp.loss import Loss
from privirec.federated.dp.tables import forget_tables
from privirec.federated.randomness import SEED_BYTES
from privirec.privacy.accountant import OverBudget, Room
from privirec.privacy.cohorts import PolicyRefusal
from privirec.privacy.policy import Policy
from privirec.runtime import envelope
from privirec.runtime.envelope import BadEnvelope, Envelope, Sealed
from privirec.runtime.histories import HistorySource, in_a_run
from privirec.runtime.messages import (
    Abort,
    Answer,
    ArtifactPiece,
    Exchange,
    GoBack,
    Goodbye,
    Hello,
    Message,
    Received,
    Refused,
    SendVector,
    TurnedAway,
    Vector,
)
from privirec.runtime.node import calendar
from privirec.runtime.node.budget import Budget
from privirec.runtime.node.cohort_guard import CohortGuard
from privirec.runtime.node.greeting import check_common, check_taking_part
from privirec.runtime.node.inbox import Inbox, total_bytes
from privirec.runtime.node.memory import Memory
from privirec.runtime.node.run_state import ClientRun, Participation
from privirec.runtime.node.steps import StepAnswerer
from privirec.runtime.node.upload import forget_uploads, upload_file
from privirec.runtime.refusals import OF_ITS_OWN, Code, Refusal, for_the_server
from privirec.runtime.run_plan import is_run_number
from privirec.secagg import ProtocolError
from privirec.secagg.keys import Identity, RandomBytes, Roster

log = logging.getLogger("privirec.client")


class Node:
    """A client with its identity, its policy and its histories."""

    def __init__(
        self,
        folder: Path,
        client: int,
        identity: Identity,
        roster: Roster,
        server_key: bytes,
        catalogue: Catalogue,
        histories: HistorySource,
        policy: Policy | None = None,
        *,
        lineages: Mapping[int, str] | None = None,
        own_keys: Sequence[bytes] = (),
        random_bytes: RandomBytes = os.urandom,
        clock: Callable[[], datetime] = calendar.now,
    ) -> None:
        """Open the client in `folder`, or create its state there.

        `server_key` is the public key, named in the roster, with which the server signs all
        messages that this client accepts. For `lineages`, see `CohortGuard`. `own_keys` are all
        keys that this client has had, if they were rotated.
        """
        if roster.get(client) != identity.public:
            raise FederationError(
                f"client {client} with key {identity.public.hex()[:16]} is not in its own roster: "
                "ask the operator to approve it, and fetch the roster again"
            )
        self.client = client
        self._folder = private_folder(folder)
        self._runs = private_folder(folder / "runs")
        self._identity = identity
        self._roster = roster
        self._server_key = server_key
        self._catalogue = catalogue
        self._source = histories
        self._policy = policy or Policy()
        self._random = random_bytes
        self._checked: tuple[str, Interactions, Interactions] | None = None
        """Current run, the source's histories for it, and those of the people in the run."""
        self.memory = memory = Memory(self._runs)
        """Memory of the client for its lifetime and of the current run."""
        self._guard = CohortGuard(client, identity, roster, self._policy, memory, lineages)
        self._calendar = calendar.Calendar(self._runs, self._policy.days_between_changes, clock)
        keys = tuple(own_keys) or (identity.public,)
        self.budget = Budget(identity, keys, self._policy, memory, server_key, clock)
        self._answerer = StepAnswerer(
            *(client, identity, roster, catalogue, self._policy),
            *(self._guard, self.budget, memory.opened_share, random_bytes),
        )

    def __repr__(self) -> str:
        return f"<client {self.client}, secrets and histories <redacted>>"

    @property
    def keys(self) -> tuple[Identity, bytes]:
        """Identity of this client, and public key of the server."""
        return self._identity, self._server_key

    def rest(self) -> None:
        """Free data that can be recomputed; the next message may be hours away."""
        forget_tables()

    def close(self) -> None:
        """Close files; the whole state is in the folder."""
        self.memory.close()

    # --- one message ------------------------------------------------------------------------------

    def answer(self, message: bytes) -> Sealed:
        """Return the sealed answer to a message, or a sealed one-line refusal."""
        try:
            asked = envelope.peek(message, "to-client")
            envelope.check(message, self._server_key, "to-client")
            if asked.client not in (self.client, envelope.EVERYBODY):
                raise BadEnvelope(f"a message for client {asked.client}")
        except BadEnvelope as error:
            return self._drop("", Code.BAD_MESSAGE, str(error))
        try:
            with alone(self._runs):
                return self._answer_alone(asked, message)
        except OSError as error:  # not even the lock file could be written
            return self._own_problem(asked.run, error)

    def _answer_alone(self, asked: Envelope, message: bytes) -> Sealed:
        try:
            return self._answer(asked, message)
        except Refusal as error:
            if error.final:
                return self._leave(asked.run, error.code, str(error))
            return self._drop(asked.run, error.code, str(error))
        except ProtocolError as error:
            refuse = self._leave if error.fatal else self._drop
            return refuse(asked.run, Code.PROTOCOL, str(error))
        except PolicyRefusal as error:
            room = error.room if isinstance(error, OverBudget) else None
            return self._leave(asked.run, Code(error.rule), str(error), room)
        except SitsOut as error:
            return self._leave(asked.run, Code.HISTORIES_CHANGED, str(error))
        except (OSError, DataError) as error:
            return self._own_problem(asked.run, error)
        except PrivirecError as error:
            return self._leave(asked.run, Code.BAD_ASK, str(error))
        except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as error:
            # An unforeseen error. A server that can provoke it must not be able to crash clients.
            return self._own_problem(asked.run, error)

    def _answer(self, asked: Envelope, message: bytes) -> Sealed:
        said = asked.message
        if isinstance(said, Hello):
            return self._greet(asked.run, said, message)
        if isinstance(said, TurnedAway):
            log.error("turned away by the server: %s", said.reason)
            return self._seal(asked.run, Goodbye())
        if isinstance(said, GoBack):
            return self._go_back(asked.run, said)
        state = self._load(asked.run)
        if isinstance(said, Abort):
            log.error("run %s is over: %s", asked.run[:8], said.reason)
            self._close(state, Participation.LEFT, "the server ended the run")
            return self._seal(asked.run, Goodbye())
        if isinstance(said, ArtifactPiece):
            return self._take_piece(state, said, asked.parts)
        check_taking_part(state, self.client, self._roster)
        self._policy.check_takes_part()
        self._source.check(asked.run)
        if isinstance(said, SendVector):
            return self._vector(state, said.step)
        if isinstance(said, Exchange):
            return self._exchange(state, said, asked.parts, message)
        raise Refusal(Code.BAD_MESSAGE, f"nothing to answer to {said.kind}")

    # --- beginning --------------------------------------------------------------------------------

    def _greet(self, run: str, told: Hello, message: bytes) -> bytes:
        """Announce this client, and begin the run if it is new."""
        if not is_run_number(run):
            raise Refusal(Code.BAD_MESSAGE, "a run without a proper number")
        if self.memory.knows(run):
            # A greeting later in the run, after a restart of the server, is answered as before.
            return self._here(self._load(run, replayed=True))
        self._policy.check_takes_part()
        check_common(told, self.client, self._catalogue, self._roster)
        if told.level:
            self.budget.check_loss(Loss(told.level))  # before anybody waits for this client
        since = None if told.protected else self._calendar.period()
        if since is not None:
            self._calendar.check_catalogue(self.client, self._catalogue.fingerprint)
        source = self._begin(run, since)
        found = in_a_run(source, protected=told.protected)
        state = ClientRun(run, found.n_users, found.fingerprint(), self._roster.digest.hex())
        self._checked = (run, source, found)
        state.protected, state.period = told.protected, str(since or "")
        state.noise_seed, state.bytes_down = self._random(SEED_BYTES), len(message)
        if since is not None:
            changed = self._source.may_have_changed(since)
            self._calendar.check_histories(state.histories, changed=changed)
        self._guard.begin(state)
        for other in self._runs.iterdir():
            if other.is_dir():
                Inbox(other).clear()  # remains of an earlier run
        private_folder(self._folder_of(run))
        self.memory.begin(state)
        return self._here(self._load(run))

    def _here(self, state: ClientRun) -> bytes:
        check_taking_part(state, self.client, self._roster)
        return self._seal(state.run, *self._guard.here(state))

    # --- steps ------------------------------------------------------------------------------------

    def _exchange(
        self,
        state: ClientRun,
        asked: Exchange,
        parts: tuple[bytes | memoryview, ...],
        message: bytes,
    ) -> Sealed:
        digest = hashlib.sha256(message).hexdigest()
        if asked.step == state.step and digest == state.answered:
            return state.reply or self._vector(state, asked.step)
        self._check_next(state, asked.step, digest)
        if not state.bound:
            state.bound = digest
            self.memory.save(state)
        state.bytes_down += len(message)
        self._policy.check_traffic(state.bytes_up, state.bytes_down)
        found = self._answerer.answer(
            state,
            asked.step,
            tuple(bytes(part) for part in parts),
            lambda: self._histories(state),
            lambda size, blocks: self._store_vector(state.run, asked.step, size, blocks),
        )
        if found.message is not None:
            state.reply = self._seal(state.run, Answer(step=asked.step), found.message)
            state.bytes_up += len(state.reply)
        else:
            state.reply = b""
            state.bytes_up += found.upload_bytes
            self._note_use(state)
        self._policy.check_traffic(state.bytes_up, state.bytes_down)
        state.step, state.answered, state.bound = asked.step, digest, ""
        state.answers += 1
        self.memory.commit(state, found.for_life)
        self.memory.note_answer(state)
        forget_uploads(self._folder_of(state.run), before=found.oldest_needed_upload)
        return state.reply or self._vector(state, asked.step)

    def _note_use(self, state: ClientRun) -> None:
        """Record that histories are in use, before the first vector of a run leaves.

        From then on, a change of the histories would show.
        """
        if not state.sent:
            self._source.sent(state.run)
            self._calendar.note(state.period, self._catalogue.fingerprint, state.histories)
            state.sent = True

    def _check_next(self, state: ClientRun, step: int, digest: str) -> None:
        """Refuse any step but the next, and any message but the one that the step is bound to."""
        if step <= state.step or (state.bound and state.bound != digest):
            raise Refusal(
                Code.ANSWERED_BEFORE, f"step {step} was answered before, to another message"
            )
        if step != state.step + 1:
            raise Refusal(Code.TOO_EARLY, f"step {step} comes too early, after step {state.step}")

    def _store_vector(self, run: str, step: int, size: int, blocks: Iterable[bytes]) -> int:
        """Seal a vector of `size` bytes and write it to the disk; return the bytes written."""
        path, envelope = upload_file(self._folder_of(run), step), Vector(step=step)
        sealed = Envelope(run, self.client, envelope).sealed(
            self._identity, "to-server", [size], blocks
        )
        write_pieces(path, sealed)
        return path.stat().st_size

    def _vector(self, state: ClientRun, step: int) -> Sealed:
        """Return a sealed vector: the same bytes on every request.

        A vector that the state does not know of is not sent.
        """
        path = upload_file(self._folder_of(state.run), step)
        if not 0 <= step <= state.step or not path.exists():
            raise Refusal(Code.NO_UPLOAD, "no such upload")
        return mapped(path)

    def _begin(self, run: str, since: datetime | None = None) -> Interactions:
        try:
            return self._source.begin(run, self._catalogue, since)
        except FederationError as error:
            raise Refusal(Code.HISTORIES_CHANGED, str(error), final=True) from None

    def _histories(self, state: ClientRun) -> Interactions:
        source = self._begin(state.run)
        if self._checked and self._checked[0] == state.run and self._checked[1] is source:
            return self._checked[2]
        found = in_a_run(source, protected=state.protected)
        if found.n_users != state.users:
            raise Refusal(
                Code.HISTORIES_CHANGED,
                "the number of people changed since the run began, so this client leaves and takes "
                "part in the next",
                final=True,
            )
        # Noise protects whatever history is in a sum, so a protected run goes on after a change:
        # leaving would show it.
        if not state.protected and found.fingerprint() != state.histories:
            raise Refusal(
                Code.HISTORIES_CHANGED,
                "the histories changed since the run began: answering with both would show the "
                "difference, so this client leaves and takes part in the next",
                final=True,
            )
        self._checked = (state.run, source, found)
        return found

    # --- the artifact -----------------------------------------------------------------------------

    def _take_piece(
        self, state: ClientRun, piece: ArtifactPiece, parts: tuple[bytes | memoryview, ...]
    ) -> bytes:
        """Store a piece of the artifact, and install the artifact when it is complete."""
        total = total_bytes(piece)
        if len(parts) != 1:
            raise Refusal(Code.BAD_ARTIFACT, "a piece of an artifact without its content")
        arrived = total
        if state.part is not Participation.FINISHED:
            self._policy.check_traffic(state.bytes_up, state.bytes_down + total)
            inbox = Inbox(self._folder_of(state.run) / "incoming")
            arrived = inbox.put(piece, parts[0])
            if arrived == total:
                state = self._install(state, inbox, piece)
        installed = state.part is Participation.FINISHED
        return self._seal(state.run, Received(offset=arrived, installed=installed))

    def _go_back(self, run: str, said: GoBack) -> bytes:
        """Use an earlier model again, if it is still here; an older request changes nothing."""
        from privirec.device.installed import Installed  # noqa: PLC0415 - seldom, and large

        last = self._runs / "go-back"
        before = int(last.read_text()) if last.exists() else -1
        if said.number > before:
            model = self._folder / "model"
            found = Installed(model).go_back(said.model) if Installed.at(model) else None
            write_whole(last, str(said.number).encode())
            if found:
                log.warning("the operator took the last model back: %s is used again", found[:16])
            else:
                log.warning("the operator took the last model back; the earlier is not here")
        return self._seal(run, Goodbye())

    def _install(self, state: ClientRun, inbox: Inbox, piece: ArtifactPiece) -> ClientRun:
        """Install the model, or put the model of a spoilt run into a folder that nothing reads.

        The server sees the same reply after the same work in both cases, since a difference would
        reveal what this client has.
        """
        from privirec.device.installed import Installed  # noqa: PLC0415 - once a run, and large

        model = Installed(self._folder / ("spoilt-model" if state.spoilt else "model"))
        try:
            key = Ed25519PublicKey.from_public_bytes(self._server_key)
            model.install(inbox.unpacked(piece), key)
            self._source.finish(state.run)
        except FederationError:
            raise
        except PrivirecError as error:
            inbox.clear()
            raise Refusal(Code.BAD_ARTIFACT, f"the artifact was refused: {error}") from None
        done = "not installed: the run is spoilt" if state.spoilt else "installed"
        log.info("run %s: its model is %s", state.run[:8], done)
        state.bytes_down += total_bytes(piece)
        state = self._close(state, Participation.FINISHED, "the run is over")
        inbox.clear()
        return state

    # --- state ------------------------------------------------------------------------------------

    def _folder_of(self, run: str) -> Path:
        return self._runs / run

    def _load(self, run: str, *, replayed: bool = False) -> ClientRun:
        state = self.memory.load(run) if is_run_number(run) else None
        if state is None:
            if replayed:
                raise Refusal(
                    Code.REPLAYED_RUN, f"run {run[:8]} was begun before: a replayed invitation"
                )
            raise Refusal(Code.UNKNOWN_RUN, f"client {self.client} does not know run {run[:8]!r}")
        if state.part is Participation.TAKING and self.memory.is_restored(state):
            log.error("run %s: an older state was restored, so this client leaves", run[:8])
            state = self._close(
                state, Participation.LEFT, "its state was restored from before an answer"
            )
        elif state.part is Participation.TAKING:
            self.memory.note_answer(state)  # a crash may have come before the note
        return state

    def _close(self, state: ClientRun, part: Participation, why: str) -> ClientRun:
        """Erase the secrets of a run, but remember that it existed."""
        if state.part is not Participation.TAKING and part is Participation.LEFT:
            return state
        closed = state.closed(part, why)
        self.memory.save(closed)
        forget_uploads(self._folder_of(state.run))
        self._answerer.forget_plan()
        self._checked = None
        return closed

    def _leave(self, run: str, code: Code, reason: str, room: Room | None = None) -> bytes:
        log.error("run %s refused: %s", run[:8], reason)
        with suppress(PrivirecError, OSError):
            self._close(self._load(run), Participation.LEFT, reason)
        return self._refused(run, code, reason, final=True, room=room)

    def _drop(self, run: str, code: Code, reason: str) -> bytes:
        log.warning("dropped: %s", reason)
        return self._refused(run, code, reason, final=False)

    def _own_problem(self, run: str, error: Exception) -> bytes:
        """Refuse because of a problem on this client's side.

        Nothing has left and nothing has changed. The server does not learn the cause. The text of a
        data error may be part of a history, so it is not logged either.
        """
        what = error if isinstance(error, OSError) else "see: privirec client up --check"
        log.error("cannot answer (%s): %s", type(error).__name__, what)
        return self._refused(run, Code.OWN_PROBLEM, "", final=False)

    def _refused(
        self, run: str, code: Code, reason: str, *, final: bool, room: Room | None = None
    ) -> bytes:
        final = final and code not in OF_ITS_OWN
        code, reason = for_the_server(self.client, code, reason)
        refused = Refused(code=code, reason=reason, final=final)
        if room is not None:
            refused = refused.model_copy(update={"room": room.level, "returns": room.day})
        return self._seal(run, refused)

    def _seal(self, run: str, message: Message, *parts: bytes) -> bytes:
        return Envelope(run, self.client, message, parts).seal(self._identity, "to-server")
