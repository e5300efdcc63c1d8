"""A client's privacy budget, kept according to `privacy.accountant`.

The client counts every sum before its vector leaves, refuses sums that its policy does not allow,
and checks that the noise it relies on is present.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import datetime
from fractions import Fraction
from typing import Any

from privirec.federated.contributions import REGISTRY, Contribution, PlannedSum
from privirec.federated.dp.loss import FOR_AGGREGATION, Loss
from privirec.privacy.accountant import Account, OverBudget, Room, Spent
from privirec.privacy.cohorts import Rule, refuse
from privirec.privacy.policy import MONTH, Policy
from privirec.privacy.worth import at_least
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

    def check(self, more: Loss) -> None:
        """Refuse sums that cost, all together, more than is left of the budget."""
        if more != Loss():
            self.check_loss(more)

    def spent_in(self, run: str) -> Loss:
        """Return the loss of the sums of a run that this client has answered."""
        sums = (one for one in self.account().sums if one.run == run)
        return Loss.together(one.loss for one in sums if one.loss is not None)

    def check_loss(self, more: Loss) -> None:
        """Refuse sums of this loss if a limit of the policy does not admit them."""
        policy, account, now = self._policy, self.account(), self.now()
        for limit in policy.limits:
            if limit.admits(account, more, now):
                continue
            room = Room.of(policy.limits, account, more, now)
            cost = _shown(more.epsilon(policy.delta))
            asked = f"asked for sums that cost epsilon {cost} (at delta {policy.delta:g})"
            says = f"this client's policy says {limit.setting} = {limit.epsilon:g}"
            if not policy.tells_room:
                raise OverBudget(f"{asked}, more than is left; {says}")
            spent = _shown(limit.spent(account, now).epsilon(policy.delta))
            raise OverBudget(
                f"{asked}, where {spent} were spent {limit.when}; {says}; "
                f"{room.sentence(policy.delta)}",
                room,
            )

    def check_failure(self, plan: RunPlan) -> None:
        """Refuse a run if a failure of secure aggregation is too likely for the promises.

        It counts once for each run, and all runs of a life share the policy's delta.
        """
        runs = {one.run for one in self.account().sums} | {plan.run}
        failure = plan.statement.failure
        for all_runs, delta in ((1, plan.program.delta), (len(runs), self._policy.delta)):
            if failure * all_runs > Fraction(FOR_AGGREGATION) * Fraction(delta):
                refuse(
                    Rule.BUDGET,
                    f"secure aggregation of {plan.spec.security_bits} bits in {all_runs:,} run(s): "
                    f"too little for a delta of {delta:g}; security_bits must be larger",
                )

    def check_hits(self, sums: Iterable[PlannedSum]) -> None:
        """Refuse validation sums beyond the number that the policy allows per period.

        Each of them asks again about people's items, for a model that the server chooses.
        """
        asked = sum(one.kind.counts_hits for one in sums)
        if not asked:
            return
        policy = self._policy
        period = self.account().since(self.now() - MONTH)
        counting = {name for name, kind in REGISTRY.items() if kind.counts_hits}
        before = sum(one.computation in counting for one in period.sums)
        if before + asked > policy.most_validations_per_month:
            refuse(
                Rule.POLICY,
                f"{asked} sums of validation metrics, where {before} were answered within "
                f"{MONTH.days} days; this client's policy says "
                f"most_validations_per_month = {policy.most_validations_per_month}",
            )

    def check_noise(self, plan: RunPlan, clients: int, needed: int) -> None:
        """Refuse a sum over these clients if fewer than `needed` can be relied on for noise."""
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

    def line(self, plan: RunPlan, sum_number: int, ask: Contribution) -> tuple[Any, ...]:
        """Return the row of the record with the cost of this sum."""
        loss = ask.protected.loss if ask.protected else None
        spent = Spent(self.now(), plan.run, sum_number, ask.name, self._server, loss)
        return record.row_of(spent, self._memory.last_seal(), self._identity)


def _shown(epsilon: float) -> str:
    return "without bound" if math.isinf(epsilon) else at_least(epsilon)
