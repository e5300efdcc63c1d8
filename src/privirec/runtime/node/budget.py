"""A client's privacy budget, kept according to `privacy.accountant`.

The client counts every sum before its vector leaves, refuses sums that its policy does not allow,
and checks that the noise it relies on is present.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from privirec.federated.contributions import REGISTRY, PlannedSum
from privirec.federated.dp.loss import Loss
from privirec.privacy.accountant import Account, Spent
from privirec.privacy.cohorts import Rule, refuse
from privirec.privacy.policy import Policy
from privirec.runtime.node import record
from privirec.runtime.node.memory import Memory
from privirec.runtime.refusals import Code, Refusal
from privirec.runtime.run_plan import RunPlan
from privirec.secagg import Guarantee, protocol
from privirec.secagg.keys import Identity


class Budget:
    """Privacy budget of one client over its lifetime."""

    def __init__(
        self,
        identity: Identity,
        own_keys: tuple[bytes, ...],
        policy: Policy,
        memory: Memory,
        server_key: bytes,
        clock: Callable[[], datetime],
    ) -> None:
        self._identity = identity
        self._own_keys = own_keys
        self._policy = policy
        self._memory = memory
        self._server = server_key.hex()
        self._clock = clock

    def account(self) -> Account:
        """Return everything spent so far; refuse if the record is not as this client wrote it."""
        try:
            return record.account_of(self._memory.spent(), self._own_keys)
        except record.BadRecord as error:
            raise Refusal(Code.STATE_RESTORED, str(error), final=True) from None

    def now(self) -> datetime:
        """Return the current time, but never a time before the last entry.

        Setting the clock back therefore restores no budget.
        """
        latest = self.account().latest
        return max(self._clock(), latest) if latest else self._clock()

    def check(self, sums: Iterable[PlannedSum]) -> None:
        """Refuse these sums if they cost, all together, more than is left of the budget."""
        promised = [one.protection for one in sums]
        more = Loss.together(one.loss for one in promised if one)
        if not any(promised):
            return
        policy, account = self._policy, self.account()
        period = account.since(self.now() - timedelta(days=policy.days_per_period))
        for spent, what, setting in (
            (account, "in the life of this client", "most_epsilon"),
            (period, f"within {policy.days_per_period} days", "most_epsilon_per_period"),
        ):
            limit = getattr(policy, setting)
            before, after = spent.noisy, Loss.together((spent.noisy, more))
            if after.epsilon(policy.delta) > limit:
                refuse(
                    Rule.BUDGET,
                    f"sums that cost epsilon {_shown(more.epsilon(policy.delta))}, where "
                    f"{_shown(before.epsilon(policy.delta))} were spent {what} and "
                    f"{_shown(after.epsilon(policy.delta))} would be (at delta {policy.delta:g}); "
                    f"this client's policy says {setting} = {limit:g}",
                )

    def check_hits(self, sums: Iterable[PlannedSum]) -> None:
        """Refuse validation sums beyond the number that the policy allows per period.

        Each of them asks again about people's items, for a model that the server chooses.
        """
        asked = sum(one.kind.counts_hits for one in sums)
        if not asked:
            return
        policy = self._policy
        period = self.account().since(self.now() - timedelta(days=policy.days_per_period))
        counting = {name for name, kind in REGISTRY.items() if kind.counts_hits}
        before = sum(one.computation in counting for one in period.sums)
        if before + asked > policy.most_validations_per_period:
            refuse(
                Rule.POLICY,
                f"{asked} sums of validation metrics, where {before} were answered within "
                f"{policy.days_per_period} days; this client's policy says "
                f"most_validations_per_period = {policy.most_validations_per_period}",
            )

    def check_noise(self, plan: RunPlan, clients: int) -> None:
        """Refuse a sum over this many clients if too few of them can be relied on for noise."""
        needed = max(
            (one.protection.contributors for one in plan.sums if one.protection), default=0
        )
        # Every client sees the model and knows its own noise, so at least one does not count.
        corrupt = max(1, plan.statement.corrupt)
        counted = max(1, clients - corrupt)  # this client's own noise always counts
        if protocol(plan.spec.aggregator).guarantee is not Guarantee.CRYPTOGRAPHIC:
            counted = 1  # the server sees what each client sends: its own noise is all it has
        if counted < needed:
            refuse(
                Rule.BUDGET,
                f"noise of which {needed} clients must keep their part to themselves, where "
                f"{counted} can be counted on: {clients} are in the sum, and "
                f"{corrupt} of the roster may be corrupt",
            )

    def line(self, plan: RunPlan, sum_number: int) -> tuple[Any, ...]:
        """Return the row of the record with the cost of this sum."""
        planned = plan.sums[sum_number - 1]
        loss = planned.protection.loss if planned.protection else None
        spent = Spent(self.now(), plan.run, sum_number, planned.name, self._server, loss)
        return record.row_of(spent, self._memory.last_seal(), self._identity)


def _shown(epsilon: float) -> str:
    return "without bound" if math.isinf(epsilon) else f"{epsilon:.3g}"
