"""Why a client does not answer: a code for programs beside the words for people.

That a client refuses tells something as well, so no refusal depends on a question and a history
together (`federated.contributions.ClientContext.contradict`). What is left depends on the question
alone, or on the client alone, whatever it is asked: that something was changed or forgotten, or
that a file cannot be read.
"""

from __future__ import annotations

from enum import StrEnum

from privirec.errors import FederationError


class Code(StrEnum):
    """Stable names of refusals."""

    BAD_MESSAGE = "bad-message"
    """Not signed by the operator, not for this client, or not readable."""
    UNKNOWN_RUN = "unknown-run"
    REPLAYED_RUN = "replayed-run"
    OTHER_VERSION = "other-version"
    OTHER_CATALOGUE = "other-catalogue"
    OTHER_ROSTER = "other-roster"
    HAS_LEFT = "has-left"
    """This client has left the run."""
    TOO_EARLY = "too-early"
    """A step before the one in between was answered."""
    ANSWERED_BEFORE = "answered-before"
    """A second message for a step that was, or is being, answered to another one."""
    NO_UPLOAD = "no-upload"
    BAD_PLAN = "bad-plan"
    BAD_ASK = "bad-ask"
    """Something else than the plan says, or over numbers that cannot be true."""
    BAD_ARTIFACT = "bad-artifact"
    BAD_PLEDGE = "bad-pledge"
    """A plan with a pledge that its client did not make, or that says what cannot be."""
    POLICY = "policy"
    """A computation, an aggregator or a limit of one run."""
    TOO_FEW_PEOPLE = "too-few-people"
    COHORT = "cohort"
    """With sums of earlier runs, this one would set a few people apart."""
    OPENED_TOO_MUCH = "opened-too-much"
    """Sums of this and of earlier runs, from which too much could be solved."""
    AIMED_BLOCK = "aimed-block"
    """A block that lies on single items."""
    BUDGET = "budget"
    """A cost in epsilon beyond what this client allows, or less noise than it counts on."""
    PROTOCOL = "protocol"
    """The aggregation protocol refuses; the words say why."""
    HISTORIES_CHANGED = "histories-changed"
    """In the client's log only: the server hears `OWN_PROBLEM`."""
    STATE_RESTORED = "state-restored"
    """What this client remembers is older than what it has answered, or gone."""
    OWN_PROBLEM = "own-problem"
    """A disk or a file of the client's own; its log says which."""


_ABOUT_THE_QUESTION = {
    *(Code.BAD_MESSAGE, Code.UNKNOWN_RUN, Code.REPLAYED_RUN, Code.OTHER_VERSION),
    *(Code.OTHER_CATALOGUE, Code.OTHER_ROSTER, Code.TOO_EARLY, Code.ANSWERED_BEFORE),
    *(Code.NO_UPLOAD, Code.BAD_PLAN, Code.BAD_PLEDGE, Code.POLICY, Code.PROTOCOL),
    *(Code.TOO_FEW_PEOPLE, Code.COHORT, Code.OPENED_TOO_MUCH, Code.AIMED_BLOCK, Code.BUDGET),
}
"""Whose words say what was asked, what the plan shows and what the policy says; never what is in a
client's histories."""

OF_ITS_OWN = {Code.OWN_PROBLEM, Code.HAS_LEFT, Code.HISTORIES_CHANGED}
"""That somebody changed or forgot something is nobody's business: a full disk sounds the same."""


def for_the_server(client: int, code: Code, reason: str) -> tuple[Code, str]:
    """What the server hears of a refusal; the rest is in the client's log.

    Words that may be about histories, files or what is on the disk, and those of every code that
    nobody has thought about, are replaced by a sentence that is the same for everybody.
    """
    if code in _ABOUT_THE_QUESTION:
        return code, reason
    if code in OF_ITS_OWN:
        return Code.OWN_PROBLEM, f"client {client} has a problem of its own; its log says which"
    return code, f"client {client} refuses ({code.value}); its log says why"


class Refusal(FederationError):
    """A message that is not answered. The run goes on without an answer to it, or, if the refusal
    is final, without this client."""

    def __init__(self, code: Code, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.final = final
