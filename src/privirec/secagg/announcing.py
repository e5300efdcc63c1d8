"""The announcement that begins every run.

The server builds and checks it before sending it; each client checks it on arrival.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from privirec.errors import UsageError
from privirec.secagg.errors import (
    AgreementMismatch,
    MalformedMessage,
    NotInGraph,
    RingTooNarrow,
    RosterMismatch,
    WeakParameters,
    WrongProtocol,
)
from privirec.secagg.keys import RandomBytes, Roster
from privirec.secagg.messages import (
    MAX_BLOCK_ENTRIES,
    MAX_SUMS,
    RUN_BYTES,
    Announce,
    encode,
)
from privirec.secagg.parameters import PPM, Statement
from privirec.secagg.participants import check_cohort
from privirec.secagg.protocol import Agreement, ClientPolicy, MessageOrder, ServerSettings
from privirec.secagg.ring import BLOCK_ALIGNMENT, VectorShape


@dataclass(frozen=True)
class Announcement:
    """An announcement with its encoding and digest, to which later messages are bound."""

    terms: Announce
    raw: bytes
    digest: bytes
    """SHA-256 of `raw`, included in what clients sign and seal."""

    @classmethod
    def of(cls, terms: Announce) -> Announcement:
        raw = encode(terms)
        return cls(terms, raw, hashlib.sha256(raw).digest())

    @classmethod
    def read(cls, raw: bytes, exchange: MessageOrder) -> Announcement:
        """Parse an announcement of a protocol; raise MalformedMessage for anything else."""
        terms = exchange.decode(raw)
        if not isinstance(terms, Announce):
            raise MalformedMessage(f"{type(terms).__name__} is no announcement")
        return cls(terms, raw, hashlib.sha256(raw).digest())


def announce(
    exchange: MessageOrder,
    roster: Roster,
    statement: Statement,
    shapes: Sequence[VectorShape],
    settings: ServerSettings,
    random_bytes: RandomBytes,
) -> Announce:
    """Return the announcement of a run.

    Raise UsageError or RingTooNarrow for settings that no client should accept.
    """
    check_settings(roster, statement, shapes, settings)
    return Announce(
        random_bytes(RUN_BYTES) if settings.run is None else settings.run,
        exchange.code,
        exchange.version,
        statement,
        settings.min_cohort,
        settings.block_entries,
        roster.digest,
        tuple(shapes),
    )


def check_settings(
    roster: Roster, statement: Statement, shapes: Sequence[VectorShape], settings: ServerSettings
) -> None:
    """Raise UsageError or RingTooNarrow for a run that no client should accept."""
    if settings.run is not None and len(settings.run) != RUN_BYTES:
        raise UsageError(f"the number of a run has {RUN_BYTES} bytes, not {len(settings.run)}")
    if not 1 <= len(shapes) <= MAX_SUMS or statement.rounds != len(shapes):
        raise UsageError(f"{statement.rounds} sums are stated and {len(shapes)} described")
    if statement.clients != len(roster):
        raise UsageError(f"{statement.clients} clients are stated, the roster has {len(roster)}")
    entries = settings.block_entries
    if not 0 < entries <= MAX_BLOCK_ENTRIES or entries % BLOCK_ALIGNMENT:
        raise UsageError(f"blocks have a multiple of {BLOCK_ALIGNMENT} entries, not {entries}")
    for shape in shapes:
        _check_room(shape, len(roster))


def check_announcement(
    terms: Announce, exchange: MessageOrder, client: int, roster: Roster, policy: ClientPolicy
) -> None:
    """Raise a ProtocolError for an announcement that this client must refuse.

    The announcement must be addressed to this client, match what was agreed on and satisfy the
    client's policy.
    """
    if terms.protocol != exchange.code:
        raise WrongProtocol(f"protocol {terms.protocol} is not {exchange.name}")
    statement = terms.statement
    if terms.roster != roster.digest or statement.clients != len(roster):
        raise RosterMismatch("the announced roster is not the one this client knows")
    if client not in roster:
        raise NotInGraph(f"client {client} is not in the roster")
    if policy.agreement is not None:
        _check_agreement(terms, policy.agreement)
    check_cohort(statement.clients, policy, terms.min_cohort)
    if statement.dropped_ppm > round(policy.max_dropped_share * PPM):
        raise WeakParameters(
            f"{statement.dropped_ppm} of a million clients may drop out, where this client "
            f"accepts {round(policy.max_dropped_share * PPM)}"
        )
    if exchange.active_schedule and not statement.server.at_least(policy.server):
        raise WeakParameters(
            f"the server is assumed to be {statement.server}, where this client insists on "
            f"{policy.server}"
        )
    for shape in terms.shapes:
        if shape.bounds_sum and not policy.proven_sums:
            raise RingTooNarrow("a bound on the sum that this client has no proof of")
        _check_room(shape, statement.clients)


def _check_agreement(terms: Announce, agreed: Agreement) -> None:
    """Raise AgreementMismatch if the announcement differs from the terms agreed on beforehand."""
    compared = {
        "run": terms.run == agreed.run,
        "assumptions": terms.statement == agreed.statement,
        "vectors": terms.shapes == agreed.shapes,
        "size of blocks": terms.block_entries == agreed.block_entries,
    }
    for what, same in compared.items():
        if not same:
            raise AgreementMismatch(f"the announced {what}: not what was agreed on")


def _check_room(shape: VectorShape, clients: int) -> None:
    if not shape.holds(clients):
        raise RingTooNarrow(
            f"{clients} entries of magnitude {shape.bound} can overflow {shape.width} bits"
        )
