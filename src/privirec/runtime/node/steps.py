"""A client's answer to a step: checks, policy, protocol session and vector.

This module does not interpret a protocol's messages and knows no program: a session maps bytes to
bytes, and a request checks itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NoReturn

from privirec.data.catalogue import Catalogue
from privirec.data.interactions import Interactions
from privirec.errors import FederationError
from privirec.federated import wire
from privirec.federated.contributions import (
    ClientContext,
    Contribution,
    Histories,
    Opened,
    PlannedSum,
    answer,
)
from privirec.federated.randomness import ClientRandomness
from privirec.privacy.policy import Policy
from privirec.runtime.messages import EXCHANGE_PARTS
from privirec.runtime.node.budget import Budget
from privirec.runtime.node.cohort_guard import CohortGuard
from privirec.runtime.node.memory import ForLife
from privirec.runtime.node.run_state import ClientRun
from privirec.runtime.refusals import Code, Refusal
from privirec.runtime.run_plan import RunPlan, asked_digest, same_version
from privirec.secagg import Agreement, ClientPolicy, ClientSession, Phase, Step, protocol
from privirec.secagg.keys import Identity, RandomBytes, Roster
from privirec.secagg.participants import read_participants
from privirec.version import __version__

log = logging.getLogger("privirec.client")

StoreVector = Callable[[int, Iterable[bytes]], int]
"""(size, blocks): writes a packed vector to the disk, and returns the bytes of its message."""
UNSIGNED_LIMIT = 64
"""Ring width in bits at which unsigned entries do not fit the machine's signed integers."""


@dataclass(frozen=True)
class StepAnswer:
    """Result of a step; the resulting state is in the ClientRun."""

    message: bytes | None
    """Answer of the protocol; None if the answer is an upload."""
    upload_bytes: int = 0
    for_life: ForLife = field(default_factory=ForLife)
    """Additions to the client's lifelong memory once this answer has left."""
    oldest_needed_upload: int = 0
    """Oldest step whose upload may still be requested."""


