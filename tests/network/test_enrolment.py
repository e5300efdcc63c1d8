"""Tests of the folders of operators and clients: keys, rosters, certificates and admission."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
import ssl
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privirec.data.catalogue import read_catalogue, write_catalogue
from privirec.device import Catalogue, Store
from privirec.durable import Journal
from privirec.errors import DataError, UsageError
from privirec.runtime import envelope
from privirec.runtime.enrolment import roster as roster_module
from privirec.runtime.enrolment.cards import Card, Rotation
from privirec.runtime.enrolment.certificates import make_certificates
from privirec.runtime.enrolment.folders import ClientFolder, OperatorFolder
from privirec.runtime.enrolment.identities import fingerprint, is_told, make_identity, read_identity
from privirec.runtime.enrolment.roster import Approved, RosterFile, Rotated
from privirec.runtime.envelope import Envelope
from privirec.runtime.histories import FromFile, FromStore, in_a_run
from privirec.runtime.messages import TurnedAway
from privirec.runtime.refusals import Code
from privirec.secagg.keys import Identity

Homes = tuple[OperatorFolder, list[ClientFolder]]


@pytest.fixture
def homes(tmp_path: Path) -> Homes:
    server = OperatorFolder.create(tmp_path / "server")
    clients = [ClientFolder.create(tmp_path / f"client-{n}") for n in range(3)]
    members = server.members
    for number, client in enumerate(clients):
        members = members.approve(client.card(f"client {number}"))
    server.save(members)
    return server, clients


def join(client: ClientFolder, home: OperatorFolder, server: str = "") -> int:
    roster = home.folder / "roster.json"
    return client.join(client.offered(roster, operator=home.operator), server=server)


def joined(homes: Homes) -> ClientFolder:
    """Return a client with a catalogue and an empty store."""
    server, (found, *_) = homes
    join(found, server)
    write_catalogue(found.folder / "catalogue.txt", Catalogue(["a", "b"]))
    Store(found.folder / "history.db", create=True).close()
    return found


def stranger(folder: Path, name: str = "new") -> Card:
    return ClientFolder.create(folder).card(name)


def test_enrolment(homes: Homes) -> None:
    server, clients = homes
    for number, client in enumerate(clients):
        assert join(client, server, server="example.org:9443") == number
        assert client.settings.server == "example.org:9443"
        assert client.settings.operator == server.operator
    assert dict(server.members.roster()) == {
        number: client.identity.public for number, client in enumerate(clients)
    }


def test_secrets_are_for_their_owner_only(homes: Homes) -> None:
    server, clients = homes
    clients[0].join(clients[0].offered(server.folder / "roster.json"))
    clients[0].rotate()
    for path in (
        *(server.folder / name for name in ("operator.key", "run.key")),
        *(clients[0].folder / name for name in ("node.key", "next/node.key", "next/identity.key")),
    ):
        assert path.stat().st_mode & 0o077 == 0
    key = clients[0].folder / "identity.key"
    key.chmod(0o644)
    with pytest.raises(UsageError, match="others may read this key"):
        read_identity(key)


def test_revoked_duplicated_and_foreign_ones_are_refused(homes: Homes, tmp_path: Path) -> None:
    server, clients = homes
    card = clients[1].card("again")
    with pytest.raises(UsageError, match="in the roster already, as client 1"):
        server.members.approve(card)
    with pytest.raises(UsageError, match="has the name 'client 0' already"):
        server.members.approve(stranger(tmp_path / "namesake", "client 0"))
    server.save(server.members.revoke(1))
    assert set(server.members.roster()) == {0, 2}
    with pytest.raises(UsageError, match="is not approved there"):
        join(clients[1], server)
    with pytest.raises(UsageError, match="is revoked already"):
        server.members.approve(card)
    with pytest.raises(UsageError, match="is revoked"):
        server.members.revoke(1)
    added = server.members.approve(stranger(tmp_path / "new")).members[-1]
    assert added.client == 3  # each number is assigned once
    other = OperatorFolder.create(tmp_path / "other")
    join(clients[0], server)
    with pytest.raises(UsageError, match=r"where .* is trusted"):
        clients[0].offered(other.folder / "roster.json")
    with pytest.raises(UsageError, match=r"where .* is trusted"):
        RosterFile.read(other.folder / "roster.json", server.operator)
    with pytest.raises(UsageError, match="for another operator make another client"):
        clients[0].offered(other.folder / "roster.json", operator=other.operator)


def test_a_number_is_given_once_whatever_the_operator_signs(homes: Homes, tmp_path: Path) -> None:
    """An approval with another client's number would replace its key without its signature."""
    server, _ = homes
    card = stranger(tmp_path / "invented", "invented")
    for number in (0, 1, 2, 4):
        invented = Approved(client=number, name=card.name, key=card.key, node=card.node)
        with pytest.raises(UsageError, match="is not the next one"):
            server.members._with(invented)


