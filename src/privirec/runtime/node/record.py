"""The record of a client's spending: one row per sum, each sealed with the client's key.

A seal is the client's signature over the row and the previous seal. Without the client's key, no
row can be changed, added, moved or removed among the others. Missing rows at the end are detected
by the note of the last answer (`memory`), which counts rows. Rows from before a rotation stay
sealed by the key of their time, which the roster vouches for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from privirec.errors import FederationError
from privirec.federated.dp.loss import Loss
from privirec.privacy.accountant import Account, Spent
from privirec.secagg.errors import BadSignature
from privirec.secagg.keys import Identity, verify

_LABEL = b"privirec-spent\x01"

SCHEMA = """
CREATE TABLE spent (
    number INTEGER PRIMARY KEY, at TEXT NOT NULL, run TEXT NOT NULL, sum INTEGER NOT NULL,
    computation TEXT NOT NULL, server TEXT NOT NULL, mu REAL, gap REAL, replacing REAL,
    seal BLOB NOT NULL
);
"""
COLUMNS = "at, run, sum, computation, server, mu, gap, replacing, seal"


class BadRecord(FederationError):
    """A record that is not as this client wrote it."""


def row_of(spent: Spent, before: bytes, identity: Identity) -> tuple[Any, ...]:
    """Return a sealed row in the order of COLUMNS; `before` is the seal of the previous row."""
    plain = _plain(spent)
    return *plain, identity.sign(_sealed(plain, before))


def account_of(rows: Iterable[Sequence[Any]], keys: Sequence[bytes]) -> Account:
    """Return the account in these rows, in order.

    Raise BadRecord unless they were written by the client that has had these keys, oldest first.
    """
    return Account.of(_read(rows, keys))


def _read(rows: Iterable[Sequence[Any]], keys: Sequence[bytes]) -> Iterator[Spent]:
    before, key = b"", 0
    for place, (*plain, seal) in enumerate(rows, start=1):
        sealed = _sealed(plain, before)
        while key < len(keys) and not _is_signed(keys[key], bytes(seal), sealed):
            key += 1
        if key == len(keys):
            raise BadRecord(
                f"line {place} of this client's record of what it has spent is not as it wrote it"
            )
        before = bytes(seal)
        at, run, number, computation, server, mu, gap, replacing = plain
        loss = None if mu is None else Loss(mu, gap, replacing)
        yield Spent(datetime.fromisoformat(at), run, number, computation, server, loss)


def _is_signed(key: bytes, signature: bytes, message: bytes) -> bool:
    try:
        verify(key, signature, message, 0)
    except BadSignature:
        return False
    return True


def _plain(spent: Spent) -> tuple[Any, ...]:
    one = spent.loss
    loss = (one.mu, one.gap, one.replacing) if one else (None, None, None)
    at = spent.at.isoformat(timespec="seconds")
    return at, spent.run, spent.sum_number, spent.computation, spent.server, *loss


def _sealed(plain: Sequence[Any], before: bytes) -> bytes:
    # JSON writes numbers in full, so it reads back the same values.
    return _LABEL + before + json.dumps(list(plain)).encode()
