"""Tests of the number of people, of clients' keys and of pledges.

Without the guard each attack reads a person's history; with it the attack is refused.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from breadth import first
from privirec.data import Interactions
from privirec.device import Store
from privirec.errors import FederationError
from privirec.privacy import cohorts
from privirec.privacy.cohorts import Demands
from privirec.privacy.policy import Policy, allowing
from privirec.runtime import envelope
from privirec.runtime.coordinator import Stage
from privirec.runtime.messages import Exchange, Here, Refused, Vector
from privirec.runtime.node import Node
from privirec.runtime.node import node as node_module
from privirec.runtime.pledges import BadPledge, Pledges, SignedPledge
from privirec.runtime.refusals import Code
from privirec.secagg.keys import Identity

from .chaos import EXACT, Federation, small_policy
from .silos import Silos, refusals, run, sums_opened
from .test_node import Talk, refused, remembered, said_in

ITEMS = 24


def histories(*people: int, seed: int = 3) -> list[np.ndarray]:
    """Return one array of histories per client, with the given numbers of people."""
    rng = np.random.default_rng(seed)
    parts = [rng.random((count, ITEMS)) < 0.3 for count in people]
    for part in parts:
        part[:, 0] = True  # a store has no users without items
    return parts


def policy(**changes: Any) -> Policy:
    return small_policy(computations=EXACT, largest_opened_share=1000, **changes)


def codes(federation: Federation, talk: Talk) -> set[Code]:
    """Return the codes with which clients refuse the server's current messages."""
    talk.server.connected(set(federation.roster))
    found = set()
    for address, message in list(talk.server.outgoing()):
        said = said_in(federation.node(int(str(address))).answer(message))
        if isinstance(said, Refused):
            found.add(said.code)
    return found


# --- one person among empty clients ---------------------------------------------------------------


def test_the_degrees_of_one_person_among_empty_clients_are_a_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = histories(1, 0, 0)
    lax = policy(smallest_cohort=2, fewest_other_people=0, smallest_change=1)
    with monkeypatch.context() as off:
        off.setattr(cohorts, "check_people", lambda *_: None)
        off.setattr(Policy, "check_run", lambda *_: None)
        seen, talk = run(Silos(tmp_path / "off", parts, lax), "server")
        assert talk.server.stage is Stage.COMPUTED
        assert np.array_equal(seen[0][1] > 0, parts[0][0])  # the history, item by item

    silos = Silos(tmp_path / "on", parts, allowing(EXACT))
    talk = Talk(silos)
    talk.until("advertise")
    assert codes(silos, talk) == {Code.TOO_FEW_PEOPLE}
    assert run(Silos(tmp_path / "lax", parts, lax), "server")[0] == []  # nor with a smaller ask


def with_idle_people(folder: Path) -> Silos:
    """Return a client with one person, and three whose people have no item of the catalogue."""
    silos = Silos(folder, histories(1, 0, 0, 0), allowing(EXACT, largest_opened_share=1000))
    for client in (1, 2, 3):
        with silos.store(client) as store:
            store.add((f"idle-{client}-{user}", "elsewhere") for user in range(12))
    return silos


def test_people_with_nothing_in_the_catalogue_hide_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as off:
        off.setattr(Interactions, "without_idle_users", lambda found: found)
        seen, talk = run(with_idle_people(tmp_path / "off"), "server")
        assert talk.server.stage is Stage.COMPUTED
    assert np.array_equal(seen[0][1] > 0, histories(1, 0, 0, 0)[0][0])  # item by item

    silos = with_idle_people(tmp_path / "on")
    talk = Talk(silos)
    talk.until("advertise")
    assert codes(silos, talk) == {Code.TOO_FEW_PEOPLE}
    assert [talk.server.plan.users[client] for client in range(4)] == [1, 0, 0, 0]


@pytest.mark.parametrize("people", [(5, 5, 5), (40, 3, 3, 3), (5, 1, 1, 1, 1, 1, 1)])
def test_ten_other_people_are_asked_for_by_default(tmp_path: Path, people: tuple[int, ...]) -> None:
    """One client of each roster may be corrupt, possibly the one with the most people."""
    silos = Silos(tmp_path, histories(*people), allowing(EXACT))
    talk = Talk(silos)
    talk.until("advertise")
    assert codes(silos, talk) == {Code.TOO_FEW_PEOPLE}


