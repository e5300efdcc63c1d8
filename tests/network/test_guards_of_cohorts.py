"""Tests of the guards of cohorts, pledges, opened sums and rosters, one at a time.

Each is tested with the guard before it disabled, or without a federation.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from privirec.errors import UsageError
from privirec.federated.contributions import Opened
from privirec.federated.programs import PrivirecKSettings, SpectralSettings
from privirec.privacy.cohorts import (
    Demands,
    Pledge,
    PolicyRefusal,
    Rule,
    check_new,
    check_sum,
    refuse,
)
from privirec.privacy.policy import Policy
from privirec.runtime import envelope
from privirec.runtime.coordinator import Stage
from privirec.runtime.enrolment.cards import Card, Rotation
from privirec.runtime.enrolment.roster import Revoked, RosterFile
from privirec.runtime.messages import Refused
from privirec.runtime.node.cohort_guard import CohortGuard
from privirec.runtime.node.memory import ForLife, Memory
from privirec.runtime.node.run_state import ClientRun
from privirec.runtime.node.steps import StepAnswerer
from privirec.runtime.pledges import BadPledge, Pledges, SignedPledge
from privirec.runtime.refusals import Code
from privirec.secagg.errors import BadSignature
from privirec.secagg.keys import Identity, Roster
from privirec.secagg.participants import write_participants

from .chaos import Federation
from .silos import Silos, run
from .test_node import Talk, refused
from .test_people import codes, histories, policy

RUN, OTHER_RUN = "ab" * 16, "cd" * 16
KEYS = [Identity(bytes([number]) * 32) for number in range(1, 5)]
ROSTER = Roster({number: key.public for number, key in enumerate(KEYS[:3])})
ASKS = Demands(3, 4, 4)


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


def second_run_without(federation: Federation, client: int, *, after: str, until: str) -> Talk:
    """Begin a second run without one of the six clients that were in a sum together."""
    Talk(federation).until(Stage.COMPUTED)
    now = [0.0]
    talk = Talk(federation, name="second", clock=lambda: now[0])
    if after:
        talk.until(after, 1)
    for _ in range(200):
        if talk.server.status()["step"] == until:
            return talk
        now[0] += 5
        talk.step(skip={client})
    raise AssertionError(talk.server.status())


# --- every sum is checked, at any stage -----------------------------------------------------------


def test_a_plan_without_those_of_earlier_sums_is_refused(federation: Federation) -> None:
    talk = second_run_without(federation, 5, after="", until="advertise")
    reply = federation.node(0).answer(talk.message_for(0))
    refused(reply, "a sum without 1 clients", Code.COHORT, final=True)


def test_participants_are_judged_before_shares_leave(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CohortGuard, "check_plan", lambda *_: None)
    talk = second_run_without(federation, 5, after="", until="share")
    reply = federation.node(0).answer(talk.message_for(0))
    refused(reply, "a sum without 1 clients", Code.COHORT, final=True)


def test_the_first_sum_is_judged_before_it_is_opened(federation: Federation) -> None:
    talk = second_run_without(federation, 5, after="input", until="confirm")
    reply = federation.node(0).answer(talk.message_for(0))
    refused(reply, "a sum without 1 clients", Code.COHORT, final=True)


def test_who_was_in_a_sum_has_to_be_in_the_roster(tmp_path: Path) -> None:
    silos = Silos(tmp_path, histories(4, 4, 4, 4), policy())
    run(silos, "first")
    silos.use_roster(range(3))
    assert codes(silos, Talk(silos, name="second")) == {Code.COHORT}


def test_a_sum_over_few_people_is_refused() -> None:
    inside = {client: Pledge(2, Demands(3, 9, 1)) for client in range(3)}
    with pytest.raises(PolicyRefusal) as refusal:
        check_sum(frozenset(inside), inside, 0)
    assert refusal.value.rule is Rule.PEOPLE


def test_the_strictest_newcomer_decides() -> None:
    inside = {client: Pledge(2, Demands(3, 0, least)) for client, least in enumerate((2, 9, 2))}
    with pytest.raises(PolicyRefusal, match="client 1 asks for smallest_change = 9"):
        check_new(inside, 0)


# --- opened sums ----------------------------------------------------------------------------------


def opening(federation: Federation, share: float) -> Any:
    return federation.node(
        0, policy=federation.policy.model_copy(update={"largest_opened_share": share})
    )


def test_a_plan_counts_what_was_opened_in_the_life_of_a_client(federation: Federation) -> None:
    Talk(federation).until(Stage.COMPUTED)
    before = federation.node(0).memory.opened_share()
    talk = Talk(federation, name="second")
    talk.until("advertise")
    planned = talk.server.plan.for_policy().opened_share
    assert 0 < planned <= before + 1e-9
    reply = opening(federation, before + planned / 2).answer(talk.message_for(0))
    refused(reply, "with those of earlier runs", Code.OPENED_TOO_MUCH, final=True)


def test_a_sum_counts_what_was_opened_in_the_life_of_a_client(federation: Federation) -> None:
    """The policy becomes stricter in the middle of a run."""
    Talk(federation).until(Stage.COMPUTED)
    before = federation.node(0).memory.opened_share()
    talk = Talk(federation, name="second")
    talk.until("input", 1)
    planned = talk.server.plan.for_policy().opened_share
    reply = opening(federation, before + planned / 2).answer(talk.message_for(0))
    refused(reply, "with those of earlier runs", Code.OPENED_TOO_MUCH, final=True)


def test_a_sum_is_measured_by_the_items_in_use(tmp_path: Path) -> None:
    """Eight of 24 items are in use; the plan's share, over the catalogue, is far too low."""
    parts = histories(4, 4, 4)
    for part in parts:
        part[:, 8:] = False
    silos = Silos(tmp_path, parts, policy())
    talk = Talk(silos)
    talk.until("input", 2)
    planned = talk.server.plan.for_policy().opened_share
    reply = opening(silos, planned * 1.01).answer(talk.message_for(0))
    refused(reply, "between the items in use", Code.OPENED_TOO_MUCH, final=True)


