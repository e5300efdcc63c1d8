"""What a run will send, before anybody sends anything.

The same entries in the same order as the ledger of the run itself; a test holds the two equal.
"""

from __future__ import annotations

from dataclasses import dataclass

from privirec.federated.contributions import ItemDegrees
from privirec.federated.programs import FederatedSettings
from privirec.privacy.ledger import Entry, Ledger

BROADCAST_ENTRY = 4
"""Bytes of an entry of a broadcast matrix, and of a released filter."""


@dataclass(frozen=True)
class PlannedSum:
    """The shape of one secure sum: all that has to be agreed before the run."""

    name: str
    length: int
    ring_bits: int
    signed: bool
    broadcast_bytes: int

    def as_entry(self) -> Entry:
        n_bytes = -(-self.length * self.ring_bits // 8)
        return Entry(
            self.name, self.length, self.ring_bits, 0, n_bytes, self.broadcast_bytes, "server"
        )


def planned_sums(settings: FederatedSettings, n_users: int, n_items: int) -> list[PlannedSum]:
    """The sums of a run, in order."""
    degree_bits = ItemDegrees(n_items, n_users).encoding.width
    sums = [PlannedSum("item-degrees", n_items, degree_bits, False, 0)]
    bits = settings.ring_bits
    if settings.method == "privirec":
        sums.append(PlannedSum("item-item", n_items * (n_items + 1) // 2, bits, False, 8))
        if not settings.rank or settings.low_pass_from == "server":
            return sums
    entries = n_items * settings.rank
    first = PlannedSum("seeded-step", entries, bits, True, 32)
    if settings.start == "users":
        rows = n_users * settings.rank * BROADCAST_ENTRY
        first = PlannedSum("user-start", entries, bits, True, rows)
    step = PlannedSum("power-step", entries, bits, True, entries * BROADCAST_ENTRY)
    return [*sums, first, *[step] * (settings.rounds - 1)]


def plan(
    settings: FederatedSettings,
    n_users: int,
    n_items: int,
    item_item_entries: int | None = None,
) -> Ledger:
    """The ledger of a run. `item_item_entries`: stored non-zeros of P~, where they are known;
    otherwise the released matrix counts as its dense triangle."""
    sums = [planned.as_entry() for planned in planned_sums(settings, n_users, n_items)]
    filters = n_items * settings.rank * BROADCAST_ENTRY
    if settings.method == "privirec-k":
        filters += BROADCAST_ENTRY * settings.rank
    elif item_item_entries is None:
        filters += n_items * (n_items + 1) // 2 * BROADCAST_ENTRY
    else:
        # Values and column numbers, and where each row starts.
        filters += 8 * item_item_entries + 4 * (n_items + 1)
    degrees = _down("item-degrees", 4 * n_items)
    return Ledger([sums[0], degrees, *sums[1:], _down("filters", filters)])


def _down(name: str, n_bytes: int) -> Entry:
    return Entry(name, 0, 0, 0, 0, n_bytes, "every client")
