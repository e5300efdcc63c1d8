"""Where a client stands in a run: the one place that knows."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Self

from privirec.runtime.network.run_plan import RunPlan


class Part(StrEnum):
    """A client's part in a run."""

    TAKING = "taking part"
    LEFT = "left"
    FINISHED = "finished"


@dataclass
class ClientRun:
    """All that a client remembers of a run."""

    run: str
    users: int
    histories: str
    """Digest of the histories with which it began."""
    roster: str = ""
    """Digest of the roster with which it began: what it has pledged holds for no other."""
    known: tuple[int, ...] = ()
    """Clients with whom it was in sums of earlier runs, as it has pledged for this one."""
    past: tuple[int, ...] = ()
    """The same, with those with whom it may have been in one."""
    protected: bool = False
    """Whether noise protects every sum: who is in it, and what changed, need no hiding then."""
    period: str = ""
    """Calendar period in which it began; empty where there is no calendar."""
    sent: bool = False
    """Whether something made of the histories may have left."""
    part: Part = Part.TAKING
    why_left: str = ""
    answers: int = 0
    """Answers that have left; never goes down."""
    step: int = -1
    """Step of the schedule that was answered last; -1 after the greeting."""
    answered: str = ""
    """Digest of the message that was answered last."""
    bound: str = ""
    """Digest of the only message that the next step will answer, once there is one."""
    plan_text: str = ""
    participants: tuple[int, ...] = ()
    """Clients in the run, once the protocol has told."""
    cohort: tuple[int, ...] = ()
    """Clients in the sums, once the first was opened."""
    pinned: dict[str, str] = field(default_factory=dict)
    """Digests of public inputs that must not change during the run."""
    spoilt: str = ""
    """What the server claimed that this client's histories show to be false, if it did. The server
    sees nothing of it; the model of such a run is not used."""
    bytes_up: int = 0
    bytes_down: int = 0
    session: bytes = field(default=b"", repr=False)
    """The protocol's state, secrets included."""
    noise_seed: bytes = field(default=b"", repr=False)
    reply: bytes = field(default=b"", repr=False)
    """The last answer; empty where that is an upload."""

    @property
    def plan(self) -> RunPlan:
        return RunPlan.parse(self.plan_text.encode())

    def closed(self, part: Part, why: str) -> Self:
        """The same without its secrets, and with no further part in the run."""
        return replace(self, part=part, why_left=why, session=b"", noise_seed=b"", reply=b"")

    def as_row(self) -> dict[str, Any]:
        """Plain fields, not to be changed; the secrets have columns of their own."""
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
        return cls(**(plain | {"part": Part(plain["part"])} | secrets))


SECRETS = ("session", "noise_seed", "reply")
