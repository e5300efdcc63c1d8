"""Tests of clients whose files are older than their answers, or lost: no step is answered twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from privirec.errors import FederationError
from privirec.federated import wire
from privirec.privacy.policy import Policy
from privirec.runtime import envelope
from privirec.runtime.coordinator import Stage
from privirec.runtime.enrolment.folders import ClientFolder
from privirec.runtime.envelope import Envelope
from privirec.runtime.messages import Abort, Answer, ArtifactPiece, Refused, SendVector, Vector
from privirec.runtime.node import memory
from privirec.runtime.one_machine import make_federation
from privirec.runtime.refusals import Code

from .chaos import Federation, Killed
from .test_https_processes import histories
from .test_node import STEPS, Talk, asked, refused, said_in


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


def database(federation: Federation) -> Path:
    return federation.folder / "client-0/runs/memory.db"


@pytest.mark.parametrize(("step", "number"), STEPS)
def test_an_answer_that_left_after_a_crash_counts(
    federation: Federation, step: str, number: int
) -> None:
    """Kill the client after the commit, before it notes that the answer leaves, and ask again.

    The answer then leaves, so the state before it counts as outdated.
    """
    talk = Talk(federation)
    talk.until(step, number)
    backup = shutil.copy(database(federation), federation.folder / "backup.db")
    message = talk.message_for(0)
    with mock.patch.object(memory, "write_whole", side_effect=Killed), pytest.raises(Killed):
        federation.node(0).answer(message)
    assert isinstance(said_in(federation.node(0).answer(message)), Answer | Vector)
    shutil.copy(backup, database(federation))
    reply = federation.node(0).answer(message)
    refused(reply, "restored from before an answer", Code.OWN_PROBLEM, final=False)


def test_an_upload_that_left_after_a_crash_counts(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until("input", 1)
    backup = shutil.copy(database(federation), federation.folder / "backup.db")
    message = talk.message_for(0)
    with mock.patch.object(memory, "write_whole", side_effect=Killed), pytest.raises(Killed):
        federation.node(0).answer(message)
    assert isinstance(said_in(talk.forged(0, SendVector(step=2))), Vector)
    shutil.copy(backup, database(federation))
    reply = federation.node(0).answer(message)
    refused(reply, "restored from before an answer", Code.OWN_PROBLEM, final=False)


@pytest.mark.parametrize("step", ["share", "input", "unmask"])
def test_a_state_of_the_run_before_is_not_answered_from(federation: Federation, step: str) -> None:
    """A backup of an earlier run is restored in the middle of the next one."""
    first = Talk(federation)
    first.until(step)
    backup = shutil.copy(database(federation), federation.folder / "backup.db")
    message = first.message_for(0)
    assert isinstance(said_in(federation.node(0).answer(message)), Answer | Vector)
    second = Talk(federation, name="second")
    second.until("share")
    shutil.copy(backup, database(federation))
    reply = federation.node(0).answer(message)
    refused(reply, "restored from before an answer", Code.OWN_PROBLEM, final=False)


def test_without_the_note_of_its_last_answer_a_client_leaves(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until("unmask", 1)
    database(federation).with_name("last-answer").unlink()
    again = federation.node(0).answer(talk.message_for(0))
    refused(again, "restored from before an answer", Code.OWN_PROBLEM, final=False)


def test_a_damaged_note_of_the_last_answer_is_none(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until("unmask", 1)
    for damage in (b"", b"one two three", b"run \xff", b"run many"):
        database(federation).with_name("last-answer").write_bytes(damage)
        reply = federation.node(0).answer(talk.message_for(0))
        refused(reply, "restored from before an answer", Code.OWN_PROBLEM, final=False)


def test_both_files_from_a_backup_begin_no_run(federation: Federation) -> None:
    """The files are consistent; only the file system shows that they were restored."""
    talk = Talk(federation)
    talk.until("unmask", 1)
    files = [database(federation), database(federation).with_name("last-answer")]
    backup = [shutil.copy(path, federation.folder / path.name) for path in files]
    talk.until(Stage.COMPUTED)
    for path, copy in zip(files, backup, strict=True):
        shutil.copy(copy, path)
    second = Talk(federation, name="second")
    reply = second.forged(0, second.hello())
    refused(reply, "restored from a backup or lost", Code.STATE_RESTORED, final=False)


def test_a_run_whose_memory_is_gone_is_not_begun_again(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until("unmask", 1)
    database(federation).unlink()
    reply = talk.forged(0, talk.hello())
    refused(reply, "answered more than it remembers", Code.STATE_RESTORED, final=False)
    again = federation.node(0).answer(talk.message_for(0))
    refused(again, "does not know run", Code.UNKNOWN_RUN, final=False)


def whole_folder(runs: Path, backup: Path) -> None:
    shutil.rmtree(runs)
    shutil.copytree(backup, runs)


def two_files_in_place(runs: Path, backup: Path) -> None:
    for name in ("memory.db", "last-answer"):
        shutil.copy2(backup / name, runs / name)


def two_files_as_new_ones(runs: Path, backup: Path) -> None:
    for name in ("memory.db", "last-answer"):
        (runs / name).unlink()
        shutil.copy2(backup / name, runs / name)


RESTORES = [whole_folder, two_files_in_place, two_files_as_new_ones]


def answered_from_a_backup(
    federation: Federation, restore: Callable[[Path, Path], None]
) -> tuple[Envelope, Envelope]:
    """Return two answers to two asks for one vector, with a backup restored in between."""
    talk = Talk(federation)
    talk.until("input", 3)
    runs = database(federation).parent
    backup = Path(shutil.copytree(runs, federation.folder / "backup"))
    message = talk.message_for(0)
    first = envelope.peek(federation.node(0).answer(message), "to-server")
    assert isinstance(first.message, Vector)
    restore(runs, backup)
    honest = wire.decode(bytes(envelope.peek(message, "to-client").parts[-1]))
    return first, asked(talk, replace(honest, block=-honest.block))  # type: ignore


@pytest.mark.parametrize("restore", RESTORES)
def test_what_comes_from_a_backup_as_a_whole_is_not_answered_from(
    federation: Federation, restore: Callable[[Path, Path], None]
) -> None:
    """The database has another time for the note of the last answer than the file system."""
    _, second = answered_from_a_backup(federation, restore)
    refused(second, "restored from before an answer", Code.OWN_PROBLEM, final=False)


def test_a_snapshot_of_the_whole_disk_is_not_noticed(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known limit: a snapshot that restores even the file system's times is not noticed.

    A server that knows of it gets two vectors under one mask.
    """
    monkeypatch.setattr(memory, "changed_at", lambda path: path.stat().st_mtime_ns)
    first, second = answered_from_a_backup(federation, whole_folder)
    assert isinstance(second.message, Vector)
    assert [bytes(part) for part in first.parts] != [bytes(part) for part in second.parts]