def test_with_ten_others_a_default_client_that_allows_exact_sums_takes_part(
    tmp_path: Path,
) -> None:
    wide = allowing(EXACT, largest_opened_share=1000)
    seen, talk = run(Silos(tmp_path, histories(12, 12, 12), wide), "server")
    assert talk.server.stage is Stage.COMPUTED
    assert len(seen) == 3


def test_a_default_client_refuses_an_exact_run_and_names_the_line(tmp_path: Path) -> None:
    _, talk = run(Silos(tmp_path, histories(12, 12, 12), Policy()), "server")
    assert talk.server.stage is Stage.STOPPED
    (said,) = refusals(talk)
    assert 'puts computations = ["item-degrees", "seeded-step", "power-step"] into' in said


# --- a replaced key -------------------------------------------------------------------------------


def rotated(silos: Silos) -> None:
    """Give client 3 a key that the server invented, and histories of the server's choice."""
    shutil.move(silos.folder / "client-3", silos.folder / "the real client 3")
    silos.identities[3] = Identity(b"invented" * 4)
    silos.parts = [*silos.parts[:3], np.eye(4, ITEMS, dtype=bool)]
    silos.fill(3)
    silos.use_roster(range(4))


def test_an_invented_key_in_the_place_of_a_client_isolates_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = histories(4, 4, 4, 4)
    by_number = {client: f"number {client}" for client in range(4)}
    silos = Silos(tmp_path / "off", parts, policy())
    with monkeypatch.context() as off:
        made = Node.__init__
        off.setattr(Node, "__init__", lambda *a, **k: made(*a, **k, lineages=by_number))
        # The invented client belongs to the server, and has no memory of earlier sums.
        off.setattr(cohorts, "is_forgotten", lambda *_: False)
        first, _ = run(silos, "first")
        rotated(silos)
        second, _ = run(silos, "second")
    invented = silos.parts[3].sum(axis=0)
    assert np.array_equal(first[0][1] - second[0][1] + invented, parts[3].sum(axis=0))

    silos = Silos(tmp_path / "on", parts, policy())
    run(silos, "first")
    rotated(silos)
    talk = Talk(silos, name="second")
    assert codes(silos, talk) == {Code.COHORT}
    second, talk = run(silos, "third")
    assert second == []
    assert any("not under the key that they had" in said for said in refusals(talk))


def test_a_rotation_that_keeps_the_lasting_name_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silos = Silos(tmp_path, histories(4, 4, 4, 4), policy())
    run(silos, "first")
    former = silos.roster[3]
    silos.identities[3] = Identity(b"rotated!" * 4)
    silos.use_roster(range(4))
    made = Node.__init__

    def with_history(*given: Any, **more: Any) -> None:
        keys = (former, more["identity"].public) if more["client"] == 3 else ()
        made(*given, **more, lineages={3: former.hex()}, own_keys=keys)

    monkeypatch.setattr(Node, "__init__", with_history)
    _, talk = run(silos, "second")
    assert talk.server.stage is Stage.COMPUTED


# --- a roster that changes within a run -----------------------------------------------------------


def begun_and_changed(folder: Path) -> tuple[Silos, Talk]:
    """Begin a second run of the same clients, then replace client 3 by client 4 in the roster."""
    silos = Silos(folder, histories(4, 4, 4, 4, 4), policy())
    silos.use_roster(range(4))
    run(silos, "first")
    talk = Talk(silos, name="second")
    talk.until("share")
    silos.use_roster([0, 1, 2, 4])
    return silos, talk


