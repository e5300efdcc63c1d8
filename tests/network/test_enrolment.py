"""Folders of operators and clients: keys, rosters, certificates, and who is let in."""

from __future__ import annotations

import datetime as dt
import json
import ssl
import threading
from pathlib import Path

import pytest

from privirec.data.catalogue import read_catalogue, write_catalogue
from privirec.device import Catalogue, Store
from privirec.durable import Journal
from privirec.errors import DataError, UsageError
from privirec.runtime.network.enrolment.certificates import make_certificates
from privirec.runtime.network.enrolment.folders import ClientFolder, OperatorFolder
from privirec.runtime.network.enrolment.identities import read_identity
from privirec.runtime.network.enrolment.roster import RosterFile
from privirec.runtime.network.histories import FromFile, FromStore
from privirec.secagg.keys import Identity


@pytest.fixture
def homes(tmp_path: Path) -> tuple[OperatorFolder, list[ClientFolder]]:
    server = OperatorFolder.create(tmp_path / "server")
    clients = [ClientFolder.create(tmp_path / f"client-{n}") for n in range(3)]
    members = server.members
    for number, client in enumerate(clients):
        members = members.approve(f"client {number}", client.card("")["key"])
    server.save(members)
    return server, clients


def test_enrolment(homes: tuple[OperatorFolder, list[ClientFolder]]) -> None:
    server, clients = homes
    roster = server.folder / "roster.json"
    operator = server.operator.public.hex()
    for number, client in enumerate(clients):
        assert client.join(roster, operator=operator, server="example.org:9443") == number
        assert client.settings.server == "example.org:9443"
        assert client.settings.operator == operator
    assert dict(server.members.roster()) == {
        number: client.identity.public for number, client in enumerate(clients)
    }


def test_secrets_are_for_their_owner_only(homes: tuple[OperatorFolder, list[ClientFolder]]) -> None:
    server, clients = homes
    for path in (server.folder / "operator.key", clients[0].folder / "node.key"):
        assert path.stat().st_mode & 0o077 == 0
    key = clients[0].folder / "identity.key"
    key.chmod(0o644)
    with pytest.raises(UsageError, match="others may read this key"):
        read_identity(key)


def test_revoked_duplicated_and_foreign_ones_are_refused(
    homes: tuple[OperatorFolder, list[ClientFolder]], tmp_path: Path
) -> None:
    server, clients = homes
    roster, operator = server.folder / "roster.json", server.operator.public.hex()
    key = clients[1].identity.public.hex()
    with pytest.raises(UsageError, match="in the roster already, as client 1"):
        server.members.approve("again", key)
    server.save(server.members.revoke(1))
    with pytest.raises(UsageError, match="is not approved there"):
        clients[1].join(roster, operator=operator)
    with pytest.raises(UsageError, match="is revoked already"):
        server.members.approve("again", key)
    added = server.members.approve("new", "ab" * 32).members[-1]
    assert added.client == 3  # a number is given once
    other = OperatorFolder.create(tmp_path / "other")
    clients[0].join(roster, operator=operator)
    with pytest.raises(UsageError, match=r"where .* is trusted"):
        clients[0].join(other.folder / "roster.json")


def test_a_key_is_rotated(homes: tuple[OperatorFolder, list[ClientFolder]]) -> None:
    server, clients = homes
    old, new = clients[2].identity.public.hex(), Identity(bytes(32)).public.hex()
    server.save(server.members.rotate(2, new))
    assert server.members.roster()[2].hex() == new
    for used in (new, clients[0].identity.public.hex()):
        with pytest.raises(UsageError, match="has been in the roster"):
            server.members.rotate(2, used)
    with pytest.raises(UsageError, match="not approved"):
        clients[2].join(server.folder / "roster.json", operator=server.operator.public.hex())
    assert old != new


def test_a_changed_roster_is_refused(homes: tuple[OperatorFolder, list[ClientFolder]]) -> None:
    server, _ = homes
    path = server.folder / "roster.json"
    record = json.loads(path.read_bytes())
    record["roster"]["members"][0]["key"] = "ab" * 32
    path.write_text(json.dumps(record))
    with pytest.raises(UsageError, match="signature does not fit"):
        RosterFile.read(path)
    path.write_text("[]")
    with pytest.raises(UsageError, match="not a roster"):
        RosterFile.read(path)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b"])
def test_names_of_runs_stay_in_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name"):
        OperatorFolder(tmp_path).run(name)


def shake_hands(folder: Path, trusted: Path, name: str) -> None:
    """TLS between a server with these certificates and a client that trusts that authority."""
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
        with pytest.raises(DataError, match="no item that is in this client's catalogue") as wrong:
            source.begin("other", Catalogue([1, 2]))
        assert "7" not in str(wrong.value).replace(str(tmp_path), "")


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
