"""Reasons why a client does not answer: a code for programs and a text for people.

A refusal reveals something by itself. No refusal therefore depends on a request and a history
together (`federated.contributions.ClientContext.contradict`). It depends on the request alone, or
on the client alone whatever the request: something was changed or forgotten, or a file cannot be
read.
"""

from __future__ import annotations

from enum import StrEnum

from privirec.errors import FederationError


class Code(StrEnum):
    """Stable names of refusals."""

    BAD_MESSAGE = "bad-message"
    """Message that is unreadable, not for this client, or not signed by the server."""
    UNKNOWN_RUN = "unknown-run"
    REPLAYED_RUN = "replayed-run"
    OTHER_VERSION = "other-version"
    OTHER_CATALOGUE = "other-catalogue"
    OTHER_ROSTER = "other-roster"
    HAS_LEFT = "has-left"
    """Client that has left the run."""
    TOO_EARLY = "too-early"
    """Step that is requested before the preceding one was answered."""
    ANSWERED_BEFORE = "answered-before"
    """Different message for a step that was answered, or is being answered, to another message."""
    NO_UPLOAD = "no-upload"
    BAD_PLAN = "bad-plan"
    BAD_ASK = "bad-ask"
    """Request that deviates from the plan or contains impossible numbers."""
    BAD_ARTIFACT = "bad-artifact"
    BAD_PLEDGE = "bad-pledge"
    """Plan with a pledge that its client did not make, or that is inconsistent."""
    POLICY = "policy"
    """Computation or aggregator that the policy forbids, or excess of a limit per run."""
    TOO_FEW_PEOPLE = "too-few-people"
    COHORT = "cohort"
    """Sum that, combined with sums of earlier runs, would single out a few people."""
    OPENED_TOO_MUCH = "opened-too-much"
    """Sums of this and earlier runs that together would reveal too much."""
    AIMED_BLOCK = "aimed-block"
    """Block that is aimed at single items."""
    BUDGET = "budget"
    """Cost in epsilon above the client's limit, or less noise than it relies on."""
    PROTOCOL = "protocol"
    """Refusal by the aggregation protocol; the text gives the reason."""
    HISTORIES_CHANGED = "histories-changed"
    """Changed histories. Only the client's log shows this code; the server sees `OWN_PROBLEM`."""
    STATE_RESTORED = "state-restored"
    """Memory of the client that is missing, altered, or older than its answers."""
    OWN_PROBLEM = "own-problem"
    """Problem with the client's own disk or files; its log has the details."""


_ABOUT_THE_QUESTION = {
    *(Code.BAD_MESSAGE, Code.UNKNOWN_RUN, Code.REPLAYED_RUN, Code.OTHER_VERSION),
    *(Code.OTHER_CATALOGUE, Code.OTHER_ROSTER, Code.TOO_EARLY, Code.ANSWERED_BEFORE),
    *(Code.NO_UPLOAD, Code.BAD_PLAN, Code.BAD_PLEDGE, Code.POLICY, Code.PROTOCOL),
    *(Code.TOO_FEW_PEOPLE, Code.COHORT, Code.OPENED_TOO_MUCH, Code.AIMED_BLOCK, Code.BUDGET),
}
"""Codes whose text mentions only the request, the plan and the policy, never histories."""

OF_ITS_OWN = {Code.OWN_PROBLEM, Code.HAS_LEFT, Code.HISTORIES_CHANGED}
"""Codes about private matters.

The server sees OWN_PROBLEM for all of them, so that a changed or deleted history looks like a full
disk.
"""


def for_the_server(client: int, code: Code, reason: str) -> tuple[Code, str]:
    """Return the code and text of a refusal as the server sees them; the log has the rest.

    A text that may mention histories, files or the state of the disk is replaced by a generic
    sentence. So is the text of every code that is not known to be safe.
    """
    if code in _ABOUT_THE_QUESTION:
        return code, reason
    if code in OF_ITS_OWN:
        return Code.OWN_PROBLEM, f"client {client} has a problem of its own; its log says which"
    return code, f"client {client} refuses ({code.value}); its log says why"


class Refusal(FederationError):
    """A refusal to answer a message.

    The run goes on without this answer, or without this client if the refusal is final.
    """

    def __init__(self, code: Code, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.final = final
