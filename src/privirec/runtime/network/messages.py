"""What a server and its clients say to each other, apart from what a protocol says through them.

Every kind of message is a model of its own. What is long, or is for a protocol to read, travels in
*parts* behind it: `EXCHANGE_PARTS` says which parts an exchange has.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from privirec.runtime.network.pledges import Asked, People, Period
from privirec.runtime.network.refusals import Code
from privirec.secagg import Phase
from privirec.secagg.keys import SIGNATURE_BYTES

ARTIFACT_FILES = ("model.safetensors", "manifest.json", "manifest.sig")


def one_line(text: str, most: int = 500) -> str:
    """What somebody else wrote, without line breaks or anything that a terminal would obey."""
    text = text[:most]
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else " " for sign in text)


Words = Annotated[str, AfterValidator(one_line)]
Count = Annotated[int, Field(ge=0, lt=1 << 40)]


class Message(BaseModel):
    """The fields of one message; unknown ones are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: ClassVar[str]


# --- from the server ------------------------------------------------------------------------------


class Hello(Message):
    """Who is there? With what client and server must have in common."""

    kind = "hello"
    version: Words
    catalogue: Words
    items: Count
    roster: Words
    protected: bool
    """Whether noise protects every sum of the run. The plan will show."""


class Exchange(Message):
    """A step of the run: what the protocol says, and what the step needs beside it."""

    kind = "exchange"
    step: Count


class SendBlocks(Message):
    """Send the blocks of an upload, from this one on."""

    kind = "send-blocks"
    step: Count
    first: Count


class ArtifactPiece(Message):
    """A piece of the model's files, which are read as one after the other."""

    kind = "artifact-piece"
    model_config = ConfigDict(strict=False)  # JSON has lists only

    files: tuple[tuple[str, Count], ...]
    offset: Count


class Abort(Message):
    """The run is over without a result."""

    kind = "abort"
    reason: Words


class TurnedAway(Message):
    """The server does not talk to whoever is at this address."""

    kind = "turned-away"
    reason: Words


# --- from a client --------------------------------------------------------------------------------


class Here(Message):
    """A client that takes part, with its pledge; the two sets of that are in the parts."""

    kind = "here"
    model_config = ConfigDict(strict=False)  # JSON has lists only

    users: People
    asks: Asked
    period: Period
    signature: Annotated[str, Field(pattern=f"^[0-9a-f]{{{2 * SIGNATURE_BYTES}}}$")]
    version: Words


class Answer(Message):
    """What the protocol answers in a step."""

    kind = "answer"
    step: Count


class Blocks(Message):
    """Blocks of an upload, from `first` on, of so many in all."""

    kind = "blocks"
    step: Count
    first: Count
    total: Count


class Received(Message):
    """How much of the artifact has arrived."""

    kind = "received"
    offset: Count
    installed: bool


class Goodbye(Message):
    """A client that has heard what it was told last."""

    kind = "goodbye"


class Refused(Message):
    """A message that is not answered; `final` where the client has left the run."""

    kind = "refused"
    code: Code = Field(strict=False)
    reason: Words
    final: bool


FROM_SERVER: dict[str, type[Message]] = {
    kind.kind: kind for kind in (Hello, Exchange, SendBlocks, ArtifactPiece, Abort, TurnedAway)
}
FROM_CLIENT: dict[str, type[Message]] = {
    kind.kind: kind for kind in (Here, Answer, Blocks, Received, Goodbye, Refused)
}

EXCHANGE_PARTS = {
    Phase.SETUP: ("protocol", "plan"),  # the plan in the first step only
    Phase.PREPARATION: ("protocol",),
    Phase.INPUT: ("protocol", "ask"),
    Phase.RECOVERY: ("protocol", "clients"),
}
"""What the parts of an exchange are; "clients" is the map of those in the sum."""
