"""Tests of attacks by a server that tells clients different stories.

Every attack runs against real clients. It succeeds if clients trust the server to be semi-honest,
or if the one guard that it concerns is removed; otherwise it fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from breadth import first
from privirec.secagg import ClientPolicy, ServerModel, Statement, parameters
from privirec.secagg.bell2020 import BellClient, client
from privirec.secagg.bell2020.messages import Confirmed, Neighbours, Unmask, decode
from privirec.secagg.errors import KeysNotInGraph, Unconfirmed, WeakParameters
from privirec.secagg.key_tree import KeyTree
from privirec.secagg.messages import encode
from privirec.secagg.parameters import Parameters, least_honest, sparse_parameters
from secagg.testing.lying_server import LyingServer, Setting

from .test_attacks import start
from .test_vectors import ACTIVE_BAD, ACTIVE_RUN, session, step

SEMI_HONEST, ACTIVE = ServerModel.SEMI_HONEST, ServerModel.ACTIVE
SMALL = Setting(180, (0.0, 0.1), correctness_bits=10)
"""A sparse graph that takes little time: 18 neighbours, 10 of which open a secret."""
SMALL_STATEMENT = Statement.of(
    SMALL.clients, *SMALL.shares, correctness_bits=SMALL.correctness_bits, server=ACTIVE
)


def gathered(setting: Setting) -> LyingServer:
    server = LyingServer(setting)
    server.gather()
    return server


@pytest.fixture(scope="module")
def trusted() -> LyingServer:
    """Return a trusted server with the vectors of 300 clients, 60 of which may drop out; no lie
    yet."""
    return gathered(Setting(300, server=SEMI_HONEST))


@pytest.fixture(scope="module")
def active() -> LyingServer:
    """Return an active server with the vectors of 200 clients, 40 of which may drop out."""
    return gathered(Setting(200, correctness_bits=10))


def has_sum(server: LyingServer, group: frozenset[int]) -> bool:
    """Return True if the server's data gives the sum over a group."""
    expected = np.sum([server.vector(one) for one in group], axis=0)
    return server.opened_sum(group).tolist() == expected.tolist()


def test_the_parameters_of_the_attacks(trusted: LyingServer, active: LyingServer) -> None:
    assert trusted.parameters == Parameters(46, 16)
    assert active.parameters == Parameters(78, 50)


# --- one client, called both dropped and alive ----------------------------------------------------


def half_are_told_that_one_dropped(server: LyingServer, victim: int) -> None:
    everybody = frozenset(range(server.setting.clients))
    deceived = set(server.neighbours(victim)[::2])
    others = everybody - {victim}
    server.tell({one: others if one in deceived else everybody for one in others})


def test_a_server_that_is_trusted_reads_the_vector_of_a_client(trusted: LyingServer) -> None:
    server = trusted.fork()
    half_are_told_that_one_dropped(server, 11)
    assert not server.loot.refusals
    assert 11 in server.opened_seeds() & server.opened_keys()
    assert frozenset({11}) in server.groups()
    assert server.opened_sum({11}).tolist() == server.vector(11).tolist()


def test_an_active_server_gets_no_secret_of_a_client_that_it_calls_dropped_and_alive(
    active: LyingServer,
) -> None:
    server = active.fork()
    half_are_told_that_one_dropped(server, 11)
    assert server.loot.refusals.keys() == {"BadSignature", "Unconfirmed"}
    assert 11 not in server.opened_seeds() | server.opened_keys()
    assert server.groups() == []


@pytest.fixture
def low_thresholds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lower the thresholds against an active server to the least that is private."""
    monkeypatch.setattr(parameters, "_steadfast", lambda degree, near, on_one_side: near + 1)
    caches = (parameters.sparse_parameters, parameters.complete_parameters)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.mark.usefixtures("low_thresholds")
@pytest.mark.parametrize("confirmed", [True, False])
def test_it_is_the_confirmation_that_stops_two_stories_below_the_threshold(
    confirmed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not confirmed:
        monkeypatch.setattr(BellClient, "check_confirmed", lambda *_: None)
    server = LyingServer(replace(SMALL, clients=60))
    server.gather()
    assert 2 * server.parameters.threshold <= server.parameters.neighbours
    half_are_told_that_one_dropped(server, 11)
    assert (frozenset({11}) in server.groups()) is not confirmed
    assert ("BadSignature" in server.loot.refusals) is confirmed


@pytest.mark.parametrize("name", ["secagg+", "secagg"])
def test_it_is_the_threshold_that_keeps_the_two_secrets_apart(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test without any confirmation, for any division of neighbours between the two stories."""
    monkeypatch.setattr(BellClient, "check_confirmed", lambda *_: None)
    for told in (6, 10, 13, 16):
        corrupt = frozenset({1, 2})
        setting = Setting(24, (0.05, 0.1), protocol=name, corrupt=corrupt, correctness_bits=10)
        server = LyingServer(setting)
        server.gather()
        everybody = frozenset(range(24))
        deceived = server.neighbours(11)[:told]
        server.tell({one: everybody - {11} if one in deceived else everybody for one in everybody})
        assert 11 not in server.opened_seeds() & server.opened_keys()


