"""A client's part in `privacy.cohorts`: its own pledge, and its check of every sum.

The client pledges what it remembers, and judges sums by the pledges of all clients. It remembers
clients by lasting names instead of numbers, because a number whose key is replaced may stand for
another client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from privirec.errors import FederationError
from privirec.privacy import cohorts
from privirec.privacy.cohorts import WHAT_TO_DO, Pledge
from privirec.privacy.policy import Policy
from privirec.runtime.messages import Here
from privirec.runtime.node.memory import Memory
from privirec.runtime.node.run_state import ClientRun
from privirec.runtime.pledges import BadPledge, SignedPledge
from privirec.runtime.refusals import Code, Refusal
from privirec.runtime.run_plan import RunPlan
from privirec.secagg.keys import Identity, Roster
from privirec.version import __version__


class CohortGuard:
    """Maker of one client's pledges, and checker of the pledges of all."""

    def __init__(
        self,
        client: int,
        identity: Identity,
        roster: Roster,
        policy: Policy,
        memory: Memory,
        lineages: Mapping[int, str] | None = None,
    ) -> None:
        """Set up for one client.

        `lineages` maps clients to their lasting names, which matters once keys were rotated. A
        client without an entry is known by its key.
        """
        self._client = client
        self._identity = identity
        self._roster = roster
        self._policy = policy
        self._memory = memory
        lasting = lineages or {}
        self._names = {number: lasting.get(number, key.hex()) for number, key in roster.items()}
        if len(set(self._names.values())) != len(self._names):
            raise FederationError("two clients of the roster with one lasting name")

    @property
    def binds(self) -> bool:
        """True if this client pledges to join later sums only with all clients of this one."""
        return self._policy.smallest_change > 1

    def names(self, clients: Iterable[int]) -> frozenset[str]:
        return frozenset(self._names[client] for client in clients)

    # --- this client's pledge ---------------------------------------------------------------------

    def begin(self, state: ClientRun) -> None:
        """Determine what this client will pledge in a run, once per run."""
        if self._memory.is_older():
            raise Refusal(
                Code.STATE_RESTORED,
                f"client {self._client} has answered more than it remembers: its memory was "
                "restored from a backup or lost, and with it what earlier sums have opened",
            )
        memory, lax = self._memory, not self.binds
        known, maybe = (_union(memory.cohorts(told=told, binding=lax)) for told in (True, False))
        past = known | maybe
        if lax and (memory.cohorts(told=True) or memory.cohorts(told=False)):
            # This client demands nothing. It names itself so that it does not count as new, and
            # stays bound to the clients of earlier binding pledges.
            known, past = known | self.names([self._client]), past | self.names([self._client])
        numbers = {name: number for number, name in self._names.items()}
        gone = past - numbers.keys()
        if state.protected:
            known, past = known - gone, past - gone
        elif gone:
            raise Refusal(
                Code.COHORT,
                f"{len(gone)} clients that were in earlier sums with client {self._client} are "
                "not in the roster, or not under the key that they had: the difference of two "
                f"sums would show them; {WHAT_TO_DO}",
            )
        state.known = tuple(sorted(numbers[name] for name in known))
        state.past = tuple(sorted(numbers[name] for name in past))

    def here(self, state: ClientRun) -> tuple[Here, bytes, bytes]:
        """Return this client's signed pledge, which is the same on every call."""
        pledge = self._pledge(state)
        said = Here(
            users=pledge.people,
            demands=pledge.demands,
            period=pledge.period,
            signature=pledge.signature.hex(),
            version=__version__,
        )
        return said, pledge.known, pledge.past

    def _pledge(self, state: ClientRun) -> SignedPledge:
        known, past = frozenset(state.known), frozenset(state.past)
        mine = Pledge(state.users, self._policy.demands, known, past, state.period)
        return SignedPledge.of(mine, self._roster).signed(
            state.run, self._client, self._identity, self._roster
        )

    # --- the pledges of all clients ---------------------------------------------------------------

    def check_plan(self, state: ClientRun, plan: RunPlan) -> None:
        """Check all pledges, and that the plan allows a sum that this client can be in.

        A client that cannot be in one leaves now, and the others go on without it.
        """
        try:
            plan.pledges.check(plan.run, self._roster)
            pledges = plan.pledges.read(self._roster)
            if plan.pledges.signed(self._client) != self._pledge(state):
                raise BadPledge("the plan has another pledge of this client than it made")
        except BadPledge as error:
            raise Refusal(Code.BAD_PLEDGE, str(error), final=True) from None
        mine, corrupt = pledges[self._client], plan.statement.corrupt
        if cohorts.is_forgotten(self._client, pledges, corrupt):
            raise Refusal(
                Code.STATE_RESTORED,
                f"others remember sums with client {self._client} that it does not: its memory "
                "was lost, and with it what earlier sums have opened",
                final=True,
            )
        self._check_period(state, plan)
        if plan.protected:
            return  # noise hides each client, regardless of the others
        cohorts.check_people(pledges, corrupt)
        cohorts.check_growth(pledges, [mine.past])
        if any(self._client in some for some in cohorts.newcomers(pledges, corrupt)):
            cohorts.check_new(pledges, corrupt)

    def _check_period(self, state: ClientRun, plan: RunPlan) -> None:
        """Refuse an exact run with clients whose histories are of another calendar period.

        Those clients have collected changes for a longer or shorter time.
        """
        others = plan.pledges.periods() - {state.period}
        if others and not plan.protected:
            raise Refusal(
                Code.COHORT,
                f"a run with clients whose histories are of another calendar period "
                f"({', '.join(sorted(others)) or 'none'}) than this client's ({state.period}): "
                "everybody needs the same days_between_changes, and to be asked in one period",
                final=True,
            )

    def check_sum(self, plan: RunPlan, cohort: frozenset[int]) -> None:
        """Refuse a sum over these clients if the pledges do not allow it."""
        cohorts.check_sum(cohort, plan.pledges.read(self._roster), plan.statement.corrupt)


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*sets)
