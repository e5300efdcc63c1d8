"""The journal of a run: every event is on the disk before it takes effect.

A restarted server applies the same events again. Uploaded vectors are not recorded, since clients
send the same bytes again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from privirec.durable import Journal
from privirec.errors import FederationError


class Event(BaseModel):
    """An event of a run. Some events have content, such as the bytes of an answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Began(Event):
    """The run got its number. Content: its terms."""

    event: Literal["began"] = "began"
    run: str


class Planned(Event):
    """The participants were decided. Content: the plan."""

    event: Literal["planned"] = "planned"


class Answered(Event):
    """A client answered a step. Content: the protocol's message; upload blocks are not kept."""

    event: Literal["answered"] = "answered"
    step: int
    client: int


class StepEnded(Event):
    """A step ended, which fixes its clients; later answers to it do not count."""

    event: Literal["step-ended"] = "step-ended"
    step: int
    clients: tuple[int, ...]


class Asked(Event):
    """A sum was requested; `digest` is the digest of the request."""

    event: Literal["asked"] = "asked"
    sum_number: int
    digest: str


class SumOpened(Event):
    """A sum was opened and is on the disk."""

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
    """Clients' reasons, for the operator only; no client is told the words of another."""


class HandedOut(Event):
    """Every client that could be reached has the model."""

    event: Literal["handed-out"] = "handed-out"


AnyEvent = Began | Planned | Answered | StepEnded | Asked | SumOpened | Stopped | HandedOut
_EVENTS: TypeAdapter[AnyEvent] = TypeAdapter(Annotated[AnyEvent, Field(discriminator="event")])


class RunJournal:
    """The events of one run in an append-only file."""

    def __init__(self, folder: Path) -> None:
        self._journal = Journal(folder / "journal")

    def events(self) -> Iterator[tuple[AnyEvent, bytes]]:
        """Yield all events with their content."""
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