def test_a_changed_roster_is_refused(homes: Homes) -> None:
    server, _ = homes
    path = server.folder / "roster.json"
    record = json.loads(path.read_bytes())
    record["changes"][1]["key"] = "ab" * 32
    path.write_text(json.dumps(record))
    with pytest.raises(UsageError, match="signature does not fit"):
        RosterFile.read(path)
    for text, said in (("[]", "not a roster"), ('{"roster": {}}', "of an earlier version")):
        path.write_text(text)
        with pytest.raises(UsageError, match=said):
            RosterFile.read(path)


# --- over time ------------------------------------------------------------------------------------


def test_a_roster_from_an_editor_that_marks_its_encoding_is_read(homes: Homes) -> None:
    server, (client, *_) = homes
    roster = server.folder / "roster.json"
    roster.write_bytes(b"\xef\xbb\xbf" + roster.read_bytes())
    assert client.offered(roster, operator=server.operator) == server.members
    assert join(client, server) == 0


def test_what_is_signed_of_a_roster_stays_what_it_is() -> None:
    """Rosters in use were signed in this form: all fields, in a fixed order."""
    operator, server, old, new = (Identity(bytes([n]) * 32).public.hex() for n in range(1, 5))
    node, signature, name = "ecdsa-sha2-nistp384 a", "5e" * 64, "Zo\u00eb \u2603"
    changes = [
        {"change": "server", "key": server},
        {"change": "approve", "client": 0, "name": name, "key": old, "node": node},
        {"change": "rotate", "client": 0, "key": new, "node": node, "signature": signature},
        {"change": "revoke", "client": 0},
    ]
    roster = RosterFile.model_validate({"operator": operator, "changes": changes})
    expected = [hashlib.sha256(b"privirec-roster-chain-2" + bytes.fromhex(operator)).digest()]
    for change in changes:
        text = json.dumps(change, separators=(",", ":"), sort_keys=True).encode()
        expected.append(hashlib.sha256(expected[-1] + text).digest())
    assert roster.digests == expected
    told = "718c4df6136855c22bb8df24cb0bb75d9371066eb91c60b6ba112b6e3835de56"
    assert expected[-1].hex() == told


def test_a_key_is_rotated_by_its_owner(homes: Homes) -> None:
    """The old keys stay valid until the client receives a roster with the new ones."""
    server, clients = homes
    client = clients[2]
    join(client, server)
    old, lineages = client.identity.public.hex(), server.members.lineages()
    assert lineages[2] == old
    for _ in range(2):
        rotation = client.rotate()
        assert rotation == client.rotate()  # a repeated call returns the same new keys
        join(client, server)
        assert client.identity.public.hex() == rotation.old
        server.save(server.members.rotate(rotation))
        assert join(client, server) == 2
        assert client.identity.public.hex() == rotation.card.key != rotation.old
        assert client.card("x").node == rotation.card.node == server.members.member(2).node
        assert server.members.lineages() == lineages == client.members.lineages()
        with pytest.raises(UsageError, match="has another key than"):
            server.members.rotate(rotation)
    reused = Rotation.make(server.operator, 0, clients[0].identity, client.card("client 0"))
    with pytest.raises(UsageError, match="in the roster already, as client 2"):
        server.members.rotate(reused)


