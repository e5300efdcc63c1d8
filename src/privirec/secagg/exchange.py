"""Who tells whom what in which order: a protocol's schedule, with the messages of its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from privirec.secagg.messages import Message
from privirec.secagg.parameters import Statement
from privirec.secagg.protocol import Schedule, schedule_against


@dataclass(frozen=True)
class Exchange:
    """The messages of a protocol and their order."""

    name: str
    code: int
    """The protocol's number in announcements and in stored clients."""
    schedule: Schedule
    decode: Callable[[bytes], Message]
    told: tuple[type[Message], ...]
    """What the server tells a client, the announcement first, in the order in which it comes."""
    answers: Mapping[type[Message], str]
    """What a client answers -> the step it belongs to; without the blocks of vectors."""
    active_schedule: Schedule | None = None
    """As in `Protocol`."""

    def schedule_for(self, statement: Statement) -> Schedule:
        """The exchanges of a run under this statement."""
        return schedule_against(statement.server, self.schedule, self.active_schedule)
