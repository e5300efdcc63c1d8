"""One client of a federation: bytes in, bytes out, and a folder that survives its process.

A carrier may start a new process for every message, kill it at any moment and deliver messages
twice. So the client writes down what it will answer before the answer leaves: the same message gets
the same answer again, another message for the same step gets none. Secrets of a run live in the
run's folder and nowhere else, and are removed when the run is over.

    FOLDER/runs/known            runs that are over, never to be begun again
    FOLDER/runs/cohorts          who was in the runs that could be opened
    FOLDER/runs/<run>/state      session, plan and last answer, replaced in one step
    FOLDER/runs/<run>/answered   one record for each answer; a state that is older was restored
    FOLDER/runs/<run>/upload-N   blocks of round N as they are sent, until the next round
    FOLDER/runs/<run>/incoming   the artifact, while it arrives
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import ValidationError

from privirec.data.interactions import Interactions
from privirec.device.catalogue import Catalogue
from privirec.device.installed import Installed
from privirec.durable import Journal, alone, private_folder, sync, write_whole
from privirec.errors import DataError, FederationError, PrivirecError
from privirec.federated import wire
from privirec.federated.contributions import (
    Contribution,
    Histories,
    ItemDegrees,
    ItemItem,
    SeededStep,
    UserStart,
)
from privirec.privacy.policy import Policy
from privirec.runtime.local.client import Client
from privirec.runtime.network import envelope
from privirec.runtime.network.envelope import BadEnvelope, Envelope
from privirec.runtime.network.histories import HistorySource
from privirec.runtime.network.run_plan import RunPlan, same_version
from privirec.secagg import ClientPolicy, ClientSession, ProtocolError, protocol
from privirec.secagg.bell2020.messages import Neighbours, Survivors, decode
from privirec.secagg.errors import CohortChanged, ReplayedMessage, RosterMismatch
from privirec.secagg.keys import Identity, Roster
from privirec.secagg.messages import Announce
from privirec.secagg.participants import read_participants
from privirec.secagg.randomness import RandomBytes
from privirec.version import __version__

log = logging.getLogger("privirec.client")

ARTIFACT_FILES = ("model.safetensors", "manifest.json", "manifest.sig")
MOST_ARTIFACT_BYTES = 1 << 36

# So that common backup tools leave the folder of a run out: see `_guard`.
_CACHE_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n# Secrets of a run: do not back up.\n"


class NotNow(FederationError):
    """A message that is dropped: the run goes on as if it had not come."""


@dataclass
class _Run:
    """All that a client remembers of a run."""

    run: str
    answers: int = 0
    """How many answers have left."""
    step: int = -1
    """Step that was answered last."""
    digest: str = ""
    """Of the message that was answered last."""
    users: int = 0
    histories: str = ""
    """Digest of the histories this run began with."""
    plan: str = ""
    protocol: str = ""
    participants: list[int] = field(default_factory=list)
    """In the set-up."""
    cohort: list[int] = field(default_factory=list)
    """In the sums."""
    degrees: str = ""
    """Digest of the item degrees that the server broadcasts."""
    bytes_up: int = 0
    bytes_down: int = 0
    left: str = ""
    """Why this client left the run."""
    finished: bool = False
    session: bytes = b""
    reply: bytes = b""

    def pack(self) -> list[bytes]:
        plain = {k: v for k, v in asdict(self).items() if k not in ("session", "reply")}
        head = json.dumps(plain).encode()
        return [
            struct.pack(">QQ", len(head), len(self.session)),
            head,
            self.session,
            self.reply,
        ]

    @classmethod
    def unpack(cls, content: bytes) -> _Run:
        first, second = struct.unpack_from(">QQ", content)
        plain = json.loads(content[16 : 16 + first])
        middle = 16 + first + second
        return cls(**plain, session=content[16 + first : middle], reply=content[middle:])


class Node:
    """A client with its identity, its policy and its histories."""

    def __init__(
        self,
        folder: Path,
        client: int,
        identity: Identity,
        roster: Roster,
        operator: bytes,
        catalogue: Catalogue,
        histories: HistorySource,
        policy: Policy | None = None,
        *,
        random_bytes: RandomBytes = os.urandom,
    ) -> None:
        """`operator`: the public key that signs all that this client listens to."""
        self.client = client
        self._folder = private_folder(folder)
        self._runs = private_folder(folder / "runs")
        self._identity = identity
        self._roster = roster
        self._operator = operator
        self._catalogue = catalogue
        self._source = histories
        self._policy = policy or Policy()
        self._random = random_bytes
        if roster.get(client) != identity.public:
            raise FederationError(
                f"client {client} with key {identity.public.hex()[:16]} is not in its own roster: "
                "ask the operator to approve it, and fetch the roster again"
            )

    def __repr__(self) -> str:
        return f"<client {self.client}, secrets and histories <redacted>>"

    # --- one message ------------------------------------------------------------------------------

    def answer(self, message: bytes) -> bytes:
        """The sealed answer to a message; what cannot be answered is refused in one line."""
        try:
            asked = envelope.peek(message)
            envelope.check(message, self._operator, "to-client")
            if asked.client not in (self.client, envelope.EVERYBODY):
                raise BadEnvelope(f"a message for client {asked.client}")
        except BadEnvelope as error:
            log.warning("dropped: %s", error)
            return self._refusal("", -1, str(error), final=False)
        with alone(self._runs):
            try:
                return self._answer(asked, message)
            except (NotNow, BadEnvelope) as error:
                log.warning("dropped: %s", error)
                return self._refusal(asked.run, asked.step, str(error), final=False)
            except ProtocolError as error:
                if not error.fatal:
                    log.warning("dropped: %s", error)
                    return self._refusal(asked.run, asked.step, str(error), final=False)
                return self._leave(asked, str(error))
            except (OSError, DataError) as error:
                # Nothing has left and nothing has changed. What is wrong stays here, and what a
                # data error says may be part of a history.
                what = "see: privirec client --check" if isinstance(error, DataError) else error
                log.error("cannot answer (%s): %s", type(error).__name__, what)
                reason = f"client {self.client} has a problem of its own; its log says which"
                return self._refusal(asked.run, asked.step, reason, final=False)
            except PrivirecError as error:
                return self._leave(asked, str(error))

    def _answer(self, asked: Envelope, message: bytes) -> bytes:
        if asked.kind == "hello":
            return self._hello(asked, message)
        if asked.kind == "turned-away":
            log.error("turned away by the server: %s", asked.reason)
            return self._seal(Envelope("bye", asked.run, self.client, asked.step))
        state = self._load(asked.run)
        if asked.kind == "abort":
            log.error("run %s is over: %s", asked.run[:8], asked.reason)
            self._close(state, "the server ended the run")
            return self._seal(Envelope("bye", asked.run, self.client, asked.step))
        if asked.kind == "artifact":
            return self._artifact(state, asked)
        if state.left:
            raise NotNow(f"client {self.client} has left this run: {state.left}")
        if asked.kind == "more":
            return self._upload(state, asked.more.get("round"), asked.more.get("first"))
        known: dict[str, Callable[[_Run, Envelope], Envelope | None]] = {
            "invite": self._invite,
            "neighbours": self._neighbours,
            "ask": self._ask,
            "survivors": self._survivors,
        }
        if asked.kind not in known:
            raise NotNow(f"a message of the unknown kind {asked.kind[:40]!r}")
        if self._repeated(state, asked, message):
            return self._again(state)
        state.bytes_down += len(message)
        self._policy.check_traffic(state.bytes_up, state.bytes_down)
        reply = known[asked.kind](state, asked)
        self._keep(state, asked, message, reply)
        return self._again(state)

    def _repeated(self, state: _Run, asked: Envelope, message: bytes) -> bool:
        """Whether this very message was answered last; any other must be of the next step."""
        if asked.step == state.step and hashlib.sha256(message).hexdigest() == state.digest:
            return True
        if asked.step <= state.step:
            raise NotNow(f"step {asked.step} was answered before, to another message")
        if asked.step != state.step + 1:
            raise NotNow(f"step {asked.step} comes too early, after step {state.step}")
        return False

    def _again(self, state: _Run) -> bytes:
        """The answer that was written down."""
        return state.reply or self._upload(state, state.step // 2, 0)

    def _keep(self, state: _Run, asked: Envelope, message: bytes, reply: Envelope | None) -> None:
        """Write state and answer down, before the answer leaves."""
        state.reply = self._seal(reply) if reply else b""
        state.bytes_up += len(state.reply)
        self._policy.check_traffic(state.bytes_up, state.bytes_down)
        state.step = asked.step
        state.digest = hashlib.sha256(message).hexdigest()
        state.answers += 1
        self._save(state)
        self._journal(state.run).add(answers=state.answers)
        if asked.kind == "ask":  # the server is past the round before
            self._path(state.run, f"upload-{asked.step // 2 - 1}").unlink(missing_ok=True)

    # --- set-up -----------------------------------------------------------------------------------

    def _hello(self, asked: Envelope, message: bytes) -> bytes:
        """Say that this client is there, and begin a run that it has not heard of."""
        run, told = asked.run, asked.more
        if len(run) != 32 or not all(letter in "0123456789abcdef" for letter in run):
            raise NotNow("a run without a proper number")
        if self._path(run, "state").exists():
            state = self._load(run)
            if state.left:
                raise NotNow(f"client {self.client} has left this run: {state.left}")
            if state.digest == hashlib.sha256(message).hexdigest():
                return state.reply
            # Later in the run, after a restart of the server: who and how many, nothing new.
            return self._seal(self._here(state, asked.step))
        known = Journal(self._runs / "known")
        if any(what["run"] == run for what, _ in known.records()):
            raise NotNow(f"run {run[:8]} was begun before: a replayed invitation")
        if not same_version(str(told.get("version"))):
            raise NotNow(
                f"the server runs version {told.get('version')}, client {self.client} version "
                f"{__version__}: install the same"
            )
        if told.get("catalogue") != self._catalogue.fingerprint:
            raise NotNow(
                f"client {self.client} has another catalogue "
                f"({len(self._catalogue)} items, {self._catalogue.fingerprint[:16]}) than the "
                f"server ({told.get('items')} items, {str(told.get('catalogue'))[:16]})"
            )
        if told.get("roster") != self._roster.digest.hex():
            raise NotNow(
                f"client {self.client} has another roster ({self._roster.digest.hex()[:16]}) than "
                f"the server ({str(told.get('roster'))[:16]}): fetch the operator's"
            )
        found = self._source.begin(run, self._catalogue)
        for other in self._runs.iterdir():
            if other.is_dir():  # one run at a time; an earlier one is over, for good
                if other.name != run:
                    known.add(run=other.name)
                shutil.rmtree(other)
        folder = private_folder(self._path(run))
        write_whole(folder / "CACHEDIR.TAG", _CACHE_TAG)
        state = _Run(run, users=found.n_users, histories=_digest_of(found))
        state.bytes_down = len(message)
        self._keep(state, asked, message, self._here(state, asked.step))
        return state.reply

    def _here(self, state: _Run, step: int) -> Envelope:
        more = {"users": state.users, "version": __version__}
        return Envelope("here", state.run, self.client, step, more)

    def _invite(self, state: _Run, asked: Envelope) -> Envelope:
        """Check the plan and the announcement against each other and the policy."""
        text, announcement = _parts(asked, 2)
        plan = _plan(text)
        if plan.run != asked.run or plan.users.get(self.client) != state.users:
            raise FederationError("the plan is for another run or miscounts this client's users")
        if (plan.catalogue, plan.n_items) != (self._catalogue.fingerprint, len(self._catalogue)):
            raise FederationError("the plan is for another catalogue than this client's")
        if plan.roster != self._roster.digest.hex() or not plan.users.keys() <= set(self._roster):
            raise RosterMismatch("the plan is for another roster than this client's")
        if not same_version(plan.version):
            raise FederationError(f"the plan is of version {plan.version}, this is {__version__}")
        self._policy.check_run(plan.for_policy())
        announced = decode(announcement)
        if not isinstance(announced, Announce) or announced.run.hex() != plan.run:
            raise FederationError("the announcement is not of this run")
        if (announced.statement, list(announced.shapes)) != (plan.statement(), plan.shapes()):
            raise FederationError("the announced sums are not those of the plan")
        if announced.block_entries != plan.terms.block_entries:
            raise FederationError("the announced blocks are not those of the plan")
        state.plan = text.decode()
        state.protocol = plan.terms.aggregator
        session = protocol(state.protocol).client(
            self.client, self._identity, self._roster, self._secagg_policy(), self._random
        )
        reply = session.receive(announcement)
        log.info(
            "run %s: takes part, %d clients, %d sums, %s",
            *(state.run[:8], len(plan.users), len(plan.sums()), state.protocol),
        )
        return self._reply(state, session, asked, "advertise", reply)

    def _neighbours(self, state: _Run, asked: Envelope) -> Envelope:
        (told,) = _parts(asked, 1)
        message = decode(told)
        if not isinstance(message, Neighbours):
            raise NotNow("not the message of this step")
        session = self._session(state)
        reply = session.receive(told)
        plan = _plan(state.plan.encode())
        participants = read_participants(message.participants, self._roster).tolist()
        if not set(participants) <= plan.users.keys():
            raise RosterMismatch("clients take part that are not in the plan")
        state.participants = participants
        self._policy.check_cohort(frozenset(participants), self._cohorts_before(state))
        return self._reply(state, session, asked, "shares", reply)

    # --- rounds -----------------------------------------------------------------------------------

    def _ask(self, state: _Run, asked: Envelope) -> None:
        """Make this client's contribution and put it aside, to be sent in parts."""
        plan = _plan(state.plan.encode())
        number = asked.step // 2
        session = self._session(state)
        *deliver, request = asked.parts
        for message in deliver:
            session.receive(bytes(message))
        ask = wire.decode(bytes(request))
        histories = self._histories(state, plan)
        self._check_ask(state, plan, number, ask, histories)
        planned = plan.sums()[number - 1]
        up = state.bytes_up + planned.as_entry().bytes_up_per_client
        self._policy.check_answer(ask.name, state.protocol, number, up, state.bytes_down)
        blocks = Client(histories).answer(ask)
        size = 0
        path = self._path(state.run) / f"upload-{number}"
        partial = path.with_name("upload.part")
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            for block in session.contribute(number, blocks):
                file.write(struct.pack(">I", len(block)))
                file.write(block)
                size += len(block)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync(path.parent)
        state.bytes_up += size
        state.session = session.dump()
        sums = len(plan.sums())
        log.info("run %s: sum %d of %d (%s) answered", state.run[:8], number, sums, ask.name)

    def _upload(self, state: _Run, number: object, first: object) -> bytes:
        """Blocks of a round from a given one on, as many as go into one message.

        Sending them a second time tells nobody anything: they are the same bytes.
        """
        path = self._path(state.run, f"upload-{number}")
        if type(number) is not int or type(first) is not int or not path.exists():
            raise NotNow("no such upload")
        room = _plan(state.plan.encode()).terms.part_bytes
        blocks = 0
        parts: list[bytes] = []
        with path.open("rb") as file:
            while head := file.read(4):
                (size,) = struct.unpack(">I", head)
                if blocks >= first and (not parts or size <= room):
                    parts.append(file.read(size))
                    room -= size
                else:
                    room = 0 if parts else room  # no gaps
                    file.seek(size, os.SEEK_CUR)
                blocks += 1
        more = {"round": number, "first": first, "blocks": blocks}
        step = 2 * number + 1
        return self._seal(Envelope("upload", state.run, self.client, step, more, tuple(parts)))

    def _survivors(self, state: _Run, asked: Envelope) -> Envelope:
        """Help to open a sum, and remember with whom.

        The protocol tells a client of its neighbours and how many there are in all; the server adds
        a list of everybody, under its signature. One that does not fit is refused.
        """
        told, listed = _parts(asked, 2)
        message = decode(told)
        if not isinstance(message, Survivors):
            raise NotNow("not the message of this step")
        session = self._session(state)
        reply = session.receive(told)
        cohort = frozenset(read_participants(listed, self._roster).tolist())
        fits = self.client in cohort and len(cohort) == message.cohort
        fits = fits and cohort.issuperset(message.survivors) and cohort <= {*state.participants}
        if not fits or not cohort.isdisjoint(message.dropped):
            raise CohortChanged("the list of clients in the sum does not fit the sum")
        if message.round_number == 1:
            self._policy.check_cohort(cohort, self._cohorts_before(state))
            # Before the answer: from now on a sum over this cohort may be open.
            self._remember(state, cohort)
            state.cohort = sorted(cohort)
        elif sorted(cohort) != state.cohort:
            raise CohortChanged("other clients are in this sum than in the first")
        return self._reply(state, session, asked, "unmask", reply)

    def _check_ask(
        self, state: _Run, plan: RunPlan, number: int, ask: Contribution, histories: Histories
    ) -> None:
        """What is asked must be what was planned, over numbers that can be true."""
        sums = plan.sums()
        settings = plan.terms.settings
        if not 1 <= number <= len(sums):
            raise FederationError(f"a sum {number} where the plan has {len(sums)}")
        planned, encoding = sums[number - 1], ask.encoding
        if (ask.name, ask.length, encoding.width, encoding.signed) != (
            planned.name,
            planned.length,
            planned.ring_bits,
            planned.signed,
        ):
            raise FederationError(f"sum {number} is not the {planned.name} of the plan")
        own = np.bincount(histories.matrix.indices, minlength=plan.n_items)
        if isinstance(ask, ItemDegrees):
            if ask.n_users != plan.n_users:
                raise FederationError("item degrees over another number of users than planned")
        elif isinstance(ask, ItemItem):
            if ask.alpha != settings.alpha:
                raise FederationError("an item-item matrix of another normalisation than planned")
            if not own.max(initial=0) <= ask.largest_degree <= plan.n_users:
                raise FederationError("a largest item degree that cannot be")
        else:
            degrees = ask.item_degrees  # type: ignore[attr-defined]
            if (degrees < own).any() or int(degrees.max(initial=0)) > plan.n_users:
                raise FederationError("item degrees that cannot be: this client has more")
            digest = hashlib.sha256(degrees.tobytes()).hexdigest()
            if state.degrees not in ("", digest):
                raise FederationError("other item degrees than in an earlier sum of this run")
            state.degrees = digest
        if isinstance(ask, SeededStep):
            public = np.random.Generator(np.random.Philox(settings.seed)).bytes(32)
            if ask.seed != public:
                raise FederationError("a start block that is not the one of the public seed")
        if isinstance(ask, UserStart) and len(ask.block) != plan.n_users:
            raise FederationError("a start block for another number of users than planned")

    def _histories(self, state: _Run, plan: RunPlan) -> Histories:
        found = self._source.begin(state.run, self._catalogue)
        if _digest_of(found) != state.histories:
            raise FederationError(
                f"the histories of client {self.client} changed since the run began: answering "
                "with both would show the difference, so it leaves and takes part in the next"
            )
        return Histories(found.matrix, plan.first_user(self.client))

    # --- the artifact -----------------------------------------------------------------------------

    def _artifact(self, state: _Run, asked: Envelope) -> bytes:
        """Take a piece of the artifact; install it when it is whole."""
        (chunk,) = _parts(asked, 1)
        files, offset = _files(asked.more)
        total = sum(size for _, size in files)
        self._policy.check_traffic(state.bytes_up, state.bytes_down + total)
        folder = self._path(state.run) / "incoming"
        if not state.finished:
            stream = private_folder(folder) / "stream"
            stream.touch(mode=0o600)
            have = stream.stat().st_size
            if offset > have or offset + len(chunk) > total:
                raise NotNow("a piece of the artifact that does not fit")
            with stream.open("r+b") as file:
                file.seek(offset)
                file.write(chunk)
                file.truncate()
            offset += len(chunk)
            if offset == total:
                self._install(state, files, folder)
        else:
            offset = total
        more = {"offset": offset, "installed": state.finished}
        return self._seal(Envelope("received", state.run, self.client, asked.step, more))

    def _install(self, state: _Run, files: list[tuple[str, int]], folder: Path) -> None:
        whole = private_folder(folder / "artifact")
        with (folder / "stream").open("rb") as stream:
            for name, size in files:
                with (whole / name).open("wb") as file:
                    left = size
                    while left:
                        piece = stream.read(min(left, 1 << 20))
                        file.write(piece)
                        left -= len(piece)
        try:
            key = Ed25519PublicKey.from_public_bytes(self._operator)
            Installed(self._folder / "model").install(whole, key)
            self._source.finish(state.run)
        except FederationError:
            raise
        except PrivirecError as error:
            shutil.rmtree(folder)
            log.error("the artifact was refused: %s", error)
            raise NotNow(f"client {self.client} refuses the artifact; its log says why") from None
        log.info("run %s: its model is installed", state.run[:8])
        state.finished = True
        self._close(state, "the run is over")

    # --- state ------------------------------------------------------------------------------------

    def _path(self, run: str, *names: str) -> Path:
        return self._runs.joinpath(run, *names)

    def _journal(self, run: str) -> Journal:
        journal = Journal(self._path(run) / "answered")
        for _ in journal.records():
            pass  # finds the end
        return journal

    def _load(self, run: str) -> _Run:
        if not re.fullmatch(r"[0-9a-f]{32}", run) or not self._path(run, "state").exists():
            raise NotNow(f"client {self.client} does not know run {run[:8]!r}")
        state = _Run.unpack((self._path(run) / "state").read_bytes())
        self._guard(state)
        return state

    def _guard(self, state: _Run) -> None:
        """A state from before an answer that left would answer twice: wipe it instead."""
        answered = max(
            (what["answers"] for what, _ in Journal(self._path(state.run) / "answered").records()),
            default=0,
        )
        if answered > state.answers and not state.left:
            self._close(state, "its state was restored from before an answer")
            log.error("run %s: an older state was restored, so this client leaves", state.run[:8])

    def _save(self, state: _Run) -> None:
        write_whole(self._path(state.run) / "state", *state.pack())

    def _close(self, state: _Run, reason: str) -> None:
        """Forget the secrets of a run, keep that it was."""
        state.session, state.reply, state.left = b"", b"", reason
        self._save(state)
        for upload in self._path(state.run).glob("upload*"):
            upload.unlink()
        if state.finished:
            shutil.rmtree(self._path(state.run) / "incoming", ignore_errors=True)

    def _leave(self, asked: Envelope, reason: str) -> bytes:
        log.error("run %s refused: %s", asked.run[:8], reason)
        with suppress(PrivirecError, OSError):
            self._close(self._load(asked.run), reason)
        return self._refusal(asked.run, asked.step, reason, final=True)

    def _session(self, state: _Run) -> ClientSession:
        if not state.session:
            raise NotNow(f"client {self.client} has no session in run {state.run[:8]}")
        return protocol(state.protocol).load_client(
            state.session, self._identity, self._roster, self._secagg_policy(), self._random
        )

    def _secagg_policy(self) -> ClientPolicy:
        mine = self._policy
        return ClientPolicy(
            min_cohort=mine.smallest_cohort,
            corrupt_share=mine.corrupt_share,
            max_dropped_share=mine.largest_dropped_share,
            security_bits=mine.security_bits,
            proven_sums=True,  # by the encodings of `federated`, which are computed here again
        )

    def _cohorts_before(self, state: _Run) -> list[frozenset[int]]:
        """Of all other runs that could be opened."""
        return [frozenset(one) for run, one in self._cohorts().items() if run != state.run]

    def _cohorts(self) -> dict[str, list[int]]:
        try:
            found: dict[str, list[int]] = json.loads((self._runs / "cohorts").read_bytes())
        except FileNotFoundError:
            return {}
        return found

    def _remember(self, state: _Run, cohort: frozenset[int]) -> None:
        """A cohort that had a run before needs no second entry."""
        known = self._cohorts()
        if sorted(cohort) not in known.values():
            known[state.run] = sorted(cohort)
            write_whole(self._runs / "cohorts", json.dumps(known).encode())

    def _reply(
        self,
        state: _Run,
        session: ClientSession,
        asked: Envelope,
        kind: str,
        content: bytes | None,
    ) -> Envelope:
        if content is None:
            raise ReplayedMessage("nothing is left to answer")
        state.session = session.dump()
        return Envelope(kind, state.run, self.client, asked.step, {}, (content,))

    def _seal(self, reply: Envelope) -> bytes:
        return reply.seal(self._identity, "to-server")

    def _refusal(self, run: str, step: int, reason: str, *, final: bool) -> bytes:
        more = {"reason": reason, "final": final}
        return self._seal(Envelope("refused", run, self.client, step, more))


def _digest_of(histories: Interactions) -> str:
    return histories.fingerprint()


def _parts(asked: Envelope, count: int) -> Iterator[bytes]:
    if len(asked.parts) != count:
        raise NotNow(f"a message of {len(asked.parts)} parts where {count} belong")
    return (bytes(part) for part in asked.parts)


def _plan(text: bytes) -> RunPlan:
    try:
        return RunPlan.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise FederationError(f"a plan that cannot be read: {where}: {first['msg']}") from None


def _files(more: dict[str, Any]) -> tuple[list[tuple[str, int]], int]:
    try:
        files = [(str(name), size) for name, size in more["files"]]
        offset = more["offset"]
    except (KeyError, TypeError, ValueError):
        _bad_artifact()
    names = [name for name, _ in files]
    sizes = [offset, *(size for _, size in files)]
    if not set(names) <= set(ARTIFACT_FILES) or len(set(names)) != len(names):
        _bad_artifact()
    if not all(type(size) is int and size >= 0 for size in sizes):
        _bad_artifact()
    if sum(sizes) > 2 * MOST_ARTIFACT_BYTES:
        _bad_artifact()
    return files, offset


def _bad_artifact() -> NoReturn:
    raise NotNow("a piece of an artifact that cannot be")
