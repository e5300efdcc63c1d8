"""The state of a client in a run, kept in this one place."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Self


class Participation(StrEnum):
    """Participation of a client in a run."""

    TAKING = "taking part"
    LEFT = "left"
    FINISHED = "finished"


@dataclass
class ClientRun:
    """State that a client remembers of a run."""

    run: str
    users: int
    histories: str
    """Digest of the histories at the beginning of the run."""
    roster: str = ""
    """Digest of the roster at the beginning of the run; the pledge is valid for no other."""
    known: tuple[int, ...] = ()
    """Clients it shared sums with in earlier runs, as pledged for this run."""
    past: tuple[int, ...] = ()
    """Clients it may have shared sums with; a superset of `known`."""
    protected: bool = False
    """True if noise protects every sum; participants and changes then need no hiding."""
    period: str = ""
    """Calendar period in which the run began; empty if there is no calendar."""
    sent: bool = False
    """True if data derived from the histories may have left."""
    part: Participation = Participation.TAKING
    why_left: str = ""
    answers: int = 0
    """Number of answers that have left; never decreases."""
    step: int = -1
    """Last step of the schedule that was answered; -1 after the greeting."""
    answered: str = ""
    """Digest of the last message that was answered."""
    bound: str = ""
    """Digest of the only message that the next step may answer; empty until one is bound."""
    plan_text: str = ""
    participants: tuple[int, ...] = ()
    """Clients in the run, once the protocol has named them."""
    cohort: tuple[int, ...] = ()
    """Clients in the sums, once the first sum was opened."""
    pinned: dict[str, str] = field(default_factory=dict)
    """Digests of public inputs that must not change during the run."""
    spoilt: str = ""
    """First claim of the server that this client's histories disprove; empty if there is none.

    The server does not learn about it. The model of such a run is not used.
    """
    vector_bytes: int = 0
    """Bytes of the vectors of the sums that it has answered."""
    bytes_up: int = 0
    bytes_down: int = 0
    session: bytes = field(default=b"", repr=False)
    """State of the protocol, including secrets."""
    noise_seed: bytes = field(default=b"", repr=False)
    reply: bytes = field(default=b"", repr=False)
    """Last answer; empty if it is an upload."""

    def closed(self, part: Participation, why: str) -> Self:
        """Return this state without its secrets; the client takes no further part in the run."""
        return replace(self, part=part, why_left=why, session=b"", noise_seed=b"", reply=b"")

    def as_row(self) -> dict[str, Any]:
        """Return the plain fields, which must not be modified; secrets have their own columns."""
        return {name: value for name, value in vars(self).items() if name not in SECRETS}

    @classmethod
    def from_row(cls, plain: dict[str, Any], secrets: dict[str, bytes]) -> Self:
        plain = {
            entry.name: tuple(plain[entry.name])
            if isinstance(plain[entry.name], list)
            else plain[entry.name]
            for entry in fields(cls)
            if entry.name not in SECRETS
        }
        return cls(**(plain | {"part": Participation(plain["part"])} | secrets))


SECRETS = ("session", "noise_seed", "reply")
