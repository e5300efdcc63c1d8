"""Queues of messages to clients, and of their answers to the server.

The run uses one thread, and clients' requests another; every method may be called from both.
Answers may be large and many, so most of their bytes are kept in files. A run gets such a file as
it is, mapped into memory: a vector is written once and added from there. These files are not
durable: if the server's process ends, the run asks the clients again for answers that are lost.
"""

from __future__ import annotations

import math
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from privirec.durable import mapped, private_folder
from privirec.runtime import envelope
from privirec.runtime.coordinator.clients import Address
from privirec.runtime.enrolment.roster import RosterFile
from privirec.runtime.envelope import Sealed
from privirec.runtime.https.limits import Limits
from privirec.runtime.https.signing import Request, message_number

MOST_WAITING = 4
"""Largest number of queued messages per client; above it the oldest is dropped."""
SMALL = 1 << 16
"""Largest answer that may be kept in memory, in bytes."""
PAUSE = 0.1
"""Seconds between two polls for answers."""
LOOK_FOR_EXPIRED = 1.0


class BadRange(Exception):
    """A range of an answer that does not continue the bytes received so far."""

    def __init__(self, received: int) -> None:
        super().__init__(f"{received} bytes are there")
        self.received = received


class NoRoom(Exception):
    """The disk has no space for an answer."""


class BadAnswer(Exception):
    """An answer that does not match the seal that its client announced."""


@dataclass
class Upload:
    """An answer, complete or in part."""

    seal: tuple[bytes, bytes]
    """Digest and signature of the whole answer, as its client announced them."""
    total: int
    file: Path | None
    """File that holds it; None if it is in memory."""
    received: int = 0
    content: bytearray = field(default_factory=bytearray)

    @property
    def in_memory(self) -> int:
        """Bytes of memory reserved for it."""
        return self.total if self.file is None else 0

    def add(self, part: bytes) -> None:
        if self.file is None:
            self.content += part
        else:
            how = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            with open(os.open(self.file, how, 0o600), "wb") as file:
                file.write(part)
        self.received += len(part)

    def whole(self) -> Sealed:
        """Return the complete answer: the bytes in memory, or the file itself."""
        return bytes(self.content) if self.file is None else mapped(self.file)

    def drop(self) -> None:
        if self.file is not None:
            self.file.unlink(missing_ok=True)
        self.content = bytearray()


@dataclass
class Waiting:
    """A message that a client has not answered yet."""

    number: str
    content: bytes
    since: float
    answer: Upload | None = None


@dataclass
class _Box:
    waiting: deque[Waiting] = field(default_factory=deque)
    seen: float = -math.inf
    answered: float = 0.0
    """Time of the client's last answer, of the run's start, or of its first appearance."""