def test_what_was_opened_is_remembered_for_life(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    for number in (1, 2):
        memory.commit(
            ClientRun(RUN, 4, "histories"), ForLife(sum_number=number, opened=Opened(3, 12))
        )
    memory.begin(ClientRun(OTHER_RUN, 4, "histories"))
    memory.close()
    assert Memory(tmp_path).opened_share() == 0.5


def test_a_block_is_shown_to_the_policy(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk(federation)
    talk.until("input", 3)
    monkeypatch.setattr(Policy, "check_aim", lambda *_: refuse(Rule.AIMED, "a block"))
    reply = federation.node(0).answer(talk.message_for(0))
    refused(reply, "asked for a block", Code.AIMED_BLOCK, final=True)


# --- pledges --------------------------------------------------------------------------------------


def pledged() -> SignedPledge:
    everybody = write_participants(range(3), ROSTER)
    return SignedPledge(4, ASKS, everybody, everybody).signed(RUN, 0, KEYS[0], ROSTER)


def test_a_pledge_is_for_one_run_one_roster_and_one_client() -> None:
    pledge = pledged()
    pledge.check(RUN, 0, ROSTER)
    larger = Roster({number: key.public for number, key in enumerate(KEYS)})
    swapped = Roster({0: KEYS[1].public, 1: KEYS[0].public})
    for other in ((OTHER_RUN, 0, ROSTER), (RUN, 0, larger), (RUN, 1, ROSTER), (RUN, 1, swapped)):
        with pytest.raises(BadPledge, match="not signed by its key"):
            pledge.check(*other)


@pytest.mark.parametrize(
    "change",
    [{"people": 5}, {"known": b""}, {"past": b""}, {"signature": bytes(64)}]
    + [{"demands": asks} for asks in (Demands(2, 4, 4), Demands(3, 3, 4), Demands(3, 4, 3))],
    ids=str,
)
def test_every_word_of_a_pledge_is_signed(change: dict[str, Any]) -> None:
    with pytest.raises(BadPledge, match="not signed by its key"):
        replace(pledged(), **change).check(RUN, 0, ROSTER)


def test_nobody_knows_more_than_its_past() -> None:
    one, both = (write_participants(range(n), ROSTER) for n in (1, 2))
    Pledges.of({0: SignedPledge(4, ASKS, one, both)}).read(ROSTER)
    with pytest.raises(BadPledge, match="a past that it was not in"):
        Pledges.of({0: SignedPledge(4, ASKS, both, one)}).read(ROSTER)


@given(
    st.dictionaries(
        st.integers(0, 40),
        st.builds(
            SignedPledge,
            st.integers(0, 3),
            st.builds(Demands, *(st.integers(0, 2) for _ in range(3))),
            *(st.sampled_from([b"", b"\1", b"\3"]) for _ in range(2)),
            st.sampled_from(["", "2026-11-01 00:00:00+00:00"]),
            st.binary(min_size=64, max_size=64),
        ),
        min_size=1,
    )
)
def test_pledges_come_out_as_they_went_in(pledges: dict[int, SignedPledge]) -> None:
    """Pledges survive encoding, whatever several of them have in common."""
    found = Pledges.model_validate_json(Pledges.of(pledges).model_dump_json())
    assert {client: found.signed(client) for client in pledges} == pledges
    assert found.users() == {client: one.people for client, one in pledges.items()}
    assert found.periods() == {one.period for one in pledges.values()}
    with pytest.raises(KeyError):
        found.signed(99)


def test_what_everybody_says_is_said_once() -> None:
    many = Pledges.of({number: replace(pledged(), people=1) for number in range(1000)})
    assert len(many.contents) == 1
    assert len(many.model_dump_json()) < 1000 * (64 * 4 / 3 + 8)  # a signature and its content


@pytest.mark.parametrize("liar", range(3))
def test_every_pledge_of_a_plan_must_be_signed(liar: int) -> None:
    """Test the first, the last and one in between."""
    one = SignedPledge(4, ASKS)
    pledges = {n: one.signed(RUN, n, KEYS[n], ROSTER) for n in range(3)}
    Pledges.of(pledges).check(RUN, ROSTER)
    forged = pledges | {liar: replace(one, signature=pledges[(liar + 1) % 3].signature)}
    with pytest.raises(BadPledge, match=f"client {liar} is not signed"):
        Pledges.of(forged).check(RUN, ROSTER)


def test_a_list_of_mistakes_ends_with_the_first() -> None:
    """Otherwise each mistake would be stored, with its content, before any check."""
    with pytest.raises(ValidationError) as refused:
        Pledges.model_validate(GOOD | {"clients": ["x"] * 1000})
    assert refused.value.error_count() == 1


GOOD = Pledges.of({0: pledged(), 2: replace(pledged(), people=5)}).model_dump()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"clients": (2, 0)}, "ascending order"),
        ({"clients": (2, 2)}, "ascending order"),
        ({"clients": (0, 1, 2)}, "without a pledge"),
        ({"content_of": (0, 1, 0)}, "without a pledge"),
        ({"content_of": (0, 2)}, "pledges that are missing"),
        ({"content_of": (0, -1)}, "greater than or equal to 0"),
        ({"clients": (0, 1 << 32)}, "less than 4294967296"),
        ({"signatures": b64encode(pledged().signature).decode()}, "one for each client"),
        ({"signatures": GOOD["signatures"] + "AAAA"}, "pattern"),
        ({"signatures": GOOD["signatures"][:-4]}, "one for each client"),
        ({"signatures": "A"}, "base64|padding"),
        ({"contents": (*GOOD["contents"], GOOD["contents"][0])}, "no client has pledged"),
        ({"sets": (*GOOD["sets"], "00")}, "nobody pledges"),
        ({"sets": GOOD["sets"] * 2}, "nobody pledges"),
        ({"sets": ()}, "nobody pledges"),
        ({"more": 1}, "not permitted"),
    ],
    ids=str,
)
def test_pledges_that_do_not_fit_together_are_refused(change: dict[str, Any], said: str) -> None:
    Pledges.model_validate(GOOD)
    with pytest.raises(ValidationError, match=said):
        Pledges.model_validate(GOOD | change)


