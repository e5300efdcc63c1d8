"""Messages between a server and its clients, apart from the content of the protocol's messages.

Every kind of message has its own model. Long content, and content for a protocol, travels in
*parts* after it; `EXCHANGE_PARTS` lists the parts of an exchange.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from privirec.runtime.pledges import DemandNumbers, People, Period
from privirec.runtime.refusals import Code
from privirec.secagg import Phase
from privirec.secagg.keys import SIGNATURE_BYTES

ARTIFACT_FILES = ("model.safetensors", "manifest.json", "manifest.sig")


def one_line(text: str, most: int = 500) -> str:
    """Return text from others without line breaks or terminal control characters."""
    text = text[:most]
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else " " for sign in text)


Words = Annotated[str, AfterValidator(one_line)]
Day = Annotated[str, Field(pattern=r"^([0-9]{4}-[0-9]{2}-[0-9]{2})?$")]
Count = Annotated[int, Field(ge=0, lt=1 << 40)]


class Message(BaseModel):
    """Fields of one message; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Message]]]
    """All messages in this direction by their kind."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_given: Any) -> None:
        if "kind" in vars(cls):
            cls.kinds[cls.kind] = cls


class FromServer(Message):
    """A message to a client: sent by `Coordinator`, handled in `Node`."""

    kinds = {}


class FromClient(Message):
    """A message to the server: sent by `Node`, handled in `Arrivals`."""

    kinds = {}


# --- from the server ------------------------------------------------------------------------------


class Hello(FromServer):
    """Greeting of the server, with the values that client and server must share."""

    kind = "hello"
    version: Words
    catalogue: Words
    items: Count
    roster: Words
    protected: bool
    """True if noise protects every sum of the run. The client checks this against the plan."""
    level: float = Field(0.0, ge=0)
    """Level (`dp.gaussian`) that the run is going to cost a person at most, for an early refusal.
    The plan decides."""


class Exchange(FromServer):
    """A step of the run, with the protocol's message and the other inputs of the step as parts."""

    kind = "exchange"
    step: Count


class SendVector(FromServer):
    """Request for the vector of an earlier step, which a restarted server has lost."""

    kind = "send-vector"
    step: Count


class ArtifactPiece(FromServer):
    """A piece of the model's files, which are treated as one concatenated stream."""

    kind = "artifact-piece"
    model_config = ConfigDict(strict=False)  # JSON has lists, not tuples

    files: tuple[tuple[str, Count], ...]
    offset: Count


class Abort(FromServer):
    """Notice that the run ended without a result."""

    kind = "abort"
    reason: Words


class TurnedAway(FromServer):
    """Notice that the server refuses to talk to this address."""

    kind = "turned-away"
    reason: Words


class GoBack(FromServer):
    """Request to use an earlier model again, which the client has installed before.

    It belongs to no run. A later request has a larger number.
    """

    kind = "go-back"
    model: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """Hash of the model's manifest."""
    number: Count


# --- from a client --------------------------------------------------------------------------------


class Here(FromClient):
    """A client's announcement that it takes part, with its pledge.

    The two sets of the pledge are in the parts.
    """

    kind = "here"
    model_config = ConfigDict(strict=False)  # JSON has lists, not tuples

    users: People
    demands: DemandNumbers
    period: Period
    signature: Annotated[str, Field(pattern=f"^[0-9a-f]{{{2 * SIGNATURE_BYTES}}}$")]
    version: Words


class Answer(FromClient):
    """The protocol's answer in a step."""

    kind = "answer"
    step: Count


class Vector(FromClient):
    """A client's vector in an input step: its packed entries are the only part."""

    kind = "vector"
    step: Count


class Received(FromClient):
    """Bytes of the artifact received so far, and whether it is installed."""

    kind = "received"
    offset: Count
    installed: bool


class Goodbye(FromClient):
    """A client's acknowledgement of the server's last message to it."""

    kind = "goodbye"


class Refused(FromClient):
    """A client's refusal to answer a message. If `final`, the client has left the run."""

    kind = "refused"
    code: Code = Field(strict=False)
    reason: Words
    final: bool
    room: float | None = Field(None, ge=0)
    """Largest level (`dp.gaussian`) of a run that this client could still pay for; None if it does
    not refuse for its budget, or does not tell."""
    returns: Day = ""
    """First day on which it could pay for this run; empty if never, or if it does not tell."""


EXCHANGE_PARTS = {
    Phase.SETUP: ("protocol", "plan"),  # the plan only in the first step
    Phase.PREPARATION: ("protocol",),
    Phase.INPUT: ("protocol", "ask"),
    Phase.RECOVERY: ("protocol", "clients"),
}
"""Parts of an exchange by phase; "clients" is the bit map of the clients in the sum."""