def test_who_was_revoked_and_comes_back_is_somebody_new(homes: Homes, tmp_path: Path) -> None:
    server, clients = homes
    members = server.members.revoke(2)
    again = members.approve(stranger(tmp_path / "again", "client 2"))
    assert again.lineages()[3] != clients[2].identity.public.hex()
    assert 2 not in again.lineages()
    with pytest.raises(UsageError, match="is revoked"):
        again.rotate(Rotation.make(server.operator, 2, clients[2].identity, stranger(tmp_path)))


def test_the_keys_of_a_client_are_its_own_in_their_order(homes: Homes) -> None:
    """Keys of others do not count: their owners could write into this client's record."""
    server, clients = homes
    had = {number: [client.identity.public] for number, client in enumerate(clients)}
    for number in (2, 0, 2):
        client = clients[number]
        join(client, server)
        rotation = client.rotate()
        had[number].append(bytes.fromhex(rotation.card.key))
        server.save(server.members.rotate(rotation))
        join(client, server)
    server.save(server.members.revoke(1))
    assert {number: list(server.members.keys_of(number)) for number in had} == had
    assert server.members.keys_of(99) == ()


def test_a_roster_that_names_no_server_is_not_taken_in(homes: Homes, tmp_path: Path) -> None:
    """Without a server's key no request to the client could be verified."""
    server, (client, *_) = homes
    operator = read_identity(server.folder / "operator.key")
    path = tmp_path / "without.json"
    without = RosterFile(operator=server.operator).approve(client.card("client 0"))
    without.signed(operator).write(path)
    with pytest.raises(UsageError, match="names no server"):
        client.offered(path)
    assert not client.has_joined
    without.name_server(server.server.public.hex()).signed(operator).write(path)
    assert client.join(client.offered(path)) == 0


@pytest.mark.parametrize("address", ["http://example.org:9443", "example.org"])
def test_nobody_joins_with_what_is_no_address(homes: Homes, address: str) -> None:
    server, (client, *_) = homes
    with pytest.raises(UsageError, match="https"):
        join(client, server, server=address)
    assert client.is_new


def invented_rotation(server: OperatorFolder, client: int, folder: Path) -> RosterFile:
    """Return the roster of a dishonest operator who rotates client 2 to an invented key."""
    mine = ClientFolder.create(folder)
    old = server.members.member(client).key
    rotation = Rotation.make(server.operator, client, mine.identity, mine.card("x"))
    change = Rotated(
        client=client,
        key=rotation.card.key,
        node=rotation.card.node,
        signature=rotation.signature,
    )
    assert rotation.old != old
    before = server.members
    return RosterFile(operator=server.operator, changes=(*before.changes, change))


