"""Tests of rosters that deliver themselves: chains, differences, consent, and hostile servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privirec.device import Store
from privirec.errors import UsageError
from privirec.runtime.enrolment.cards import Card, Rotation
from privirec.runtime.enrolment.delivery import ACCEPTED, REFUSED, Outcome, RosterDelivery
from privirec.runtime.enrolment.folders import WAITING, ClientFolder, OperatorFolder
from privirec.runtime.enrolment.identities import make_identity, read_identity
from privirec.runtime.enrolment.roster import Revoked, RosterDifference, RosterFile
from privirec.runtime.https import client as client_module
from privirec.runtime.https import gate as gate_module
from privirec.runtime.https.connection import ROSTERS, ClientRevoked, NotLetIn
from privirec.runtime.runs import RunFolder
from privirec.secagg.keys import Identity

from . import roster_vectors
from .https_chaos import in_small_pieces, sealed
from .invited import Site, with_policy

OPERATOR, OTHER = Identity(b"o" * 32), Identity(b"p" * 32)
NODE = "ecdsa-sha2-nistp384 a"


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "REFUSED_AFTER", 0.0)
    monkeypatch.setattr(client_module, "LOOK_AGAIN", 0.0)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


# --- chains ---------------------------------------------------------------------------------------


class Growing:
    """A roster that grows by valid changes, with the private keys of all."""

    def __init__(self, operator: Identity = OPERATOR) -> None:
        self.operator = operator
        self.server = Identity(b"s" * 32)
        self.keys: dict[int, Identity] = {}
        self.made = 0
        first = RosterFile(operator=operator.public.hex())
        self.roster = first.name_server(self.server.public.hex()).signed(operator)

    def fresh(self, label: bytes = b"k") -> Identity:
        self.made += 1
        return Identity(label + self.made.to_bytes(31, "big"))

    def grow(self, kind: str, label: bytes = b"k") -> RosterFile:
        """Apply a change of this kind, if one is possible, or approve a client."""
        current = self.roster
        there = [member.client for member in current.members if not member.revoked]
        key = self.fresh(label)
        if kind == "renew":
            new = current.renew_server(self.server, key.public.hex())
            self.server = key
        elif kind == "revoke" and there:
            new = current.revoke(there[-1])
        elif kind == "rotate" and there:
            client = there[0]
            card = Card.make("x", key, NODE)
            rotation = Rotation.make(current.operator, client, self.keys[client], card)
            new = current.rotate(rotation)
            self.keys[client] = key
        else:
            self.keys[len(current.members)] = key
            new = current.approve(Card.make(f"name {self.made}", key, NODE))
        self.roster = new.signed(self.operator)
        return self.roster


KINDS = st.lists(st.sampled_from(["approve", "revoke", "rotate", "renew"]), min_size=1, max_size=8)


def history(kinds: list[str]) -> list[RosterFile]:
    """Return the rosters after each of these changes."""
    growing = Growing()
    return [growing.roster, *(growing.grow(kind) for kind in kinds)]


@given(KINDS, st.data())
def test_a_difference_leads_to_the_roster_of_the_operator(kinds: list[str], data: Any) -> None:
    rosters = history(kinds)
    before = data.draw(st.sampled_from(rosters))
    after = data.draw(st.sampled_from([each for each in rosters if each.number >= before.number]))
    since = data.draw(st.integers(0, before.number))
    text = after.difference(since).model_dump_json().encode()
    found = before.continued(RosterDifference.parse(text))
    assert found.model_dump() == after.model_dump()
    assert found.digests == after.digests
    assert found.members == after.members
    again = RosterFile.model_validate_json(found.model_dump_json())
    assert again.digests == found.digests
    found.check_continues(before)


@given(KINDS, st.data())
def test_going_back_is_refused(kinds: list[str], data: Any) -> None:
    rosters = history(kinds)
    before = data.draw(st.sampled_from(rosters[1:]))
    older = data.draw(st.sampled_from([each for each in rosters if each.number < before.number]))
    shown = older.difference(data.draw(st.integers(0, before.number)))
    with pytest.raises(UsageError, match="going back is refused") as refused:
        before.continued(shown)
    assert "\n" not in str(refused.value)


@given(KINDS, KINDS, st.data())
def test_another_past_is_refused_even_if_the_operator_signed_it(
    kinds: list[str], others: list[str], data: Any
) -> None:
    growing = Growing()
    for kind in kinds:
        growing.grow(kind)
    common, keys, server = growing.roster, dict(growing.keys), growing.server
    before = growing.grow("approve")
    growing.roster, growing.keys, growing.server = common, keys, server
    growing.made += 100
    for kind in others:
        growing.grow(kind, b"f")
    fork = growing.roster
    since = data.draw(st.integers(0, common.number))
    with pytest.raises(UsageError, match="another past"):
        before.continued(fork.difference(since))
    with pytest.raises(UsageError, match="another past"):
        fork.continued(before.difference(since))


@given(KINDS, st.data())
def test_a_gap_is_refused(kinds: list[str], data: Any) -> None:
    rosters = history([*kinds, "approve"])
    before = data.draw(st.sampled_from(rosters[:-1]))
    shown = rosters[-1].difference(data.draw(st.integers(before.number + 1, rosters[-1].number)))
    with pytest.raises(UsageError, match="are missing"):
        before.continued(shown)


@given(KINDS, st.data())
def test_what_the_operator_did_not_sign_is_refused(kinds: list[str], data: Any) -> None:
    rosters = history(kinds)
    before, after = rosters[0], rosters[-1]
    shown = after.difference(before.number)
    others = shown.model_copy(update={"operator": OTHER.public.hex()})
    resigned = after.model_copy(update={"operator": OTHER.public.hex()}).signed(OTHER)
    fewer = shown.model_copy(update={"changes": shown.changes[:-1]})
    more = shown.model_copy(update={"changes": (*shown.changes, Revoked(client=0))})
    place = data.draw(st.integers(0, 127))
    digit = "0" if shown.signature[place] != "0" else "1"
    damaged = shown.signature[:place] + digit + shown.signature[place + 1 :]
    for bad in (
        others,
        resigned.difference(before.number),
        fewer,
        more,
        shown.model_copy(update={"signature": damaged}),
        shown.model_copy(update={"after": "00" * 32}),
    ):
        with pytest.raises(UsageError, match=r"is trusted|did not sign") as refused:
            before.continued(bad)
        assert "\n" not in str(refused.value)


def test_no_change_is_undone(tmp_path: Path) -> None:
    """A signed roster that brings back a key, of a client or of the server, is not taken."""
    growing = Growing()
    growing.grow("approve")
    before = growing.grow("revoke")
    former = growing.server.public.hex()
    with pytest.raises(UsageError, match="is revoked already"):
        before.approve(Card.make("again", growing.keys[0], NODE))
    after = growing.grow("renew")
    with pytest.raises(UsageError, match="was the server's before"):
        after.name_server(former)
    forged = after.difference(before.number)
    swapped = forged.changes[0].__class__(key=OTHER.public.hex(), signature="5e" * 64)
    lying = before.model_copy(update={"changes": (*before.changes, swapped)})
    for name in ("digests", "_standing"):
        vars(lying).pop(name, None)
    signed = lying.signed(OPERATOR)
    with pytest.raises(UsageError, match="not signed by its old one"):
        before.continued(
            RosterDifference(
                operator=signed.operator,
                since=before.number,
                after=before.digests[-1].hex(),
                changes=(swapped,),
                signature=signed.signature,
            )
        )


VECTORS = json.loads(roster_vectors.FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("vector", VECTORS["cases"], ids=lambda vector: vector["name"])
def test_vectors(vector: dict[str, Any]) -> None:
    nothing = RosterFile(operator=VECTORS["operator"])
    before = nothing.continued(RosterDifference.parse(json.dumps(vector["before"]).encode()))
    shown = json.dumps(vector["shown"]).encode()
    if vector["accepted"]:
        found = before.continued(RosterDifference.parse(shown))
        assert [digest.hex() for digest in found.digests][-1] == vector["digest"]
        return
    with pytest.raises(UsageError) as refused:
        before.continued(RosterDifference.parse(shown))
    assert str(refused.value) == vector["says"]


def test_vectors_are_those_of_their_generator() -> None:
    assert roster_vectors.make() == VECTORS
    accepted = [each["accepted"] for each in VECTORS["cases"]]
    assert accepted.count(True) >= 4
    assert accepted.count(False) >= 10


# --- delivery -------------------------------------------------------------------------------------


def test_clients_learn_of_each_other_without_files(site: Site) -> None:
    clients = [site.client(name) for name in ("lyon", "oslo", "porto")]
    assert [client.members.number for client in clients] == [2, 3, 4]
    (said,) = site.turn(clients[0])
    assert said == "Roster 4: approved oslo, approved porto; accepted by policy.toml"
    assert site.turn(clients[0]) == []
    site.turn(clients[1])
    rosters = {client.members.roster().digest for client in clients}
    assert rosters == {site.home.members.roster().digest}
    site.change(lambda roster: roster.revoke(1))
    assert site.turn(clients[2]) == ["Roster 5: revoked oslo; accepted by policy.toml"]
    with pytest.raises(ClientRevoked):
        site.turn(clients[1])


def test_new_keys_of_a_client_arrive_by_themselves(site: Site) -> None:
    lyon, oslo = site.client("lyon"), site.client("oslo")
    site.turn(lyon)
    old = lyon.identity.public.hex()
    rotation = lyon.rotate()
    assert site.turn(lyon) == []
    assert lyon.identity.public.hex() == old
    site.change(lambda roster: roster.rotate(rotation))
    assert site.turn(oslo) == ["Roster 4: new key lyon; accepted by policy.toml"]
    assert site.turn(lyon) == ["Roster 4: new key lyon; accepted by policy.toml"]
    assert lyon.identity.public.hex() == rotation.card.key
    assert lyon.next_identity is None
    assert site.turn(lyon) == []


def new_server_key(home: OperatorFolder, *, signed: bool) -> None:
    fresh = home.folder / "fresh.key"
    make_identity(fresh)
    key = read_identity(fresh).public.hex()
    members = home.members
    home.save(members.renew_server(home.server, key) if signed else members.name_server(key))
    fresh.replace(home.folder / "run.key")


def test_a_new_key_of_the_server_that_the_old_one_signed_arrives(site: Site) -> None:
    lyon = site.client("lyon")
    new_server_key(site.home, signed=True)
    site.gate.read_roster()
    assert site.turn(lyon) == ["Roster 3: server's new key; accepted by policy.toml"]
    assert lyon.members.server == site.home.members.server
    assert site.turn(lyon) == []


def test_a_new_key_of_the_server_that_the_old_one_did_not_sign_waits(site: Site) -> None:
    lyon = site.client("lyon")
    former = lyon.members.server
    new_server_key(site.home, signed=False)
    site.gate.read_roster()
    told: list[str] = []
    connection, answering = site.device(lyon, told.append)
    with pytest.raises(NotLetIn):
        connection.turn()
    answering.close()
    assert told == [
        "Roster 3: server's key; it waits for your consent, because the server's new key is not "
        "signed by its old one"
    ]
    assert lyon.members.server == former
    lyon.join(lyon.offered(lyon.folder / WAITING))
    assert site.turn(lyon) == []


def test_an_owner_is_asked_if_the_policy_says_so(site: Site) -> None:
    lyon = site.client("lyon")
    with_policy(lyon, most_roster_changes_per_month=0)
    site.client("oslo")
    (said,) = site.turn(lyon)
    assert said.startswith(
        "Roster 3: approved oslo; it waits for your consent, because these are 1"
    )
    assert lyon.members.number == 2
    lyon.join(lyon.offered(lyon.folder / WAITING))
    assert lyon.members.number == 3
    assert not (lyon.folder / WAITING).exists()
    assert site.turn(lyon) == []
    site.client("porto")
    site.turn(lyon)
    with_policy(lyon, most_roster_changes_per_month=1)  # the owner reconsiders
    assert site.turn(lyon) == ["Roster 4: approved porto; accepted by policy.toml"]


def test_changes_of_thirty_days_count_together(site: Site) -> None:
    lyon = site.client("lyon")
    with_policy(lyon, most_roster_changes_per_month=3)
    days = [datetime(2026, 1, 1, tzinfo=UTC)]
    delivery = RosterDelivery(lyon, lambda: days[0])

    def take() -> Outcome:
        content = site.home.members.difference(delivery.members.number).model_dump_json()
        return delivery.take(content.encode())[0]

    outcomes = []
    for day in (0, 5, 10, 15, 31, 32):
        days[0] = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day)
        if outcomes[-1:] != [Outcome.WAITS]:
            site.client(f"client {day}")
        outcomes.append(take())
    taken, waits = Outcome.INSTALLED, Outcome.WAITS
    assert outcomes == [taken, taken, taken, waits, waits, taken]
    assert take() is Outcome.KNOWN


def test_a_delivery_that_was_interrupted_is_counted_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    lyon = site.client("lyon")
    with_policy(lyon, most_roster_changes_per_month=1)
    site.client("oslo")
    content = site.home.members.difference(2).model_dump_json().encode()
    with monkeypatch.context() as killed:
        killed.setattr(ClientFolder, "join", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            RosterDelivery(lyon).take(content)
    assert (lyon.folder / ACCEPTED).exists()
    assert lyon.members.number == 2
    assert RosterDelivery(lyon).take(content)[0] is Outcome.INSTALLED


def test_a_damaged_record_of_accepted_changes_accepts_nothing(site: Site) -> None:
    lyon = site.client("lyon")
    site.client("oslo")
    for text in ("[]", "{", '{"1": 2}', '{"1": ["yesterday", 1]}'):
        (lyon.folder / ACCEPTED).write_text(text)
        with pytest.raises(UsageError, match="not a record of accepted changes"):
            RosterDelivery(lyon).take(site.home.members.difference(2).model_dump_json().encode())
    assert lyon.members.number == 2


# --- during a run ---------------------------------------------------------------------------------


@pytest.fixture
def in_a_run(site: Site) -> Iterator[tuple[Site, ClientFolder]]:
    """Return a server in the middle of a run, and one of the run's clients."""
    lyon = site.client("lyon")
    run = RunFolder(site.home, "monday")
    site.mailbox.begin(run.roster())
    yield site, lyon
    assert RunFolder(site.home, "monday").roster().number == 2  # also after a restart


