"""Communication: the paper's formulas in floats, and the bytes that really travel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from privirec.federated.programs import FederatedSettings, paper
from privirec.runtime.plan import plan
from privirec.workflows.published import COST_EMBEDDING, COST_EPOCHS, COST_RANK, COST_ROUNDS


@dataclass(frozen=True)
class Sizes:
    """What is counted for."""

    users: int
    items: int
    low_pass_rank: int = 256
    """k_1: the low-pass filter of PriviRec."""
    rank: int = COST_RANK
    """k_2: the low-rank matrix of PriviRec-k."""
    rounds: int = COST_ROUNDS
    """L."""
    ring_bits: int = 32
    item_item_entries: int | None = None
    """Non-zeros of P~, where the data is at hand."""


def formula_rows(sizes: Sizes) -> list[dict[str, Any]]:
    """The dominant terms of the paper's table, in floats."""
    items, users, rounds, rank = sizes.items, sizes.users, sizes.rounds, sizes.rank
    terms = {
        "PriviRec": ("|I|^2", items**2),
        "PriviRec-k": ("L k2 |I|", rounds * rank * items),
        "federated GCN or MF": (
            "e k3 (|I| + n)",
            COST_EPOCHS * COST_EMBEDDING * (items + users),
        ),
    }
    return [
        {
            "method": method,
            "formula": formula,
            "floats_per_client": floats,
            "floats_server": floats * users,
        }
        for method, (formula, floats) in terms.items()
    ]


def byte_rows(sizes: Sizes) -> list[dict[str, Any]]:
    """Bytes up and down, per client and through the server, for each way to run it."""
    shared = {"rounds": sizes.rounds, "ring_bits": sizes.ring_bits}
    variants: dict[str, FederatedSettings] = {
        "PriviRec, paper": paper("privirec", sizes.low_pass_rank, **shared),
        "PriviRec": FederatedSettings(method="privirec", rank=sizes.low_pass_rank, **shared),
        "PriviRec, S_k by the server": FederatedSettings(
            method="privirec", rank=sizes.low_pass_rank, low_pass_from="server", **shared
        ),
        "PriviRec-k, paper": paper("privirec-k", sizes.rank, **shared),
        "PriviRec-k": FederatedSettings(method="privirec-k", rank=sizes.rank, **shared),
    }
    rows: list[dict[str, Any]] = []
    for name, settings in variants.items():
        ledger = plan(settings, sizes.users, sizes.items, sizes.item_item_entries)
        rows.append(
            {
                "method": name,
                "users": sizes.users,
                "items": sizes.items,
                "rank": settings.rank,
                "rounds": settings.rounds,
                "ring_bits": sizes.ring_bits,
                "sums": sum(entry.entries > 0 for entry in ledger.entries),
                "bytes_up_per_client": ledger.bytes_up,
                "bytes_down_per_client": ledger.bytes_down,
                "bytes_server_receives": ledger.bytes_up * sizes.users,
                "bytes_server_sends": ledger.bytes_down * sizes.users,
            }
        )
    saved = rows[1]["bytes_up_per_client"] - rows[2]["bytes_up_per_client"]
    rows[2]["bytes_up_saved_per_client"] = saved
    return rows