def test_a_file_system_with_whole_seconds_is_no_backup(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = Talk(federation)
    talk.until("unmask", 1)
    second = 1_000_000_000
    monkeypatch.setattr(
        memory, "changed_at", lambda path: path.stat().st_ctime_ns // second * second
    )
    assert isinstance(said_in(federation.node(0).answer(talk.message_for(0))), Answer)


# --- after a client's part has ended --------------------------------------------------------------


def test_a_client_that_has_left_is_not_here_again(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until("share")
    talk.forged(0, Abort(reason="enough"))
    reply = talk.forged(0, talk.hello())
    refused(reply, "has left this run", Code.OWN_PROBLEM, final=False)


@pytest.mark.parametrize("run", ["", "../../elsewhere", "0" * 31, "0" * 31 + "G", "0" * 33])
def test_a_run_has_a_proper_number(federation: Federation, run: str) -> None:
    hello = Envelope(run, 0, Talk(federation).hello()).seal(federation.operator, "to-client")
    reply = federation.node(0).answer(hello)
    refused(reply, "without a proper number", Code.BAD_MESSAGE, final=False)
    assert not [path for path in (federation.folder / "client-0/runs").iterdir() if path.is_dir()]


def test_an_artifact_counts_as_traffic(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until("share")
    piece = ArtifactPiece(files=(("model.safetensors", 10**12),), offset=0)
    reply = talk.forged(0, piece, b"x")
    refused(reply, "an artifact of", Code.BAD_ARTIFACT, final=False)
    piece = ArtifactPiece(files=(("model.safetensors", 10**10),), offset=0)
    reply = talk.forged(0, piece, b"x")
    refused(reply, "bytes down", Code.POLICY, final=True)


@pytest.mark.parametrize(
    ("files", "offset", "content"),
    [
        ((("../../model", 5),), 0, b"12345"),
        ((("manifest.json", 5), ("manifest.json", 5)), 0, b"12345"),
        ((("manifest.json", 5),), 3, b"12"),
        ((("manifest.json", 5),), 0, b"123456"),
    ],
)
def test_a_piece_that_does_not_fit_is_refused(
    federation: Federation, files: tuple[tuple[str, int], ...], offset: int, content: bytes
) -> None:
    talk = Talk(federation)
    talk.until("share")
    reply = talk.forged(0, ArtifactPiece(files=files, offset=offset), content)
    said = said_in(reply)
    assert isinstance(said, Refused)
    assert said.code is Code.BAD_ARTIFACT
    assert not said.final
    assert not list(federation.folder.rglob("artifact"))


def test_a_piece_has_one_content(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until("share")
    piece = ArtifactPiece(files=(("manifest.json", 5),), offset=0)
    for parts in ((), (b"1", b"2")):
        reply = talk.forged(0, piece, *parts)
        refused(reply, "without its content", Code.BAD_ARTIFACT, final=False)


def test_the_backup_that_the_guide_names_makes_a_client_again(tmp_path: Path) -> None:
    """Keys without the client's memory do not start again; a new client has its history."""
    home, paths = make_federation(tmp_path, histories(), 3, Policy())
    old = ClientFolder(paths[0])
    backup = tmp_path / "backup"
    backup.mkdir()
    for name in ("history.txt", "policy.toml"):
        shutil.copy(old.folder / name, backup / name)
    shutil.rmtree(old.folder / "runs")
    with pytest.raises(FederationError, match="make a new client"):
        old.node()
    new = ClientFolder.create(tmp_path / "new")
    for name in ("history.txt", "policy.toml"):
        shutil.copy(backup / name, new.folder / name)
    home.save(home.members.revoke(0).approve(new.card("client-0 again")))
    shutil.copy(home.folder / "catalogue.txt", new.folder / "catalogue.txt")
    assert new.join(new.offered(home.folder / "roster.json", operator=home.operator)) == 3
    new.write(new.settings.model_copy(update={"histories": "history.txt"}))
    found, unknown = new.histories().preview(home.catalogue)
    assert (found.n_users, unknown) == (6, 0)
    new.node().close()
