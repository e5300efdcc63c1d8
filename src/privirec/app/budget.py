"""A client's privacy account: spending run by run, and the remaining budget.

`privirec client budget` and the person's page show it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from privirec.federated.dp.loss import Loss
from privirec.federated.programs.calibration import Promise
from privirec.federated.programs.protected import DEFAULT_EPSILON
from privirec.privacy.accountant import Account, Room, Spent
from privirec.privacy.policy import Policy
from privirec.privacy.worth import at_least, right_guesses, worth
from privirec.runtime.enrolment.folders import ClientFolder
from privirec.runtime.node.memory import TakenPart


@dataclass(frozen=True)
class LimitUse:
    """Use of one limit of the policy, in terms of updates of the usual size."""

    setting: str
    percent: int
    """Part of the budget that was used, rounded up."""
    updates: int
    """Number of further updates that the limit admits."""


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
    spent: dict[str, Loss]
    """Loss that counts against each limit of the policy."""
    opened: float
    """Share of the item-item matrix that exact sums have opened."""
    spoilt: dict[str, str]
    """Runs in which the server made an impossible claim, with that claim."""

    @property
    def uses(self) -> list[LimitUse]:
        """How far each limit is used; budgets add up in squares of levels."""
        found = []
        for limit in self.policy.limits:
            left, whole = self.spent[limit.setting].left(limit.cap), limit.cap.mu
            share = 0.0 if math.isinf(whole) else 1 - (left / whole) ** 2
            percent = math.ceil(100 * share) if self.is_whole else 100
            updates = self.totals["runs"][limit.when] if self.is_whole else 0
            found.append(LimitUse(limit.setting, min(max(percent, 0), 100), updates))
        return found

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
                f"{self.exact} sums had no noise. Nothing limits what such sums give away, so no "
                "figure covers everything. What follows is about the sums with noise alone."
            )
        return said

    def sentences(self, whose: str = "a person's") -> list[str]:
        """Return what was spent, what that is worth to a person, and what is left."""
        said = []
        if self.is_whole and not any(row["sums"] for row in self.rows):
            said.append("Nothing was spent: this client was in no sum yet.")
        for limit in self.policy.limits:
            loss = self.spent[limit.setting]
            shown, second = (
                at_least(one) if math.isfinite(one) else "without bound"
                for one in (loss.epsilon(limit.delta), loss.epsilon_replacing(limit.delta))
            )
            more = "" if self.is_whole else "at least "
            said.append(
                f"Spent {limit.when}: {more}epsilon {shown} of {limit.epsilon:g} ({second} for "
                f"replacing one history by another). "
                f"{worth(loss, whose)} When all of it is spent: at most "
                f"{right_guesses(limit.cap)} of 100."
            )
        return [*said, self._room_in_words()]

    def _room_in_words(self) -> str:
        return f"{self.room_in_words()} ({self.usual_update})."

    @property
    def usual_update(self) -> str:
        return f"an update of the usual size has epsilon {DEFAULT_EPSILON:g}"

    def room_in_words(self) -> str:
        """Return how many more updates fit, or from when on one does; without a full stop."""
        if not self.is_whole:
            return "There is no room for another update"
        if self.totals["room"] >= DEFAULT_EPSILON:
            runs = " and ".join(f"{n:,} {when}" for when, n in self.totals["runs"].items())
            return f"There is room for more updates of the usual size: {runs}"
        again = self.totals["room_returns"]
        if not again:
            return "There is no room for another update of the usual size, and none returns"
        return f"There is no room for an update of the usual size now; there is from {again} on"


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
        totals["room"] = 0.0
    rows = list(_runs(account, taken, policy.delta))
    spent = {limit.setting: limit.spent(account, now) for limit in policy.limits}
    return BudgetStatement(rows, totals, policy, account.exact, is_whole, spent, opened, spoilt)


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
        spent = Account.of(sums)
        yield {
            "at": f"{begun[run]:%Y-%m-%d %H:%M}",
            "run": run[:8],
            "computed": ", ".join(dict.fromkeys(one.computation for one in sums)),
            "sums": len(sums),
            "bytes_up": part.bytes_up if part else None,
            "bytes_down": part.bytes_down if part else None,
            "epsilon": _figure(spent.epsilon(delta)),
            "epsilon_replacing": _figure(
                math.inf if spent.exact else spent.noisy.epsilon_replacing(delta)
            ),
            "server": sums[0].server[:16] if sums else "",
            "state": part.part.value if part else "",
            "why": part.why if part else "",
        }


def _figure(epsilon: float) -> float | str:
    return "none" if math.isinf(epsilon) else float(at_least(epsilon, digits=5))


def _totals(account: Account, policy: Policy, now: datetime) -> dict[str, Any]:
    """Return what was spent of each limit, and the room for further runs."""
    usual = Promise(DEFAULT_EPSILON, policy.delta, 1, 1).mu
    room = Room.of(policy.limits, account, Loss(usual), now)
    found: dict[str, Any] = {
        "delta": policy.delta,
        "exact_sums": account.exact,
        "room": room.epsilon(policy.delta),
        "room_returns": room.day,
        "runs": {
            limit.when: limit.runs(usual, limit.spent(account, now)) for limit in policy.limits
        },
    }
    for limit in policy.limits:
        spent = limit.spent(account, now)
        both = spent.epsilon(policy.delta), spent.epsilon_replacing(policy.delta)
        first, second = ("none" if math.isinf(one) else one for one in both)
        found[limit.setting] = {
            "spent": first,
            "spent_replacing": second,
            "most": limit.epsilon,
        }
    return found