def test_a_client_does_not_pledge_twice_when_the_roster_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as off:
        off.setattr(node_module, "check_taking_part", lambda *_: None)
        silos, talk = begun_and_changed(tmp_path / "off")
        # It pledged to be in a sum with client 3, which is gone.
        refused(talk.forged(0, talk.hello()), "", Code.OWN_PROBLEM, final=False)
        silos.use_roster(range(5))
        again = talk.forged(0, talk.hello())
        made = talk.server.plan.pledges.signed(0)
        assert isinstance(again.message, Here)
        assert bytes.fromhex(again.message.signature) != made.signature  # two pledges for one run

    for clients in ([0, 1, 2, 4], range(5)):
        silos, talk = begun_and_changed(tmp_path / f"on {len(clients)}")
        silos.use_roster(clients)
        reply = talk.forged(0, talk.hello())
        refused(reply, "another roster", Code.OTHER_ROSTER, final=True)
        message = talk.forged(1, Exchange(step=1), b"")
        refused(message, "another roster", Code.OTHER_ROSTER, final=True)
        silos.use_roster(range(4))  # and the client does not rejoin
        refused(talk.forged(0, talk.hello()), "has left", Code.OWN_PROBLEM, final=False)


# --- different rosters ----------------------------------------------------------------------------

A, B, V = (0, 1, 2), (3, 4, 5), (6,)
ORDERS = {"all first": ((*A, *B, *V), A, B), "all last": (A, B, (*A, *B, *V))}


@pytest.mark.parametrize("order", ORDERS)
def test_sums_over_a_b_and_v_over_a_and_over_b_isolate_v(tmp_path: Path, order: str) -> None:
    parts = histories(4, 4, 4, 4, 4, 4, 1)
    found: dict[Sequence[int], Any] = {}
    silos = Silos(tmp_path / "off", parts, policy(smallest_change=1))
    for clients in ORDERS[order]:
        silos.use_roster(clients)
        seen, _ = run(silos, f"server {len(found)}")
        found[clients] = seen[0][1]
    assert np.array_equal(found[*A, *B, *V] - found[A] - found[B], parts[6].sum(axis=0))

    silos = Silos(tmp_path / "on", parts, policy())
    opened, last = [], None
    for clients in ORDERS[order]:
        silos.use_roster(clients)
        seen, last = run(silos, f"server {len(opened)}")
        opened += [clients] if seen else []
    assert opened == ([(*A, *B, *V)] if order == "all first" else [A, B])
    assert last is not None
    assert any("the same clients as before, or with more people" in s for s in refusals(last))


@pytest.mark.parametrize("strict_before", [True, False])
def test_a_laxer_policy_does_not_undo_what_was_pledged(tmp_path: Path, strict_before: bool) -> None:
    """Clients relax their policy, and a former peer is missing from the roster."""
    lax = policy(smallest_change=1)
    silos = Silos(tmp_path, histories(4, 4, 4, 4), policy() if strict_before else lax)
    run(silos, "first")
    silos.policy = lax
    silos.use_roster(range(3))
    talk = Talk(silos, name="second")
    assert codes(silos, talk) == ({Code.COHORT} if strict_before else set())


def test_who_is_alone_leaves_and_the_others_go_on(tmp_path: Path) -> None:
    """A new client with one person waits for more people; the others continue."""
    parts = histories(4, 4, 4, 4, 1)
    silos = Silos(tmp_path, parts, policy(), drop_share=0.2)
    silos.use_roster(range(4))
    run(silos, "first")
    silos.use_roster(range(5))
    _, talk = run(silos, "second")
    assert talk.server.stage is Stage.COMPUTED
    assert talk.server.cohort == (0, 1, 2, 3)
    assert "smallest_change" in talk.server.clients[4].gone


def left_out(silos: Silos) -> Any:
    """Run without client 4 in the sum, although it sent its vector; it gets no further message."""
    clock = [0.0]
    talk = Talk(silos, name="first", clock=lambda: clock[0])
    with sums_opened() as seen:
        talk.until("input", 1)
        talk.step(skip={4})
        assert isinstance(said_in(silos.node(4).answer(talk.last[4])), Vector)
        for _ in range(300):
            clock[0] += 4
            talk.step(skip={4})
            if talk.server.stage is Stage.COMPUTED:
                return seen[0][1]
    raise AssertionError(talk.server.status())