def test_a_run_keeps_its_roster_and_newcomers_get_the_next_one(
    in_a_run: tuple[Site, ClientFolder],
) -> None:
    site, lyon = in_a_run
    oslo = site.client("oslo")
    assert oslo.members.number == 3
    assert site.turn(lyon) == []
    assert lyon.members.number == 2
    assert site.turn(oslo) == []
    site.change(lambda roster: roster.revoke(1))
    with pytest.raises(ClientRevoked):
        site.turn(oslo)  # at once, whatever the run's roster says
    site.mailbox.end()
    assert site.turn(lyon) == ["Roster 4: approved oslo, revoked oslo; accepted by policy.toml"]


# --- hostile servers ------------------------------------------------------------------------------


def replayed(site: Site, number: int) -> None:
    """Show everybody the roster of a former day, which the operator signed then."""
    old = history_of(site)[number]
    site.gate._roster = old
    site.gate._shown = None


_KEPT: dict[int, dict[int, RosterFile]] = {}


def history_of(site: Site) -> dict[int, RosterFile]:
    kept = _KEPT.setdefault(id(site), {})
    members = site.home.members
    kept[members.number] = members
    return kept


def test_a_server_that_replays_an_old_roster_is_refused_in_one_line(site: Site) -> None:
    """It would bring back a client that was revoked because its keys leaked."""
    lyon = site.client("lyon")
    site.client("oslo")
    history_of(site)
    site.turn(lyon)
    site.change(lambda roster: roster.revoke(1))
    site.turn(lyon)
    replayed(site, 3)
    (said,) = site.turn(lyon)
    assert said == (
        "Refused: the server shows roster 3, which is older than roster 4, which is in place; "
        "going back is refused"
    )
    assert lyon.members.number == 4
    assert (lyon.folder / REFUSED).exists()