# --- a part of the ring ---------------------------------------------------------------------------


def arc_between_two_late_ones(server: LyingServer, late: int, size: int) -> frozenset[int]:
    ring = server.ring()
    gone = {*ring[:late], *ring[late + size : 2 * late + size]}
    view = frozenset(ring) - gone
    server.tell(dict.fromkeys(view, view))
    return frozenset(ring[late : late + size])


def test_a_server_that_is_trusted_cuts_a_few_clients_out_of_the_ring(trusted: LyingServer) -> None:
    """Test that all clients believe in a sum over 254 clients, and the server opens one over 17."""
    server = trusted.fork()
    few = arc_between_two_late_ones(server, late=23, size=17)
    assert len(server.loot.answered) == 254
    assert not server.loot.refusals
    assert sorted(map(len, server.groups())) == [17, 237]
    assert few in server.groups()
    assert has_sum(server, few)


@pytest.mark.parametrize(
    ("late", "size"), first(2, [(39, 51), (20, 17), (39, 17), (20, 80), (5, 40)])
)
def test_an_active_server_cuts_out_nobody(active: LyingServer, late: int, size: int) -> None:
    server = active.fork()
    few = arc_between_two_late_ones(server, late, size)
    assert few not in server.groups()
    if 2 * late > 40 or size < 20:  # more than may drop out, or too many in one neighbourhood
        assert server.groups() == []
        assert server.loot.refusals.keys() & {"TooManyDropped", "BelowThreshold"}
    else:  # as if they had dropped out: all others are in one sum
        assert [len(group) for group in server.groups()] == [200 - 2 * late]


@pytest.mark.check
def test_three_hundred_clients_withstand_an_active_server() -> None:
    """Test the same federation that the attacks on a trusted server use."""
    server = gathered(Setting(300))
    assert server.parameters == Parameters(130, 81)
    one, other = server.fork(), server.fork()
    half_are_told_that_one_dropped(one, 11)
    arc_between_two_late_ones(other, late=65, size=17)
    for attacked in (one, other):
        assert attacked.loot.refusals
        assert attacked.groups() == []
        assert not attacked.opened_seeds() & attacked.opened_keys()


def test_too_many_of_one_neighbourhood_called_dropped_are_refused_by_it() -> None:
    """Test 18 of 180 clients that may drop out, but not 9 of the 18 neighbours of one client."""
    server = LyingServer(SMALL)
    server.gather()
    near = server.neighbours(11)
    view = frozenset(range(180)) - set(near[:9])
    server.tell({11: view})
    assert server.loot.refusals == {"BelowThreshold": 1}


def test_two_halves_of_the_ring_with_a_list_each_open_nothing(active: LyingServer) -> None:
    server = active.fork()
    ring = server.ring()
    everybody = frozenset(ring)
    halves = (frozenset(ring[:100]), frozenset(ring[100:]))
    lost = [min(half) for half in halves]
    views = {one: everybody - {lost[place]} for place, half in enumerate(halves) for one in half}
    server.tell({one: view for one, view in views.items() if one in view})
    assert server.loot.refusals["BadSignature"] > 100
    assert server.groups() == []


def arc_behind_shares_kept_back(server: LyingServer) -> frozenset[int]:
    """Withhold outside shares from the clients of an arc, except for one client on either side,
    which is declared dropped. Clients outside believe in a sum over all, those inside in one over a
    few."""
    half = sparse_parameters(SMALL_STATEMENT).neighbours // 2
    size = half + 6
    arc: list[int] = []
    far: set[int] = set()

    def kept_back() -> dict[int, set[int]]:
        ring = server.ring()
        arc.extend(ring[:size])
        far.update(ring[size + 1 : size + half], ring[-half:-1])
        return dict.fromkeys(arc, far)

    server.gather(kept_back=kept_back)
    ring = server.ring()
    outside = frozenset(ring) - {ring[size], ring[-1]}
    inside = outside - far
    server.tell({one: inside if one in arc else outside for one in outside})
    return frozenset(arc)