def test_an_operator_cannot_rotate_a_client_to_an_invented_key(
    homes: Homes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rotation would exclude the real client and let the operator act under its name."""
    server, clients = homes
    for client in clients:
        join(client, server)
    cheating = invented_rotation(server, 2, tmp_path / "invented")
    path = tmp_path / "cheating.json"
    with monkeypatch.context() as off:
        off.setattr(roster_module, "check_rotation", lambda *_: None)
        cheating.signed(read_identity(server.folder / "operator.key")).write(path)
        clients[0].join(clients[0].offered(path))
        assert clients[0].members.lineages()[2] == clients[2].identity.public.hex()
        assert clients[0].members.roster()[2] != clients[2].identity.public
    with pytest.raises(UsageError, match="key of client 2 is not signed by its old one") as refused:
        clients[1].offered(path)
    assert "\n" not in str(refused.value)
    with pytest.raises(UsageError, match="not signed by its old one"):
        RosterFile.read(path)


def test_a_rotation_is_for_one_operator_one_client_and_one_key(
    homes: Homes, tmp_path: Path
) -> None:
    server, clients = homes
    join(clients[0], server)
    good = clients[0].rotate()
    other = OperatorFolder.create(tmp_path / "other")
    elsewhere = other.members.approve(clients[0].card("client 0"))
    with pytest.raises(UsageError, match="for operator"):
        elsewhere.rotate(good)
    path = tmp_path / "rotation.json"
    for change in (
        {"client": 1},
        {"operator": other.operator},
        {"old": clients[1].identity.public.hex()},
        {"card": stranger(tmp_path / "thief")},
        {"card": good.card.model_copy(update={"node": clients[1].card("x").node})},
    ):
        path.write_bytes(good.model_copy(update=change).as_file())
        with pytest.raises(UsageError, match="not signed by the keys in it"):
            Rotation.read(path)
    path.write_bytes(good.as_file())
    assert Rotation.read(path) == good


def _older(server: OperatorFolder) -> RosterFile:
    members = server.members
    return RosterFile(operator=members.operator, changes=members.changes[:-1])


def _forked(server: OperatorFolder) -> RosterFile:
    return _older(server).revoke(1)


def _dropped_history(server: OperatorFolder) -> RosterFile:
    """Return a roster with the same clients and keys, but a rewritten past."""
    members = server.members
    renamed = replace(members.changes[1], name="renamed")
    return RosterFile(
        operator=members.operator, changes=(members.changes[0], renamed, *members.changes[2:])
    )


def _longer_fork(server: OperatorFolder) -> RosterFile:
    return _forked(server).revoke(0).name_server("ab" * 32)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_older, "roster 4 is older than roster 5"),
        (_forked, "has another past than roster 5"),
        (_dropped_history, "has another past than roster 5"),
        (_longer_fork, "roster 7 has another past"),
    ],
)
def test_a_roster_that_does_not_continue_is_refused(
    homes: Homes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[OperatorFolder], RosterFile],
    said: str,
) -> None:
    """All of these rosters are signed by the operator, for a client that has seen another one."""
    server, clients = homes
    server.save(server.members.approve(stranger(tmp_path / "fourth")))
    for client in clients:
        join(client, server)
    path = tmp_path / "offered.json"
    make(server).signed(read_identity(server.folder / "operator.key")).write(path)
    for home in (clients[2], server):
        with pytest.raises(UsageError, match=said) as refused:
            home.offered(path)
        assert "\n" not in str(refused.value)
    with monkeypatch.context() as off:
        off.setattr(RosterFile, "check_continues", lambda *_: None)
        clients[2].join(clients[2].offered(path))
    assert clients[2].members.digests[-1] != server.members.digests[-1]


@given(st.lists(st.sampled_from(["approve", "revoke", "rotate", "server"]), max_size=12))
def test_rosters_over_time(kinds: list[str]) -> None:
    """Each roster continues all earlier ones and no later one; names are never reused."""
    operator = Identity(bytes(32))
    roster = RosterFile(operator=operator.public.hex())
    seen, keys, born = [roster], dict[int, Identity](), dict[int, str]()
    for step, kind in enumerate(kinds):
        fresh = Identity(step.to_bytes(32, "big")[::-1])
        card = Card.make(f"n{step}", fresh, "ecdsa-sha2-x y")
        if kind == "server":
            roster = roster.name_server(fresh.public.hex())
        elif kind == "approve":
            roster = roster.approve(card)
            number = roster.members[-1].client
            keys[number], born[number] = fresh, card.key
        elif keys:
            client = min(keys)
            if kind == "revoke":
                roster = roster.revoke(client)
                del keys[client], born[client]
            else:
                rotation = Rotation.make(roster.operator, client, keys[client], card)
                roster, keys[client] = roster.rotate(rotation), fresh
        seen.append(roster)
        again = RosterFile.model_validate_json(roster.model_dump_json())
        assert again.members == roster.members
        assert again.lineages() == born
        assert {n: i.public for n, i in keys.items()} == dict(again.roster())
        assert again.digests == roster.digests
    for one in seen:
        for other in seen:
            if one.number >= other.number:
                one.check_continues(other)
                assert len(one.since(other)) == one.number - other.number
            else:
                with pytest.raises(UsageError, match="older"):
                    one.check_continues(other)


# --- cards ----------------------------------------------------------------------------------------


def test_a_card_shows_that_its_sender_has_the_key(homes: Homes, tmp_path: Path) -> None:
    card = homes[1][0].card("Shop in Lyon")
    path = tmp_path / "card.json"
    path.write_bytes(card.as_file())
    assert Card.read(path) == card
    other = stranger(tmp_path / "other")
    for change in ({"key": other.key}, {"node": other.node}, {"name": "another"}):
        path.write_bytes(card.model_copy(update=change).as_file())
        with pytest.raises(UsageError, match="not signed by the keys in it"):
            Card.read(path)
    path.write_text("{}")
    with pytest.raises(UsageError, match="not a card made by: privirec client new"):
        Card.read(path)
    with pytest.raises(UsageError, match="no such file"):
        Card.read(tmp_path / "nothing")
    with pytest.raises(UsageError, match="name has 1 to 100"):
        homes[1][0].card("")


def test_fingerprints_can_be_read_out(homes: Homes) -> None:
    key = homes[1][0].identity.public.hex()
    told = fingerprint(key)
    assert re.fullmatch(r"(\d{5} ){5}\d{5}", told)
    for way in (told, told.replace(" ", ""), told.replace(" ", "-"), key, key.upper()):
        assert is_told(key, way)
    for other in (told[:-1], told[::-1], "", "0" * 30):
        assert not is_told(key, other)
    assert fingerprint(key) != fingerprint(homes[1][1].identity.public.hex())


# --- the operator's key ---------------------------------------------------------------------------


def test_a_server_works_without_the_operators_key(homes: Homes, tmp_path: Path) -> None:
    server, clients = homes
    safe = tmp_path / "safe.key"
    (server.folder / "operator.key").rename(safe)
    again = OperatorFolder.create(server.folder)
    assert not (server.folder / "operator.key").exists()
    assert again.server.public.hex() == again.members.server
    assert again.server.public.hex() != again.operator
    for client in clients:
        join(client, server)
    with pytest.raises(UsageError, match="--operator-key PATH"):
        server.save(server.members.revoke(1))
    foreign = OperatorFolder.create(tmp_path / "foreign").folder / "operator.key"
    with pytest.raises(UsageError, match="this is the key of operator"):
        server.save(server.members.revoke(1), foreign)
    with pytest.raises(UsageError, match="this is the key of operator"):
        server.save(server.members.revoke(1), server.folder / "run.key")
    server.save(server.members.revoke(1), safe)
    join(clients[0], server)
    assert 1 not in clients[0].members.roster()


def test_a_server_speaks_with_the_key_that_the_roster_names(homes: Homes, tmp_path: Path) -> None:
    server, clients = homes
    join(clients[0], server)
    (clients[0].folder / "history.txt").write_text("0 7 5\n")
    write_catalogue(clients[0].folder / "catalogue.txt", Catalogue([5, 7]))
    clients[0].write(clients[0].settings.model_copy(update={"histories": "history.txt"}))
    operator = read_identity(server.folder / "operator.key")
    gone = Envelope("", 0, TurnedAway(reason="go"))
    with closing(clients[0].node()) as node:
        for identity, code in ((server.server, None), (operator, Code.BAD_MESSAGE)):
            answer = envelope.peek(node.answer(gone.seal(identity, "to-client")), "to-server")
            assert getattr(answer.message, "code", None) == code
    make_identity(server.folder / "run.key")
    with pytest.raises(UsageError, match="not the key that the roster names"):
        _ = server.server


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b"])
def test_names_of_runs_stay_in_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name"):
        OperatorFolder(tmp_path).run(name)


def shake_hands(folder: Path, trusted: Path, name: str) -> None:
    """Do a TLS handshake of a server with these certificates and a client that trusts this CA."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.crt", folder / "server.key")
    client = ssl.create_default_context(cafile=str(trusted / "ca.crt"))
    left, right = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = server.wrap_bio(left, right, server_side=True)
    ours = client.wrap_bio(right, left, server_hostname=name)
    for _ in range(10):
        done = 0
        for side in (ours, theirs):
            try:
                side.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                pass
        if done == 2:
            return
    raise AssertionError("no handshake")