def test_a_server_that_was_set_back_hears_of_it(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    lyon = site.client("lyon")
    history_of(site)
    site.client("oslo")
    site.turn(lyon)
    replayed(site, 2)
    site.turn(lyon)
    assert "client 0 has roster 3, and here is roster 2: bring back the newest" in caplog.text


def test_different_rosters_for_different_clients_are_noticed_with_proof(site: Site) -> None:
    """The operator works for the server: lyon sees one roster, oslo another.

    Nobody notices while each sees only its own. As soon as a client is shown the other one, it
    refuses, and keeps the operator's signature on both.
    """
    lyon, oslo = site.client("lyon"), site.client("oslo")
    site.turn(lyon)
    common = site.home.members
    operator = read_identity(site.home.folder / "operator.key")
    cards = [Card.make(name, Identity(name.encode() * 16), NODE) for name in ("aa", "bb")]
    one, two = (common.approve(card).signed(operator) for card in cards)
    for client, roster in ((lyon, one), (oslo, two)):
        site.gate._roster, site.gate._shown = roster, None
        (said,) = site.turn(client)
        assert "accepted" in said
    assert lyon.members.roster().digest != oslo.members.roster().digest  # so they share no run
    for longer in (two.revoke(2).signed(operator), two.revoke(2).revoke(1).signed(operator)):
        site.gate._roster, site.gate._shown = longer, None
        (said,) = site.turn(lyon)
        assert said.startswith(f"Refused: the server shows a roster {longer.number} with another")
        assert "the operator signed both" in said
    proof = RosterDifference.parse((lyon.folder / REFUSED).read_bytes())
    assert proof.is_signed
    assert lyon.members.number == 4


def test_a_roster_that_the_server_invents_is_refused(site: Site) -> None:
    lyon = site.client("lyon")
    invented = site.home.members.approve(Card.make("nobody", OTHER, NODE))
    site.gate._roster = invented.model_copy(update={"signature": "5e" * 64})
    (said,) = site.turn(lyon)
    assert said == "Refused: the server shows a roster 3 that the operator did not sign"
    assert lyon.members.number == 2


def test_a_roster_without_the_client_is_refused(site: Site) -> None:
    """The server does not tell lyon that it is revoked, but shows it such a roster."""
    lyon = site.client("lyon")
    revoking = site.home.members.revoke(0)
    site.gate._roster = revoking.signed(read_identity(site.home.folder / "operator.key"))
    (said,) = site.turn(lyon)
    assert "is not approved there" in said
    assert lyon.members.number == 2


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"version": 1}'])
def test_nonsense_in_the_place_of_a_roster_is_refused(site: Site, content: bytes) -> None:
    lyon = site.client("lyon")
    with pytest.raises(UsageError, match="cannot be read"):
        RosterDelivery(lyon).take(content)


