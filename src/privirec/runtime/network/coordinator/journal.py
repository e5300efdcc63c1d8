"""What happened in a run, event by event: on the disk before anything follows from it.

A restarted server applies the same events again. Vectors are not among them: clients send the same
bytes again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from privirec.durable import Journal
from privirec.errors import FederationError


class Event(BaseModel):
    """Something that happened; some events have content, such as the bytes of an answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Began(Event):
    """A run has a number. Content: its terms."""

    event: Literal["began"] = "began"
    run: str


class Planned(Event):
    """It is decided who takes part. Content: the plan."""

    event: Literal["planned"] = "planned"


class Answered(Event):
    """A client answered a step. Content: what the protocol says; blocks of uploads are not kept."""

    event: Literal["answered"] = "answered"
    step: int
    client: int


class StepEnded(Event):
    """A step is over for good, and with it who is in: no answer to it counts any more."""

    event: Literal["step-ended"] = "step-ended"
    step: int
    clients: tuple[int, ...]


class Asked(Event):
    """A sum was asked for, with an ask of this digest."""

    event: Literal["asked"] = "asked"
    sum_number: int
    digest: str


class Opened(Event):
    """A sum is open, and on the disk."""

    event: Literal["opened"] = "opened"
    sum_number: int
    clients: tuple[int, ...]
    traffic: dict[int, tuple[int, int]]
    """Client -> bytes up and down so far."""


class Stopped(Event):
    """The run ended without a result."""

    event: Literal["stopped"] = "stopped"
    reason: str
    refusals: str = ""
    """What clients said, for the operator: no client is told another one's words."""


class HandedOut(Event):
    """Every client that could be reached has the model."""

    event: Literal["handed-out"] = "handed-out"


AnyEvent = Began | Planned | Answered | StepEnded | Asked | Opened | Stopped | HandedOut
_EVENTS: TypeAdapter[AnyEvent] = TypeAdapter(Annotated[AnyEvent, Field(discriminator="event")])


class RunJournal:
    """The events of one run, in a file that is only ever added to."""

    def __init__(self, folder: Path) -> None:
        self._journal = Journal(folder / "journal")

    def events(self) -> Iterator[tuple[AnyEvent, bytes]]:
        """All of them, with their content."""
        for plain, content in self._journal.records():
            yield self._read(plain), content

    def add(self, event: AnyEvent, content: bytes = b"") -> None:
        self._journal.add(event.model_dump(mode="json"), content)

    def _read(self, plain: dict[str, Any]) -> AnyEvent:
        try:
            return _EVENTS.validate_python(plain)
        except ValidationError:
            raise FederationError(
                f"{self._journal.path}: written by another version; this run cannot go on"
            ) from None