def test_certificates(tmp_path: Path) -> None:
    good, other, old = tmp_path / "good", tmp_path / "other", tmp_path / "old"
    make_certificates(good, ["localhost", "127.0.0.1"])
    make_certificates(other)
    make_certificates(old, days=1, now=dt.datetime.now(dt.UTC) - dt.timedelta(days=3))
    shake_hands(good, good, "localhost")
    shake_hands(good, good, "127.0.0.1")
    for folder, trusted, name, said in (
        (good, other, "localhost", "certificate verify failed"),
        (old, old, "localhost", "expired"),
        (good, good, "example.org", "mismatch"),
    ):
        with pytest.raises(ssl.SSLCertVerificationError, match=said):
            shake_hands(folder, trusted, name)
    assert (good / "server.key").stat().st_mode & 0o077 == 0


def test_catalogues_keep_their_order_and_kind(tmp_path: Path) -> None:
    path = tmp_path / "catalogue.txt"
    for ids in ([3, 1, 2], ["b", "a", "07"], ["1", "01"]):
        write_catalogue(path, Catalogue(ids))
        found = read_catalogue(path)
        assert found.item_ids.tolist() == ids
        assert found.fingerprint == Catalogue(ids).fingerprint
    for bad in ("", "a\n\nb\n", "a\na\n"):
        path.write_text(bad)
        with pytest.raises(DataError, match="one item id a line"):
            read_catalogue(path)


