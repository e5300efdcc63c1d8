"""Every way the protocol says no, one name each. None of the messages carries a secret.

A *refusal* means that the other side asked for something unsafe: the session that raises it wipes
its secrets and answers nothing more. *Noise* is what networks do to messages (duplicates, wrong
order, damage): the session is unchanged by it, and the carrier may drop the message and go on.
"""

from __future__ import annotations

from typing import ClassVar

from privirec.errors import FederationError


class ProtocolError(FederationError):
    """Base of everything secure aggregation raises because of a message or a statement."""

    fatal: ClassVar[bool] = True


class ParametersInfeasible(ProtocolError):
    """No number of neighbours and threshold satisfies the statement."""


# --- noise: the message is dropped, the session goes on -------------------------------------------


class MalformedMessage(ProtocolError):
    """Bytes that are not a canonical message of this protocol."""

    fatal = False


class TruncatedMessage(MalformedMessage):
    """A message that ends before its fields do."""


class OversizedMessage(MalformedMessage):
    """A message longer than its fields, or than any message may be."""


class WrongVersion(MalformedMessage):
    """A message of another protocol version."""


class WrongRun(ProtocolError):
    """A message of another run, or from or to somebody else."""

    fatal = False


class ReplayedMessage(ProtocolError):
    """A message that was answered before: a duplicate or a replay."""

    fatal = False


class OutOfOrder(ProtocolError):
    """A message that belongs to another stage: too early or too late."""

    fatal = False


class SecondUnmask(ReplayedMessage):
    """The same survivors of one round, asked for a second time."""


class SecondInput(ProtocolError):
    """A second contribution under the masks of one round."""

    fatal = False


# --- refusals: the session ends -------------------------------------------------------------------


class OtherAsk(ProtocolError):
    """A sum about something else than its clients were told before they agreed on its masks."""


class SessionClosed(ProtocolError):
    """The session refused or aborted before, and its secrets are gone."""


class WipedSecret(SessionClosed):
    """A secret that is gone was asked for: the session ended, or the round was answered."""


class BadDump(ProtocolError):
    """Stored state that is damaged, or of another version, protocol, client or roster."""


class CohortTooSmall(ProtocolError):
    """Fewer clients than the statement or the client's policy asks for."""


class WrongProtocol(ProtocolError):
    """An announcement of another protocol than the client was started for."""


class AgreementMismatch(ProtocolError):
    """An announcement that differs from what the client was promised by other means."""


class WeakParameters(ProtocolError):
    """Fewer neighbours or a lower threshold than the client computes itself."""


class RosterMismatch(ProtocolError):
    """A cohort or a roster that is not the one the client knows."""


class NotInGraph(ProtocolError):
    """The client is missing from the graph it is asked to join."""


class GraphNotRegular(ProtocolError):
    """A neighbourhood that does not have exactly k members."""


class GraphNotSymmetric(ProtocolError):
    """A neighbour that has not got this client for a neighbour in the public graph."""


class KeysNotInGraph(ProtocolError):
    """A graph that was drawn without the keys of this client: it could have been known before."""


class BadSignature(ProtocolError):
    """Keys, or survivors, that are not signed by the identity in the roster."""


class BadKey(ProtocolError):
    """A public key that no honest client sends."""


class BadShare(ProtocolError):
    """Encrypted shares that do not authenticate, or shares that do not fit together."""


class RingTooNarrow(ProtocolError):
    """A ring in which the number of clients times the bound could wrap round."""


class Stranger(ProtocolError):
    """A list names somebody who takes no part, or shares no secrets with this client."""


class SecondSurvivorSet(ProtocolError):
    """Another set of survivors for a round that was answered."""


class CohortChanged(ProtocolError):
    """A later round with other clients than the first: the difference would show single clients."""


class BelowThreshold(ProtocolError):
    """Too few clients are left; nothing is opened."""


class TooManyDropped(BelowThreshold):
    """More clients dropped than the statement allows for; nothing is opened."""


class Unconfirmed(BelowThreshold):
    """Somebody whose vector is in the sum has not confirmed who else is; nothing is opened."""


class BrokenUpload(ProtocolError):
    """A client stopped in the middle of an upload that was added as it came."""


class BadContribution(ProtocolError):
    """A client's own numbers do not have the announced length or exceed the announced bound."""
