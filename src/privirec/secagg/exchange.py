"""The schedule of a protocol together with the message types of its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from privirec.secagg.messages import Message
from privirec.secagg.parameters import Statement
from privirec.secagg.protocol import Schedule, schedule_against


@dataclass(frozen=True)
class Exchange:
    """Message types of a protocol and their order."""

    name: str
    code: int
    """Number of the protocol in announcements and in stored clients."""
    schedule: Schedule
    decode: Callable[[bytes], Message]
    told: tuple[type[Message], ...]
    """Messages from the server to a client in order of arrival, the announcement first."""
    answers: Mapping[type[Message], str]
    """Type of a client's answer -> step it belongs to; excludes the blocks of vectors."""
    active_schedule: Schedule | None = None
    """Schedule against an active server; see `Protocol`."""

    def schedule_for(self, statement: Statement) -> Schedule:
        """Return the schedule of a run under this statement."""
        return schedule_against(statement.server, self.schedule, self.active_schedule)