DAY = "2026-11-01 00:00:00+00:00"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"users": 1 << 32}, "less than 4294967296"),
        ({"users": -1}, "greater than or equal to 0"),
        ({"demands": (1 << 63, 4, 4)}, "less than 9223372036854775808"),
        ({"demands": (3, 4, -1)}, "greater than or equal to 0"),
        ({"period": "today"}, "pattern"),
        ({"period": f"{DAY}{DAY}"}, "pattern"),
        ({"period": f" {DAY}"}, "pattern"),
        ({"period": DAY.replace("00:00:00", "00:00:01")}, "pattern"),
        ({"period": f"{DAY}\n"}, "pattern"),
        ({"more": 1}, "not permitted"),
    ],
    ids=str,
)
def test_what_is_pledged_can_be(change: dict[str, Any], said: str) -> None:
    first, *others = GOOD["contents"]
    largest = {"users": (1 << 32) - 1, "demands": ((1 << 63) - 1,) * 3, "period": DAY}
    found = Pledges.model_validate(GOOD | {"contents": (first | largest, *others)})
    found.signed(0).signed(RUN, 0, KEYS[0], ROSTER).check(RUN, 0, ROSTER)
    with pytest.raises(ValidationError, match=said):
        Pledges.model_validate(GOOD | {"contents": (first | change, *others)})