def test_histories_from_a_file_stand_in_the_catalogues_columns(tmp_path: Path) -> None:
    path = tmp_path / "history.txt"
    path.write_text("0 7 5\n1\n2 9\n")
    found = FromFile(path).begin("run", Catalogue([9, 5, 6, 7]))
    assert found.matrix.toarray().tolist() == [[0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]]
    assert in_a_run(found, protected=True) is found
    exact = in_a_run(found, protected=False)
    assert exact.user_ids.tolist() == [0, 2]  # the client without items adds no privacy


def test_items_outside_the_catalogue_are_left_out_of_files_and_stores_alike(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, kept = tmp_path / "history.txt", tmp_path / "history.db"
    file.write_text("0 7 5\n2 9\n")
    with Store(kept, create=True) as store:
        store.add([("0", "7"), ("0", "5"), ("2", "9")])
    for source in (FromFile(file), FromStore(kept)):
        found = source.begin("run", Catalogue([9, 5]))
        assert found.matrix.toarray().tolist() == [[0, 1], [1, 0]]
        assert source.preview(Catalogue([9, 5]))[1] == 1
        assert "1 interactions" in caplog.text
        caplog.clear()
        found = source.begin("other", Catalogue([1, 2]))
        assert (found.n_users, found.n_interactions) == (2, 0)
        assert in_a_run(found, protected=False).n_users == 0
        (said,) = caplog.messages  # told to the owner only; a refusal would tell the server
        assert "no item of catalogue.txt" in said
        assert "7" not in said.replace(str(tmp_path), "")
        caplog.clear()


def test_a_journal_forgets_only_what_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    first = Journal(path)
    first.add({"number": 1}, b"one")
    whole = path.read_bytes()
    first.add({"number": 2}, b"two")
    content = path.read_bytes()
    for cut in range(len(whole), len(content)):
        path.write_bytes(content[:cut])
        again = Journal(path)
        assert [more["number"] for more, _ in again.records()] == [1]
        again.add({"number": 3}, b"three")
        assert [body for _, body in Journal(path).records()] == [b"one", b"three"]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    from privirec.durable import alone

    inside, seen = [0], [0]

    def work() -> None:
        for _ in range(50):
            with alone(tmp_path):
                inside[0] += 1
                seen[0] = max(seen[0], inside[0])
                inside[0] -= 1

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert seen[0] == 1
