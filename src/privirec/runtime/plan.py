"""What a run will send, before anybody sends anything.

The same entries in the same order as the ledger of the run itself; a test holds the two equal.
"""

from __future__ import annotations

from privirec.federated.contributions import ItemDegrees
from privirec.federated.programs import FederatedSettings
from privirec.runtime.ledger import Entry, Ledger

BROADCAST_ENTRY = 4
"""Bytes of an entry of a broadcast matrix, and of a released filter."""


def plan(
    settings: FederatedSettings,
    n_users: int,
    n_items: int,
    item_item_entries: int | None = None,
) -> Ledger:
    """The ledger of a run. `item_item_entries`: stored non-zeros of P~, where they are known;
    otherwise the released matrix counts as its dense triangle."""
    ledger = Ledger()
    ledger.add_sum(ItemDegrees(n_items, n_users))
    ledger.entries.append(_down("item-degrees", 4 * n_items))
    low_rank = n_items * settings.rank * BROADCAST_ENTRY
    if settings.method == "privirec":
        entries = n_items * (n_items + 1) // 2
        ledger.entries.append(_sum("item-item", entries, settings.ring_bits, 8))
        filters = entries * BROADCAST_ENTRY
        if item_item_entries is not None:
            # Values and column numbers, and where each row starts.
            filters = 8 * item_item_entries + 4 * (n_items + 1)
        ledger.entries.extend(_power(settings, n_users, n_items))
        ledger.entries.append(_down("filters", filters + low_rank))
    else:
        ledger.entries.extend(_power(settings, n_users, n_items))
        ledger.entries.append(_down("filters", low_rank + BROADCAST_ENTRY * settings.rank))
    return ledger


def _power(settings: FederatedSettings, n_users: int, n_items: int) -> list[Entry]:
    if not settings.rank or (settings.method == "privirec" and settings.low_pass_from == "server"):
        return []
    entries = n_items * settings.rank
    first = ("seeded-step", 32)
    if settings.start == "users":
        first = ("user-start", n_users * settings.rank * BROADCAST_ENTRY)
    step = ("power-step", entries * BROADCAST_ENTRY)
    return [
        _sum(name, entries, settings.ring_bits, down)
        for name, down in [first, *[step] * (settings.rounds - 1)]
    ]


def _sum(name: str, entries: int, ring_bits: int, down: int) -> Entry:
    return Entry(name, entries, ring_bits, 0, -(-entries * ring_bits // 8), down, "server")


def _down(name: str, n_bytes: int) -> Entry:
    return Entry(name, 0, 0, 0, 0, n_bytes, "every client")