def test_a_client_that_was_left_out_and_never_heard_of_it_is_not_added_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client 4 knows only its possible peers.

    The pledges of the others show that they were in the sum without it.
    """
    parts = histories(4, 4, 4, 4, 1)
    with monkeypatch.context() as off:
        off.setattr(cohorts, "check_new", lambda *_: None)
        silos = Silos(tmp_path / "off", parts, policy(), drop_share=0.2)
        first = left_out(silos)
        second, _ = run(silos, "second")
        assert np.array_equal(second[0][1] - first, parts[4][0])

    silos = Silos(tmp_path / "on", parts, policy(), drop_share=0.2)
    left_out(silos)
    talk = Talk(silos, name="second")
    talk.until("advertise")
    refused(silos.node(4).answer(talk.message_for(4)), "first for 1", Code.COHORT, final=True)


def test_two_clients_cannot_have_one_lasting_name(tmp_path: Path) -> None:
    silos = Silos(tmp_path, histories(4, 4, 4), policy())
    with pytest.raises(FederationError, match="one lasting name"):
        silos.node(0, lineages={1: "the same", 2: "the same"})


# --- pledges --------------------------------------------------------------------------------------


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


def plan_with_pledge(talk: Talk, client: int, pledge: SignedPledge) -> bytes:
    plan = talk.server.plan
    pledges = {other: plan.pledges.signed(other) for other in plan.users} | {client: pledge}
    return plan.model_copy(update={"pledges": Pledges.of(pledges)}).model_dump_json().encode()


def made(talk: Talk, people: int, run: str | None = None, **sets: bytes) -> SignedPledge:
    """Return a pledge signed by client 1."""
    federation = talk.federation
    pledge = SignedPledge(people, Demands(3, 4, 4), **sets)
    return pledge.signed(run or talk.server.run, 1, federation.identities[1], federation.roster)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("a past without itself", "a past that it was not in"),
        ("of this client", "another pledge of this client"),
        *first(
            1,
            [
                ("more people", "not signed by its key"),
                ("another run", "not signed by its key"),
                ("asks for less", "not signed by its key"),
                ("no past", "not signed by its key"),
                ("another period", "not signed by its key"),
            ],
        ),
    ],
)
def test_nobody_can_pledge_for_another(federation: Federation, kind: str, said: str) -> None:
    run(federation, "first")
    talk = Talk(federation, name="second")
    talk.until("advertise")
    true = talk.server.plan.pledges.signed(1)
    changed = {
        "more people": replace(true, people=999),
        "another run": made(talk, 4, run="ab" * 16),
        "asks for less": replace(true, demands=Demands(2, 0, 1)),
        "no past": replace(true, known=b"", past=b""),
        "another period": replace(true, period="2026-01-05 00:00:00+00:00"),
        "a past without itself": made(talk, 4, known=b"\x01", past=b"\x01"),
        "of this client": SignedPledge(4, Demands(2, 0, 1)).signed(
            talk.server.run, 0, federation.identities[0], federation.roster
        ),
    }[kind]
    announcement = bytes(envelope.peek(talk.message_for(0), "to-client").parts[0])
    text = plan_with_pledge(talk, 0 if kind == "of this client" else 1, changed)
    reply = talk.forged(0, Exchange(step=0), announcement, text)
    refused(reply, said, Code.BAD_PLEDGE, final=True)


def test_a_plan_without_the_sets_that_were_pledged_is_refused(federation: Federation) -> None:
    run(federation, "first")
    talk = Talk(federation, name="second")
    talk.until("advertise")
    announcement = bytes(envelope.peek(talk.message_for(0), "to-client").parts[0])
    for sets in ((), ("ff",), ("3f3f",)):
        pledges = talk.server.plan.pledges.model_copy(update={"sets": sets})
        plan = talk.server.plan.model_copy(update={"pledges": pledges})
        with pytest.raises(BadPledge):
            plan.pledges.read(federation.roster)
    reply = talk.forged(0, Exchange(step=0), announcement, plan.model_dump_json().encode())
    refused(reply, "not signed by its key", Code.BAD_PLEDGE, final=True)  # before it is read


def test_the_server_takes_no_pledge_that_would_end_its_run(federation: Federation) -> None:
    """A client cannot pledge for another through a mistake of the server either."""
    talk = Talk(federation)
    talk.server.connected({0})
    ((_, hello),) = talk.server.outgoing()
    honest = envelope.peek(federation.node(0).answer(hello), "to-server")
    for parts in ((), (b"",), (b"\x01", b"\x01"), (b"", b"\x3f")):
        bad = envelope.Envelope(honest.run, 0, honest.message, parts)
        talk.server.receive(0, bad.seal(federation.identities[0], "to-server"))
        assert talk.server.clients[0].pledge is None
    talk.server.receive(0, federation.node(0).answer(hello))
    assert talk.server.clients[0].pledge is not None


def test_a_pledge_is_the_same_however_often_it_is_asked_for(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until("input", 2)
    first = talk.server.plan.pledges.signed(0)
    here = talk.forged(0, talk.hello())
    assert here.message.signature == first.signature.hex()  # type: ignore[attr-defined]
    assert (bytes(here.parts[0]), bytes(here.parts[1])) == (first.known, first.past)


# --- a lost memory --------------------------------------------------------------------------------


def test_others_remember_for_a_client_that_lost_everything(federation: Federation) -> None:
    run(federation, "first")
    shutil.rmtree(federation.folder / "client-0/runs")
    talk = Talk(federation, name="second")
    talk.until("advertise")
    reply = federation.node(0).answer(talk.message_for(0))
    refused(reply, "others remember sums with client 0", Code.STATE_RESTORED, final=True)


def test_a_memory_from_before_an_answer_begins_no_run(federation: Federation) -> None:
    memory = federation.folder / "client-0/runs/memory.db"
    talk = Talk(federation, name="first")
    talk.until("input", 3)
    backup = shutil.copy(memory, federation.folder / "backup.db")
    talk.until(Stage.COMPUTED)
    newest = shutil.copy(memory, federation.folder / "newest.db")
    shutil.copy(backup, memory)
    second = Talk(federation, name="second")
    reply = second.forged(0, second.hello())
    refused(reply, "restored from a backup or lost", Code.STATE_RESTORED, final=False)
    shutil.copy(newest, memory)
    second.until(Stage.COMPUTED)


def test_a_memory_from_before_the_last_answer_that_was_no_vector_begins_no_run(
    federation: Federation,
) -> None:
    memory = federation.folder / "client-0/runs/memory.db"
    talk = Talk(federation, name="first")
    talk.until("unmask", 3)
    backup = shutil.copy(memory, federation.folder / "backup.db")
    talk.until(Stage.COMPUTED)
    shutil.copy(backup, memory)
    second = Talk(federation, name="second")
    reply = second.forged(0, second.hello())
    refused(reply, "restored from a backup or lost", Code.STATE_RESTORED, final=False)


def test_who_was_in_a_sum_is_remembered_when_it_is_opened(federation: Federation) -> None:
    """Remember them even if the run ends there."""
    talk = Talk(federation)
    talk.until("unmask", 1)
    assert remembered(federation, 0).cohorts(told=True) == []
    federation.node(0).answer(talk.message_for(0))
    (cohort,) = remembered(federation, 0).cohorts(told=True)
    assert len(cohort) == 6


def test_a_memory_without_the_note_of_its_last_answer_begins_no_run(
    federation: Federation,
) -> None:
    run(federation, "first")
    (federation.folder / "client-0/runs/last-answer").unlink()
    second = Talk(federation, name="second")
    reply = second.forged(0, second.hello())
    refused(reply, "restored from a backup or lost", Code.STATE_RESTORED, final=False)


def test_a_forgotten_store_is_no_way_around(federation: Federation) -> None:
    """A client's former peers are not stored with its histories."""
    federation.policy = federation.policy.model_copy(update={"days_between_changes": 0})
    run(federation, "first")
    with Store(federation.folder / "client-0/history.db") as store:
        for user in store.users():
            store.forget_user(user)
    talk = Talk(federation, name="second")
    message = talk.forged(0, talk.hello()).message
    assert message.kind == "here"