def test_the_periods_of_all_who_pledge_are_found() -> None:
    both = Pledges.of({0: SignedPledge(4, ASKS), 1: SignedPledge(4, ASKS, period=DAY)})
    assert both.periods() == {"", DAY}


@pytest.mark.parametrize("text", ["", "0", "000", "0g", "0A", "00 ", " 00", "00\n"])
def test_a_pledged_set_is_bytes_in_small_letters(text: str) -> None:
    """Each set has exactly one text, because sets are compared as text."""
    with pytest.raises(ValidationError, match="pattern"):
        Pledges.model_validate(GOOD | {"sets": (text,)})


@pytest.mark.parametrize("change", [{"rounds": 10**30}, {"rounds": 10**6}, {"rank": 10**9}])
def test_numbers_of_a_plan_that_would_fill_the_memory(change: dict[str, int]) -> None:
    """The sums are listed before a policy checks their number."""
    with pytest.raises(ValidationError, match="less than or equal"):
        PrivirecKSettings(**change)
    if "rank" in change:
        with pytest.raises(ValidationError, match="less than or equal"):
            SpectralSettings(**change)


@pytest.mark.parametrize("error", [OverflowError, MemoryError, KeyError, TypeError, ValueError])
def test_what_nobody_thought_of_ends_no_client(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def broken(*_: object) -> None:
        raise error("a secret")

    monkeypatch.setattr(StepAnswerer, "answer", broken)
    talk = Talk(federation)
    talk.until("advertise")
    answer = federation.node(0).answer(talk.message_for(0))
    said = envelope.peek(answer, "to-server").message
    assert isinstance(said, Refused)
    assert (said.code, said.final) == (Code.OWN_PROBLEM, False)
    assert "secret" not in said.reason


# --- rosters --------------------------------------------------------------------------------------

NODE = "ecdsa-sha2-nistp256 AAAA"


def test_the_new_key_of_a_rotation_is_somebodys() -> None:
    """The old key alone cannot name a key without an owner."""
    operator = KEYS[3].public.hex()
    card = Card.make("client 0", KEYS[1], NODE)
    Rotation.make(operator, 0, KEYS[0], card).check()
    invented = card.model_copy(update={"signature": Card.make("x", KEYS[2], NODE).signature})
    with pytest.raises(BadSignature):
        Rotation.make(operator, 0, KEYS[0], invented).check()


def test_a_roster_continues_one_of_its_operator() -> None:
    one, other = (RosterFile(operator=key.public.hex()) for key in KEYS[:2])
    one.name_server("ab" * 32).check_continues(one)
    with pytest.raises(UsageError, match="a roster of operator"):
        one.name_server("ab" * 32).check_continues(other)


def test_changes_that_cannot_be_are_refused_when_read(tmp_path: Path) -> None:
    path = tmp_path / "roster.json"
    whole = RosterFile(operator=KEYS[0].public.hex(), changes=(Revoked(client=5),))
    whole.signed(KEYS[0]).write(path)
    with pytest.raises(UsageError, match="change 1 of the roster: client 5 is not in the roster"):
        RosterFile.read(path)
