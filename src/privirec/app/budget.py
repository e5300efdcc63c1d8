"""A client's privacy account: spending run by run, and the remaining budget.

`privirec client budget` and the person's page show it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_FLOOR, Context
from pathlib import Path
from typing import Any

from privirec.federated.dp.gaussian import LARGEST_EPSILON, mu_of
from privirec.federated.dp.loss import Loss
from privirec.privacy.accountant import Account, Spent
from privirec.privacy.policy import Policy
from privirec.privacy.worth import at_least
from privirec.runtime.enrolment.folders import ClientFolder
from privirec.runtime.node.memory import TakenPart

_LIMITS = ("most_epsilon", "most_epsilon_per_period")


@dataclass(frozen=True)
class BudgetStatement:
    """A client's account in a form for its owner."""

    rows: list[dict[str, Any]]
    """One row per run, the earliest first."""
    totals: dict[str, Any]
    """Spent and remaining epsilon for each limit of the policy."""
    policy: Policy
    exact: int
    """Number of sums that no noise protects."""
    is_whole: bool
    """False if the record was restored from a backup, so that more was spent than it shows."""
    opened: float
    """Share of the item-item matrix that exact sums have opened."""
    spoilt: dict[str, str]
    """Runs in which the server made an impossible claim, with that claim."""

    @property
    def warnings(self) -> list[str]:
        said = []
        if not self.is_whole:
            said.append(
                "This record is older than the client's last answer: it was restored from a "
                "backup, and more was spent than it says. The client takes part in no run with it."
            )
        if self.exact:
            said.append(
                f"{self.exact} sums were exact: nothing bounds what they tell, so there is no "
                "epsilon for all together. What follows is of the sums with noise alone."
            )
        return said

    @property
    def sentences(self) -> list[str]:
        said = []
        if self.is_whole and not any(row["sums"] for row in self.rows):
            said.append("Nothing was spent: this client was in no sum yet.")
        for what, setting in (
            ("in this client's life", "most_epsilon"),
            (f"within {self.policy.days_per_period} days", "most_epsilon_per_period"),
        ):
            found = self.totals[setting]
            spent = found["spent"]
            said.append(
                f"Spent {what}: {'' if self.is_whole else 'at least '}"
                + (
                    f"epsilon {at_least(spent)}"
                    if isinstance(spent, float)
                    else "more than any epsilon"
                )
                + f" of {found['most']:g}; room for a run of epsilon {_at_most(found['room'])}."
            )
        return said


def statement_of(folder: Path) -> BudgetStatement:
    """Return the statement of a client's folder; needs neither a server nor a roster."""
    home = ClientFolder(folder)
    policy = Policy.load(folder / "policy.toml")
    _ = home.identity  # Raises an error if this is not a client's folder.
    account, now, is_whole = Account(), datetime.now(UTC), True
    taken: list[TakenPart] = []
    opened, spoilt = 0.0, dict[str, str]()
    if not home.is_new:
        with closing(home.memory()) as memory:
            kept = home.budget(memory)
            account, now = kept.account(), kept.now()
            is_whole = not memory.is_older()
            taken, opened, spoilt = memory.taken_part(), memory.opened_share(), memory.spoilt()
    totals = _totals(account, policy, now) | {"whole": is_whole}
    if not is_whole:
        for setting in _LIMITS:
            totals[setting]["room"] = 0.0
    rows = list(_runs(account, taken, policy.delta))
    return BudgetStatement(rows, totals, policy, account.exact, is_whole, opened, spoilt)


def _runs(account: Account, taken: Sequence[TakenPart], delta: float) -> Iterator[dict[str, Any]]:
    """Yield a row for every run that the client was in, including runs without sums."""
    sums_of: dict[str, list[Spent]] = {}
    for one in account.sums:
        sums_of.setdefault(one.run, []).append(one)
    known = {part.run: part for part in taken}
    begun = {part.run: datetime.fromisoformat(part.begun) for part in taken}
    begun |= {run: sums[0].at for run, sums in sums_of.items()}
    for run in sorted(begun, key=begun.__getitem__):
        sums, part = sums_of.get(run, []), known.get(run)
        epsilon = Account.of(sums).epsilon(delta)
        yield {
            "at": f"{begun[run]:%Y-%m-%d %H:%M}",
            "run": run[:8],
            "computed": ", ".join(dict.fromkeys(one.computation for one in sums)),
            "sums": len(sums),
            "bytes_up": part.bytes_up if part else None,
            "bytes_down": part.bytes_down if part else None,
            "epsilon": "none" if math.isinf(epsilon) else float(at_least(epsilon, digits=5)),
            "server": sums[0].server[:16] if sums else "",
            "state": part.part.value if part else "",
            "why": part.why if part else "",
        }


def _at_most(epsilon: float) -> str:
    """Return epsilon rounded down to three digits, after adding the tolerance of `_room`."""
    rounded = Context(prec=3, rounding=ROUND_FLOOR).create_decimal(epsilon * (1 + 1e-6))
    return f"{float(rounded):.3g}"


def _totals(account: Account, policy: Policy, now: datetime) -> dict[str, Any]:
    period = account.since(now - timedelta(days=policy.days_per_period))
    found: dict[str, Any] = {"delta": policy.delta, "exact_sums": account.exact}
    for setting, loss in (
        ("most_epsilon", account.noisy),
        ("most_epsilon_per_period", period.noisy),
    ):
        most, spent = getattr(policy, setting), loss.epsilon(policy.delta)
        found[setting] = {
            "spent": "none" if math.isinf(spent) else spent,
            "most": most,
            "room": _room(loss, most, policy.delta),
        }
    room = min(found[setting]["room"] for setting in _LIMITS)
    for setting in _LIMITS:  # A run has to stay within both limits.
        found[setting]["room"] = room
    return found


def _room(spent: Loss, most: float, delta: float) -> float:
    """Return the largest epsilon of one more run that the client would accept within `most`."""
    low, high = 0.0, mu_of(min(most, LARGEST_EPSILON), delta)
    for _ in range(50):
        middle = (low + high) / 2
        fits = Loss.together((spent, Loss(middle))).epsilon(delta) <= most
        low, high = (middle, high) if fits else (low, middle)
    return Loss(low).epsilon(delta)
