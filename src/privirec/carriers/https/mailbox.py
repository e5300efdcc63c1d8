"""Messages that wait for clients, and answers that wait for the server.

The run has one thread, the requests of clients another; every method may be called from both.
Answers may be large and many, so that all but little of them lies in files. They are no journal:
a client whose answer is lost with the server's process is asked again.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from privirec.carriers.https.limits import Limits
from privirec.carriers.https.signing import message_number
from privirec.durable import private_folder
from privirec.runtime.network.coordinator.clients import Address

MOST_WAITING = 4
"""Messages to one client; of more the oldest is dropped."""
SMALL = 1 << 16
"""Bytes of an answer that may be kept in memory."""
PAUSE = 0.1
"""Seconds between two looks for answers."""
LOOK_FOR_EXPIRED = 1.0


class BadRange(Exception):
    """A range of an answer that does not follow what is there."""

    def __init__(self, received: int) -> None:
        super().__init__(f"{received} bytes are there")
        self.received = received


class NoRoom(Exception):
    """The disk has no room for an answer."""


class BadAnswer(Exception):
    """An answer that is not what its client announced."""


@dataclass
class Answer:
    """An answer as far as it has arrived."""

    digest: str
    """SHA-256 of all of it, as the client says."""
    total: int
    file: Path | None
    """Where it is kept, if not in memory."""
    received: int = 0
    content: bytearray = field(default_factory=bytearray)

    @property
    def in_memory(self) -> int:
        """Bytes of memory that are set aside for it."""
        return self.total if self.file is None else 0

    def add(self, part: bytes) -> None:
        if self.file is None:
            self.content += part
        else:
            how = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            with open(os.open(self.file, how, 0o600), "wb") as file:
                file.write(part)
        self.received += len(part)

    def take(self) -> bytes:
        """All of it; it is kept no longer."""
        whole = bytes(self.content) if self.file is None else self.file.read_bytes()
        self.drop()
        return whole

    def is_whole(self) -> bool:
        """Whether it is what was announced."""
        if self.file is None:
            return hashlib.sha256(self.content).hexdigest() == self.digest
        with self.file.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == self.digest

    def drop(self) -> None:
        if self.file is not None:
            self.file.unlink(missing_ok=True)
        self.content = bytearray()


@dataclass
class Waiting:
    """A message that a client has not answered."""

    number: str
    content: bytes
    since: float
    answer: Answer | None = None


@dataclass
class _Box:
    waiting: deque[Waiting] = field(default_factory=deque)
    seen: float = -math.inf
    answered: float = 0.0
    """When its last answer was there, or the run began, or it came."""


class Mailbox:
    """Of all clients. What a run sees of it is a `Carrier`: see `HttpsCarrier`."""

    def __init__(
        self, folder: Path, limits: Limits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits = limits
        self.running = False
        """Whether there is a run."""
        self._folder = private_folder(folder)
        for left in self._folder.iterdir():
            left.unlink()  # of a process that has ended
        self._clock = clock
        self._lock = threading.Lock()
        self._boxes: dict[int, _Box] = {}
        self._arrived: deque[tuple[int, Answer]] = deque()
        self._in_memory = 0
        self._files = 0
        self._present = 0

    # --- the run's side ---------------------------------------------------------------------------

    def begin(self) -> None:
        """A run begins: what an earlier one left is of no use to it."""
        with self._lock:
            self._clear()
            self.running = True
            for box in self._boxes.values():
                box.answered = self._clock()

    def end(self) -> None:
        with self._lock:
            self._clear()
            self.running = False

    def connected(self) -> set[int]:
        """Clients that were there a moment ago."""
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
                return  # it is on its way
            if len(box.waiting) == MOST_WAITING:
                self._drop(box.waiting.popleft())
            box.waiting.append(Waiting(number, message, self._clock()))

    def answers(self) -> Iterator[tuple[int, bytes]]:
        """Those that are complete, each once."""
        while True:
            with self._lock:
                if not self._arrived:
                    return
                client, answer = self._arrived.popleft()
                self._in_memory -= answer.in_memory
            yield client, answer.take()

    def expired(self, seconds: float) -> list[int]:
        """Clients that have not answered a message for so long; it is dropped."""
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
        """This client was here just now."""
        with self._lock:
            self._box(client).seen = self._clock()

    def first(self, client: int) -> Waiting | None:
        """The message that a client is to answer next."""
        with self._lock:
            waiting = self._boxes[client].waiting if client in self._boxes else ()
            return waiting[0] if waiting else None

    def find(self, client: int, number: str) -> Waiting | None:
        with self._lock:
            return self._find(client, number)

    def pause(self, client: int) -> float:
        """Seconds after which a client with nothing to do asks again: the longer ago it was last
        asked something, the longer."""
        with self._lock:
            box = self._boxes.get(client)
            waited = self._clock() - box.answered if box else 0.0
        return self.limits.pause(self._present, waited, running=self.running)

    def put(
        self, client: int, number: str, digest: str, total: int, offset: int, part: bytes
    ) -> Answer | None:
        """Take a range of the answer to a message. None if nobody waits for it; raises BadRange
        where it does not follow what is there, BadAnswer where the whole is not what was
        announced, NoRoom where the disk is full."""
        with self._lock:
            waiting = self._find(client, number)
            if waiting is None:
                return None
            answer = waiting.answer
            if answer is None or (answer.digest, answer.total) != (digest, total):
                for one in self._boxes[client].waiting:
                    self._drop(one)  # a client sends one answer at a time, from its beginning
                answer = waiting.answer = Answer(digest, total, self._place(total))
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
                if not answer.is_whole():
                    self._drop(waiting)
                    raise BadAnswer("not what was announced")
                self._boxes[client].waiting.remove(waiting)
                self._boxes[client].answered = self._clock()
                self._arrived.append((client, answer))
            return answer

    def received(self, client: int, number: str, digest: str) -> int | None:
        """How much of an answer is there; None if nobody waits for it."""
        with self._lock:
            waiting = self._find(client, number)
            if waiting is None:
                return None
            answer = waiting.answer
            return answer.received if answer is not None and answer.digest == digest else 0

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

    def _check_room(self, answer: Answer, part: bytes) -> None:
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
    """The mailbox as a run sees it; an address is the number of a client."""

    def __init__(self, mailbox: Mailbox, time_to_live: float) -> None:
        """`time_to_live`: seconds after which a message without an answer is given up."""
        self._mailbox = mailbox
        self._time_to_live = time_to_live
        self._looked = 0.0

    def connected(self) -> Collection[Address]:
        return self._mailbox.connected()

    def send(self, address: Address, message: bytes) -> bool:
        self._mailbox.send(int(str(address)), message)
        return True

    def arrivals(self) -> Iterator[tuple[Address, bytes | None]]:
        yield from self._mailbox.answers()
        if (now := time.monotonic()) - self._looked >= LOOK_FOR_EXPIRED:
            self._looked = now
            for client in self._mailbox.expired(self._time_to_live):
                yield client, None

    def is_idle(self) -> bool:
        return self._mailbox.is_idle()

    def rest(self) -> None:
        time.sleep(PAUSE)