@pytest.mark.parametrize("all_must_confirm", [True, False])
def test_all_neighbours_in_the_sum_have_to_confirm_it_and_not_only_a_threshold(
    all_must_confirm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test an attack on confirmation by a mere threshold of neighbours: a sum over a short arc
    could be cut out, because its clients have no masks with answering clients outside, whose shares
    were withheld."""
    server = LyingServer(SMALL)

    def a_threshold_is_enough(self: BellClient, _message: Confirmed) -> None:
        survivors, _ = self._lists()
        same = [one for one in survivors if server.clients[one].state.cohort == self.state.cohort]
        if len(same) < self.state.threshold:
            raise Unconfirmed("too few")

    if not all_must_confirm:
        monkeypatch.setattr(BellClient, "check_confirmed", a_threshold_is_enough)
    arc = arc_behind_shares_kept_back(server)
    assert len(arc) < least_honest(SMALL_STATEMENT)
    if all_must_confirm:
        assert server.groups() == []
        assert server.loot.refusals.keys() == {"BelowThreshold", "Unconfirmed"}
    else:
        assert arc in server.groups()
        assert has_sum(server, arc)


FORGED = [case for case in ACTIVE_BAD["cases"] if case["error"] in ("BadSignature", "Unconfirmed")]


@pytest.mark.parametrize("case", FORGED, ids=lambda case: case["name"])
def test_signatures_that_will_not_do_would_open_shares_if_nobody_looked(
    case: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that replayed, foreign or too few signatures would open shares without the check;
    test_vectors.py tests their refusal."""
    monkeypatch.setattr(BellClient, "check_confirmed", lambda *_: None)
    recorded = next(one for one in ACTIVE_RUN["clients"] if one["client"] == ACTIVE_BAD["client"])
    deceived = session(recorded, case["policy"], ACTIVE_RUN)
    for expected in recorded["steps"][: case["after"]]:
        step(deceived, expected)
    answer = decode(deceived.receive(bytes.fromhex(case["message"])) or b"")
    assert isinstance(answer, Unmask)
    assert answer.seed_shares


# --- the graph ------------------------------------------------------------------------------------


@pytest.mark.parametrize("checked", [True, False])
def test_a_graph_that_was_chosen_before_the_client_answered_is_refused(
    checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test a server that tries roots until it likes the neighbours of client 0."""
    if not checked:
        monkeypatch.setattr(client, "check_path", lambda *_: None)
    run = start("secagg+", clients=60, server=ACTIVE)
    run.advertise()
    told = decode(dict(run.next_messages())[0])
    assert isinstance(told, Neighbours)
    server: LyingServer = run.server  # type: ignore[assignment]
    announced = client.graph_seed(run.clients[0].announcement.digest, told.participants)  # type: ignore[attr-defined]
    assert announced != server._graph  # type: ignore[attr-defined]
    friends = range(1, 20)
    for number in range(10_000):
        leaves = [number.to_bytes(4, "big") + bytes([place]) * 28 for place in range(60)]
        tree = KeyTree(leaves)
        digest = run.clients[0].announcement.digest  # type: ignore[attr-defined]
        seed = client.graph_seed(digest, told.participants, tree.root)
        near = client.ring_graph(60, told.neighbours, seed).neighbours(0).tolist()
        if len(set(near) & set(friends)) >= 9:
            break
    advertised = server._advertised  # type: ignore[attr-defined]
    lie = replace(
        told, root=tree.root, path=tree.path(0), keys=tuple(advertised[peer] for peer in near)
    )
    if checked:
        with pytest.raises(KeysNotInGraph, match="not drawn from the keys"):
            run.clients[0].receive(encode(lie))
    else:
        assert run.clients[0].receive(encode(lie)) is not None


def test_the_graph_changes_with_every_key() -> None:
    """Test two clients of the same roster in the same run, one of which draws other keys."""
    seeds = set()
    for seed in range(3):
        server = LyingServer(replace(SMALL, clients=20, seed=seed))
        server.gather()
        seeds.add(server.session._graph)
    assert len(seeds) == 3


# --- the server model -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["secagg+", "secagg"])
def test_a_client_that_insists_on_an_active_server_refuses_to_trust_it(name: str) -> None:
    careful, trusting = ClientPolicy(server=ACTIVE), ClientPolicy(server=SEMI_HONEST)
    run = start(name, policy=careful, server=SEMI_HONEST)
    with pytest.raises(WeakParameters, match="semi-honest, where this client insists on active"):
        run.clients[0].receive(run.server.announcement)
    for policy, server in ((trusting, SEMI_HONEST), (trusting, ACTIVE), (careful, ACTIVE)):
        run = start(name, policy=policy, server=server)
        assert run.clients[0].receive(run.server.announcement)


@pytest.mark.parametrize("name", ["lightsecagg", "none", "correlated-noise"])
def test_the_model_makes_no_difference_to_other_protocols(name: str) -> None:
    run = start(name, policy=ClientPolicy(server=ACTIVE), server=SEMI_HONEST)
    assert run.clients[0].receive(run.server.announcement)


# --- required clients -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["secagg+", "secagg"])
def test_whoever_leaves_before_it_confirms_ends_the_run(name: str) -> None:
    run = start(name, clients=20, shares=(0.1, 0.2), server=ACTIVE)
    run.set_up()
    run.contribute(1)
    for one, message in run.next_messages():
        if one != 5:
            run.server.receive(one, run.clients[one].receive(message) or b"")
    with pytest.raises(Unconfirmed, match="1 of 20 clients have not confirmed"):
        run.server.advance()
    assert run.server.aborted
