"""Errors of the protocols, one class per reason. No error message contains a secret.

A *refusal* means that the other side asked for something unsafe. The session that raises it wipes
its secrets and answers nothing more. *Noise* is what networks do to messages: duplicates, wrong
order, damage. It leaves the session unchanged, and the carrier may drop the message and go on.
"""

from __future__ import annotations

from typing import ClassVar

from privirec.errors import FederationError


class ProtocolError(FederationError):
    """Base class of errors that a message or a statement causes in secure aggregation."""

    fatal: ClassVar[bool] = True


class ParametersInfeasible(ProtocolError):
    """No number of neighbours and threshold satisfies the statement."""


# --- noise: drop the message and continue the session ---------------------------------------------


class MalformedMessage(ProtocolError):
    """Bytes that are not a canonical message of this protocol."""

    fatal = False


class TruncatedMessage(MalformedMessage):
    """A message that ends before its last field."""


class OversizedMessage(MalformedMessage):
    """A message that is longer than its fields, or longer than the limit for all messages."""


class WrongVersion(MalformedMessage):
    """A message of another protocol version."""


class WrongRun(ProtocolError):
    """A message of another run, or with another sender or receiver."""

    fatal = False


class ReplayedMessage(ProtocolError):
    """A message that was already answered: a duplicate or a replay."""

    fatal = False


class OutOfOrder(ProtocolError):
    """A message of another stage, too early or too late."""

    fatal = False


class SecondUnmask(ReplayedMessage):
    """A repeated request to unmask a sum with the same survivors."""


class SecondInput(ProtocolError):
    """A second contribution under the masks of one sum."""

    fatal = False


# --- refusals: the session ends -------------------------------------------------------------------


class OtherAsk(ProtocolError):
    """A sum that asks for something else than its clients agreed on when they made its masks."""


class SessionClosed(ProtocolError):
    """The session has ended after a refusal or an abort, and its secrets are wiped."""


class WipedSecret(SessionClosed):
    """A request for a wiped secret: the session has ended or the sum was answered."""


class BadDump(ProtocolError):
    """Stored state that is damaged or belongs to another version, protocol, client or roster."""


class CohortTooSmall(ProtocolError):
    """Fewer clients than the statement or the client's policy requires."""


class WrongProtocol(ProtocolError):
    """An announcement of another protocol than the one the client was started for."""


class AgreementMismatch(ProtocolError):
    """An announcement that differs from the terms that the client agreed on beforehand."""


class WeakParameters(ProtocolError):
    """Weaker parameters than the client computes itself or its policy accepts."""


class RosterMismatch(ProtocolError):
    """A cohort or roster that differs from the one the client knows."""


class NotInGraph(ProtocolError):
    """The client is missing from the graph it is asked to join."""


class GraphNotRegular(ProtocolError):
    """A neighbourhood that does not have exactly k members."""


class GraphNotSymmetric(ProtocolError):
    """A neighbour that does not have this client as a neighbour in the public graph."""


class KeysNotInGraph(ProtocolError):
    """A graph drawn without the keys of this client; the server could have known it in advance."""


class BadSignature(ProtocolError):
    """Keys or survivors that the identity in the roster has not signed."""


class BadKey(ProtocolError):
    """A public key that no honest client sends."""


class BadShare(ProtocolError):
    """Encrypted shares that fail authentication, or shares that contradict each other."""


class RingTooNarrow(ProtocolError):
    """A ring in which the number of clients times the bound could overflow."""


class Stranger(ProtocolError):
    """A list that names a client that does not take part or shares no secrets with this client."""


class SecondSurvivorSet(ProtocolError):
    """Another set of survivors for a sum that was already answered."""


class CohortChanged(ProtocolError):
    """A later sum over other clients than the first; the difference would expose single ones."""


class BelowThreshold(ProtocolError):
    """Too few clients remain; nothing is opened."""


class TooManyDropped(BelowThreshold):
    """More clients dropped out than the statement allows; nothing is opened."""


class Unconfirmed(BelowThreshold):
    """A client in the sum has not confirmed the list of survivors; nothing is opened."""


class BadContribution(ProtocolError):
    """A client's own vector has the wrong length or exceeds the announced bound."""