class StepAnswerer:
    """Answerer of steps for one client. It holds no state of a run but its parsed plan."""

    def __init__(
        self,
        client: int,
        identity: Identity,
        roster: Roster,
        catalogue: Catalogue,
        policy: Policy,
        guard: CohortGuard,
        budget: Budget,
        opened_share: Callable[[], float],
        random_bytes: RandomBytes,
    ) -> None:
        self._client = client
        self._identity = identity
        self._roster = roster
        self._catalogue = catalogue
        self._policy = policy
        self._guard = guard
        self._budget = budget
        self._opened_share = opened_share
        self._random = random_bytes
        self._parsed: tuple[str, RunPlan] | None = None

    def plan(self, state: ClientRun) -> RunPlan:
        """Return the plan of a run that this client joined; it is parsed once."""
        if self._parsed is None or self._parsed[0] != state.plan_text:
            self._parsed = (state.plan_text, RunPlan.parse(state.plan_text.encode()))
        return self._parsed[1]

    def forget_plan(self) -> None:
        """Free the parsed plan of a run that is over for this client."""
        self._parsed = None

    def answer(
        self,
        state: ClientRun,
        number: int,
        parts: tuple[bytes, ...],
        histories: Callable[[], Interactions],
        store: StoreVector,
    ) -> StepAnswer:
        """Answer a step, and update `state` accordingly; a vector goes to `store`."""
        if number == 0:
            return self._join(state, *_parts(parts, 2))
        plan = self.plan(state)
        steps = plan.steps
        if number >= len(steps):
            raise FederationError(f"step {number} in a run of {len(steps)} steps")
        step = steps[number]
        expected = 1 if step.phase is Phase.SETUP else len(EXCHANGE_PARTS[step.phase])
        told, *more = _parts(parts, expected)
        session = self._session(state, plan)
        if step.phase is Phase.INPUT:
            return self._contribute(
                state, plan, step, session, (told, more[0]), (histories, store, number)
            )
        reply = session.receive(told)
        self._note_participants(state, plan, session)
        for_life = ForLife()
        if step.phase is Phase.RECOVERY:
            cohort = self._check_summed(state, plan, step, session, more[0])
            if step.opens_sum and not state.protected:
                for_life = ForLife(self._guard.names(cohort), True, self._guard.binds)
        if reply is None:
            raise FederationError("the protocol has nothing to answer")
        state.session = session.dump()
        return StepAnswer(reply, for_life=for_life)

    # --- the first step ---------------------------------------------------------------------------

    def _join(self, state: ClientRun, announcement: bytes, text: bytes) -> StepAnswer:
        """Check the plan against this client's data and policy, then join."""
        plan = self._checked_plan(state, text)
        state.plan_text = text.decode()
        self._parsed = (state.plan_text, plan)
        agreed = Agreement(
            bytes.fromhex(plan.run),
            plan.statement,
            plan.shapes,
            plan.spec.block_entries,
        )
        session = protocol(plan.spec.aggregator).client(
            self._client, self._identity, self._roster, self._insists(agreed), self._random
        )
        reply = session.receive(announcement)
        log.info(
            "run %s: takes part, %d clients, %s sums, %s",
            *(state.run[:8], len(plan.users), plan.number_of_sums, plan.spec.aggregator),
        )
        self._note_participants(state, plan, session)
        state.session = session.dump()
        return StepAnswer(reply)

    def _checked_plan(self, state: ClientRun, text: bytes) -> RunPlan:
        plan = RunPlan.parse(text)
        if plan.run != state.run or plan.users.get(self._client) != state.users:
            _refuse_plan("the plan is for another run or miscounts this client's users")
        if (plan.catalogue, plan.n_items) != (self._catalogue.fingerprint, len(self._catalogue)):
            _refuse_plan("the plan is for another catalogue than this client's")
        if (plan.roster, plan.clients) != (self._roster.digest.hex(), len(self._roster)) or (
            not plan.users.keys() <= set(self._roster)
        ):
            _refuse_plan("the plan is for another roster than this client's")
        if not same_version(plan.version):
            _refuse_plan(f"the plan is of version {plan.version}, this is {__version__}")
        if any(one.width == UNSIGNED_LIMIT and not one.signed for one in plan.shapes):
            _refuse_plan("unsigned entries of 64 bits, which signed 64-bit integers cannot hold")
        if plan.protected != state.protected:
            _refuse_plan("the plan has other noise than the server announced for this run")
        self._policy.check_run(plan.for_policy(), self._opened_share())
        self._budget.check(plan.program.loss)
        if plan.protected:
            self._budget.check_failure(plan)
        self._budget.check_hits(plan.sums)
        self._budget.check_noise(plan, len(plan.users), contributors_of(plan.sums))
        self._guard.check_plan(state, plan)
        return plan

    # --- later steps ------------------------------------------------------------------------------

    def _contribute(
        self,
        state: ClientRun,
        plan: RunPlan,
        step: Step,
        session: ClientSession,
        told: tuple[bytes, bytes],
        where: tuple[Callable[[], Interactions], StoreVector, int],
    ) -> StepAnswer:
        """Compute this client's vector and store it, to be sent in parts."""
        message, request = told
        histories, store, step_number = where
        if message:
            session.receive(message)
            self._note_participants(state, plan, session)
        planned = plan.sums[step.sum_number - 1]
        ask = wire.decode(request)
        randomness = ClientRandomness(state.noise_seed)
        own = Histories(histories().matrix, plan.first_user(self._client))
        own = own.split_by(randomness, plan.program.held_out)
        planned.check(ask)
        size = ask.encoding.payload_bytes(ask.length)
        self._policy.check_answer(
            *(plan.spec.aggregator, step.sum_number),
            *(state.bytes_up + size, state.bytes_down),
        )
        if ask.protected is None:
            self._policy.check_exact((ask.name,))
        self._check_cost(state, plan, step, ask)
        self._budget.check_hits(plan.sums[step.sum_number - 1 :])
        context = ClientContext(plan.n_users, plan.n_items, plan.spec.program, own, state.pinned)
        ask.check(context)
        _note_contradictions(state, context)
        if ask.aim is not None:
            self._policy.check_aim(ask.aim)
        opened = self._check_opened(plan, step, ask)
        noise = randomness.stream(step.sum_number, ask.name)
        asked = asked_digest(state.plan_text.encode(), request)
        number, length = step.sum_number, ask.length
        blocks = session.contribute(number, answer(ask, own, noise), asked, length)
        state.vector_bytes += size
        size = store(session.vector_bytes(number, length), blocks)
        state.session = session.dump()
        log.info(
            "run %s: sum %d of %s (%s) answered",
            *(state.run[:8], step.sum_number, plan.number_of_sums, ask.name),
        )
        # From now on this client may be in a sum. Without a recovery phase, it is never told more.
        is_told = step.opens_sum or bool(state.cohort)
        members = () if state.protected else state.cohort or state.participants
        for_life = ForLife(
            *(self._guard.names(members), is_told, self._guard.binds),
            *(step.sum_number, opened, self._budget.line(plan, step.sum_number, ask)),
        )
        return StepAnswer(None, size, for_life, oldest_needed_upload=step_number)

    def _check_cost(self, state: ClientRun, plan: RunPlan, step: Step, ask: Contribution) -> None:
        """Refuse a request whose noise is too little for the plan, the cohort or the budget."""
        spent = self._budget.spent_in(plan.run)
        if plan.program.bounds:
            plan.program.bounds.check(ask, spent, state.vector_bytes)
        self._budget.check(plan.program.loss_to_come(step.sum_number, spent))
        if ask.protected:
            # Nobody drops out of later sums: in them are exactly the clients of the first one,
            # which their neighbours in the protocol have confirmed.
            clients = len(state.cohort) if state.cohort else len(plan.users)
            self._budget.check_noise(plan, clients, ask.protected.contributors)

    def _check_opened(self, plan: RunPlan, step: Step, ask: Contribution) -> Opened:
        """Return what this sum opens, if the policy allows it.

        The policy limits this sum, the plan's later sums and all earlier sums of this client
        together.
        """
        in_use = ask.items_in_use
        in_use = plan.n_items if in_use is None else in_use
        to_come = [one.opened(plan.n_items, in_use) for one in plan.sums[step.sum_number - 1 :]]
        self._policy.check_opened(self._opened_share() + sum(one.share for one in to_come))
        return to_come[0]

    def _note_participants(self, state: ClientRun, plan: RunPlan, session: ClientSession) -> None:
        """Store the participants when the protocol first names them.

        They must be in the plan, and there must be enough of them.
        """
        told = session.participants
        if not told or state.participants:
            return
        if not told <= plan.users.keys():
            _refuse_plan("clients take part that are not in the plan")
        self._check_clients(plan, told)
        state.participants = tuple(sorted(told))

    def _check_clients(self, plan: RunPlan, clients: frozenset[int]) -> None:
        """Refuse a sum over these clients unless enough people or noise hides each of them."""
        if not plan.protected:
            self._guard.check_sum(plan, clients)
        self._budget.check_noise(plan, len(clients), contributors_of(plan.sums))

    def _check_summed(
        self, state: ClientRun, plan: RunPlan, step: Step, session: ClientSession, listed: bytes
    ) -> frozenset[int]:
        """Return the server's list of clients in the sum after checking it.

        The list must agree with the protocol, and must not change during the run.
        """
        cohort = frozenset(read_participants(listed, self._roster).tolist())
        session.check_summed(cohort)
        if not state.cohort:
            self._check_clients(plan, cohort)
            state.cohort = tuple(sorted(cohort))
        elif tuple(sorted(cohort)) != state.cohort:
            raise Refusal(
                Code.BAD_ASK,
                f"other clients are in sum {step.sum_number} than in the first",
                final=True,
            )
        return cohort

    def _session(self, state: ClientRun, plan: RunPlan) -> ClientSession:
        if not state.session:
            raise Refusal(
                Code.UNKNOWN_RUN, f"client {self._client} has no session in run {state.run[:8]}"
            )
        return protocol(plan.spec.aggregator).load_client(
            state.session, self._identity, self._roster, self._insists(), self._random
        )

    def _insists(self, agreed: Agreement | None = None) -> ClientPolicy:
        mine = self._policy
        return ClientPolicy(
            min_cohort=mine.smallest_cohort,
            corrupt_share=mine.corrupt_share,
            max_dropped_share=mine.largest_dropped_share,
            security_bits=mine.security_bits,
            server=mine.server,
            proven_sums=True,  # by `federated` encodings, recomputed here
            agreement=agreed,
        )


def contributors_of(sums: Iterable[PlannedSum]) -> int:
    """Return the most clients on whose noise one of these sums relies."""
    return max((one.protection.contributors for one in sums if one.protection), default=0)


def _parts(parts: tuple[bytes, ...], count: int) -> tuple[bytes, ...]:
    if len(parts) != count:
        raise Refusal(Code.BAD_MESSAGE, f"a message of {len(parts)} parts where {count} belong")
    return parts


def _note_contradictions(state: ClientRun, context: ClientContext) -> None:
    """Record a false claim that only this client's own histories disprove.

    Only the client's owner is told, never the server.
    """
    if context.contradictions and not state.spoilt:
        state.spoilt = context.contradictions[0]
        log.error(
            "run %s: the server claims %s, which cannot be. This client answers all the same, "
            "since a refusal would tell what it has, and does not install the run's model",
            *(state.run[:8], state.spoilt),
        )


def _refuse_plan(reason: str) -> NoReturn:
    raise Refusal(Code.BAD_PLAN, reason, final=True)
