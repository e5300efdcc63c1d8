"""Budgets over several runs: what each run may cost, and what to expect after it."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from privirec.errors import UsageError
from privirec.federated.dp.gaussian import DEFAULT_DELTA, delta_for, root_downward
from privirec.federated.dp.loss import Loss
from privirec.federated.programs.calibration import Promise
from privirec.federated.programs.protected import Protected, ProtectedSettings
from privirec.privacy.accountant import Room
from privirec.privacy.policy import Policy
from privirec.privacy.worth import at_least, right_guesses
from privirec.runtime.spec import Assumptions

USUAL_EPSILONS = (0.5, 1.0, 2.0, 3.0, 4.0, 8.0)
MONTHS = 12
COMBINED = 0.8
"""Sums of n runs together are worth about as much as one run with the budget of n to this power;
see docs/results/later-runs.md."""


def run_rows(
    runs: int,
    total: float,
    users: int,
    items: int,
    *,
    delta: float | None = None,
    assumptions: Assumptions | None = None,
) -> list[dict[str, Any]]:
    """Return a row for each of several runs that share a budget equally.

    Expected is what follows from all sums so far together (`COMBINED`).
    """
    at = delta or delta_for(users)
    cap = Loss.allowed(total, at)
    level = root_downward(Fraction(cap.mu) ** 2 / runs)
    epsilon = Room(level).epsilon(at)
    if not epsilon:
        raise UsageError(f"epsilon {total:g} is too little for {runs} runs")
    each = Promise(epsilon, at, 1, 1).mu
    contributors = (assumptions or Assumptions()).contributors(users)
    rows, spent = [], Loss()
    for number in range(1, runs + 1):
        spent = Loss.together((spent, Loss(each)))
        together = spent.epsilon(at)
        worth = Loss(each * math.sqrt(number**COMBINED))
        settings = ProtectedSettings(
            epsilon=worth.epsilon(at), delta=at, clients=users, contributors=contributors
        )
        rows.append(
            {
                "run": number,
                "epsilon": epsilon,
                "epsilon_together": together,
                "delta": at,
                "right_guesses": right_guesses(spent),
                "expected": Protected(settings, users, items).expected,
            }
        )
    return rows


def lifetime_rows(policy: Policy | None = None) -> list[dict[str, Any]]:
    """Return how often a policy (None: the default one) admits runs of each usual epsilon."""
    policy = policy or Policy()
    life, year = policy.limits
    rows = []
    for epsilon in USUAL_EPSILONS:
        level = Promise(epsilon, DEFAULT_DELTA, 1, 1).mu
        a_year, in_all = year.runs(level), life.runs(level)
        rows.append(
            {
                "epsilon": epsilon,
                "right_guesses": right_guesses(Loss(level)),
                "runs_a_month": a_year // MONTHS if a_year >= MONTHS else a_year / MONTHS,
                "runs_a_year": a_year,
                "runs_in_a_life": in_all,
                "years": in_all / min(a_year, MONTHS) if a_year else 0.0,
            }
        )
    return rows


def shortened(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows for display: epsilon rounded up, and how often and how long rounded down."""

    def shown(name: str, value: Any) -> Any:
        if not isinstance(value, float):
            return value
        if name.startswith("epsilon"):
            return at_least(value)
        return f"{math.floor(10 * value) / 10:g}" if value >= 0.1 else f"{value:.1g}"

    return [{name: shown(name, value) for name, value in row.items()} for row in rows]