class Mailbox:
    """Messages and answers of all clients; `HttpsCarrier` is a run's view of it."""

    def __init__(
        self, folder: Path, limits: Limits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits = limits
        self.running = False
        """True during a run."""
        self.roster: RosterFile | None = None
        """Roster of the present run."""
        self._folder = private_folder(folder)
        for left in self._folder.iterdir():
            left.unlink()  # left by an earlier process
        self._clock = clock
        self._lock = threading.Lock()
        self._boxes: dict[int, _Box] = {}
        self._arrived: deque[tuple[int, Upload]] = deque()
        self._in_memory = 0
        self._files = 0
        self._present = 0

    # --- the run's side ---------------------------------------------------------------------------

    def begin(self, roster: RosterFile | None = None) -> None:
        """Begin a run with this roster; discard messages and answers of an earlier one."""
        with self._lock:
            self._clear()
            self.running, self.roster = True, roster
            for box in self._boxes.values():
                box.answered = self._clock()

    def end(self) -> None:
        with self._lock:
            self._clear()
            self.running, self.roster = False, None

    def connected(self) -> set[int]:
        """Return the clients with a recent request; see `Limits.present_for`."""
        with self._lock:
            since = self._clock() - self.limits.present_for(self._present, running=self.running)
            found = {n for n, box in self._boxes.items() if box.seen >= since}
            self._present = len(found)
            return found

    def send(self, client: int, message: bytes) -> None:
        number = message_number(message)
        with self._lock:
            box = self._box(client)
            if any(one.number == number for one in box.waiting):
                return  # already queued
            if len(box.waiting) == MOST_WAITING:
                self._drop(box.waiting.popleft())
            box.waiting.append(Waiting(number, message, self._clock()))

    def answers(self) -> Iterator[tuple[int, Sealed]]:
        """Yield each complete answer once, with its client; its file is gone when it is freed."""
        while True:
            with self._lock:
                if not self._arrived:
                    return
                client, answer = self._arrived.popleft()
                self._in_memory -= answer.in_memory
            whole = answer.whole()
            answer.drop()
            yield client, whole

    def expired(self, seconds: float) -> list[int]:
        """Drop messages unanswered for `seconds`; return the client of each of them."""
        found = []
        with self._lock:
            before = self._clock() - seconds
            for client, box in self._boxes.items():
                while box.waiting and box.waiting[0].since < before:
                    self._drop(box.waiting.popleft())
                    found.append(client)
        return found

    def is_idle(self) -> bool:
        with self._lock:
            return not self._arrived and not any(box.waiting for box in self._boxes.values())

    # --- the clients' side ------------------------------------------------------------------------

    def seen(self, client: int) -> None:
        """Record a request of this client."""
        with self._lock:
            self._box(client).seen = self._clock()

    def first(self, client: int) -> Waiting | None:
        """Return the message that a client is to answer next, or None."""
        with self._lock:
            waiting = self._boxes[client].waiting if client in self._boxes else ()
            return waiting[0] if waiting else None

    def find(self, client: int, number: str) -> Waiting | None:
        with self._lock:
            return self._find(client, number)

    def pause(self, client: int) -> float:
        """Return the seconds until an idle client polls again; see `Limits.pause`."""
        with self._lock:
            box = self._boxes.get(client)
            waited = self._clock() - box.answered if box else 0.0
        return self.limits.pause(self._present, waited, running=self.running)

    def put(
        self, request: Request, number: str, total: int, offset: int, part: bytes
    ) -> Upload | None:
        """Store a range of the answer to a message; return None if that answer is not awaited.

        Raises BadRange if the range does not continue the bytes received so far, BadAnswer if the
        complete answer does not match its seal, and NoRoom if the disk is full.
        """
        client, seal = request.client, (request.digest, request.signature)
        with self._lock:
            waiting = self._find(client, number)
            if waiting is None:
                return None
            answer = waiting.answer
            if answer is None or (answer.seal, answer.total) != (seal, total):
                for one in self._boxes[client].waiting:
                    self._drop(one)  # a client uploads one answer at a time, from its start
                answer = waiting.answer = Upload(seal, total, self._place(total))
                self._in_memory += answer.in_memory
            if offset != answer.received or offset + len(part) > total:
                raise BadRange(answer.received)
            try:
                self._check_room(answer, part)
                answer.add(part)
            except (OSError, NoRoom) as error:
                self._drop(waiting)
                raise NoRoom(str(error)) from None
            if answer.received == total:
                if envelope.seal_of(answer.whole()) != seal:
                    self._drop(waiting)
                    raise BadAnswer("not what was announced")
                self._boxes[client].waiting.remove(waiting)
                self._boxes[client].answered = self._clock()
                self._arrived.append((client, answer))
            return answer

    def received(self, client: int, number: str, digest: bytes) -> int | None:
        """Return the bytes received of an answer, or None if that answer is not awaited."""
        with self._lock:
            waiting = self._find(client, number)
            if waiting is None:
                return None
            answer = waiting.answer
            return answer.received if answer is not None and answer.seal[0] == digest else 0

    # --- inside, under the lock -------------------------------------------------------------------

    def _box(self, client: int) -> _Box:
        if client not in self._boxes:
            self._boxes[client] = _Box(answered=self._clock())
        return self._boxes[client]

    def _find(self, client: int, number: str) -> Waiting | None:
        box = self._boxes.get(client)
        return next((one for one in box.waiting if one.number == number), None) if box else None

    def _place(self, total: int) -> Path | None:
        if total <= SMALL and self._in_memory + total <= self.limits.in_memory:
            return None
        self._files += 1
        return self._folder / str(self._files)

    def _check_room(self, answer: Upload, part: bytes) -> None:
        if answer.file is not None:
            free = shutil.disk_usage(self._folder).free
            if free < len(part) + self.limits.room:
                raise NoRoom(f"{free} bytes are free")

    def _drop(self, waiting: Waiting) -> None:
        if waiting.answer is not None:
            self._in_memory -= waiting.answer.in_memory
            waiting.answer.drop()
            waiting.answer = None

    def _clear(self) -> None:
        for box in self._boxes.values():
            for waiting in box.waiting:
                self._drop(waiting)
            box.waiting.clear()
        for _, answer in self._arrived:
            self._in_memory -= answer.in_memory
            answer.drop()
        self._arrived.clear()


class HttpsCarrier:
    """Carrier over the mailbox; an address is the number of a client."""

    def __init__(self, mailbox: Mailbox, time_to_live: float) -> None:
        """Initialise; a message without an answer is dropped after `time_to_live` seconds."""
        self._mailbox = mailbox
        self._time_to_live = time_to_live
        self._looked = 0.0

    @property
    def largest_reply(self) -> int:
        return self._mailbox.limits.largest_answer

    def connected(self) -> Collection[Address]:
        return self._mailbox.connected()

    def send(self, address: Address, message: bytes) -> bool:
        self._mailbox.send(int(str(address)), message)
        return True

    def arrivals(self) -> Iterator[tuple[Address, Sealed | None]]:
        yield from self._mailbox.answers()
        if (now := time.monotonic()) - self._looked >= LOOK_FOR_EXPIRED:
            self._looked = now
            for client in self._mailbox.expired(self._time_to_live):
                yield client, None

    def is_idle(self) -> bool:
        return self._mailbox.is_idle()

    def rest(self) -> None:
        time.sleep(PAUSE)