def test_strangers_see_no_roster_and_no_catalogue(site: Site) -> None:
    lyon = site.client("lyon")
    connection, answering = site.device(lyon)
    connection._identity, connection._keys = OTHER, None
    for target in (f"{ROSTERS}?since=0", "/v1/catalogue"):
        with pytest.raises(NotLetIn):
            connection.download(target)
    answering.close()


def test_a_roster_of_thousands_arrives_in_ranges(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    lyon = site.client("lyon")
    members = site.home.members
    for number in range(40):
        members = members.approve(Card.make(f"c{number}", Identity(bytes([9, number]) * 16), NODE))
    site.change(lambda _: members)
    in_small_pieces(monkeypatch)
    assert site.turn(lyon) == ["Roster 42: 40 approved; accepted by policy.toml"]


def test_answers_wait_until_the_roster_is_in_place(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that begins asks at once; the client fetches the run's roster before it answers."""
    lyon = site.client("lyon")
    Store(lyon.folder / "history.db", create=True).close()
    site.client("oslo")
    seen: list[int] = []

    def answer(_message: bytes) -> bytes:
        seen.append(lyon.members.number)
        return sealed(b"answer", lyon.identity)

    connection, answering = site.device(lyon)
    monkeypatch.setattr(connection, "_answer", answer)
    site.mailbox.send(0, b"question")
    connection.turn()
    answering.close()
    assert seen == [3]
