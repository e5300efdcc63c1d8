"""Tests of guards behind other guards: each is tested with the one before it disabled."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privirec.device.installed import Installed
from privirec.durable import mapped, write_pieces, write_whole
from privirec.models import GFCF
from privirec.privacy.policy import Policy
from privirec.runtime import envelope
from privirec.runtime.coordinator import Stage
from privirec.runtime.envelope import BadEnvelope, Envelope
from privirec.runtime.messages import (
    ARTIFACT_FILES,
    Abort,
    Answer,
    ArtifactPiece,
    Exchange,
    Goodbye,
    Here,
    Received,
    Refused,
    SendVector,
    Vector,
)
from privirec.runtime.node.cohort_guard import CohortGuard
from privirec.runtime.node.upload import forget_uploads
from privirec.runtime.pledges import Pledges
from privirec.runtime.refusals import Code
from privirec.secagg.bell2020.client import BellClient
from privirec.secagg.keys import Identity
from privirec.secagg.participants import write_participants

from .chaos import Federation
from .test_node import Talk, plan_with, refused, remembered, said_in


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


# --- envelopes ------------------------------------------------------------------------------------


def test_what_was_sealed_in_one_direction_does_not_pass_in_the_other() -> None:
    """A message cannot be reflected to its sender, even with the keys of both ends."""
    one = Identity(bytes(range(32)))
    sealed = Envelope("0" * 32, 0, Goodbye()).seal(one, "to-server")
    envelope.check(sealed, one.public, "to-server")
    with pytest.raises(BadEnvelope, match="signature"):
        envelope.check(sealed, one.public, "to-client")


def test_every_byte_of_an_envelope_is_signed() -> None:
    one = Identity(bytes(range(32)))
    sealed = Envelope("0" * 32, 0, Answer(step=1), (b"first", b"second")).seal(one, "to-server")
    envelope.check(sealed, one.public, "to-server")
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(BadEnvelope):
            envelope.check(bytes(changed), one.public, "to-server")


def header(**changes: Any) -> bytes:
    told = {"kind": "goodbye", "run": "", "client": 0, "fields": {}, "parts": []} | changes
    return envelope.FRAME.head(told) + bytes(64)


@pytest.mark.parametrize(
    ("changes", "behind"),
    [
        ({"parts": [5]}, b""),
        ({"parts": [3]}, b"1234"),
        ({"parts": [-1, 1]}, b""),
        ({"parts": [0] * (envelope.MOST_PARTS + 1)}, b""),
        ({"parts": {}}, b""),
        ({"more": 1}, b""),
        ({"client": "0"}, b""),
    ],
    ids=["too few", "too many", "negative", "many", "no list", "another field", "no number"],
)
def test_headers_that_cannot_be_are_refused(changes: dict[str, Any], behind: bytes) -> None:
    assert isinstance(envelope.peek(header(), "to-server").message, Goodbye)
    with pytest.raises(BadEnvelope):
        envelope.peek(header(**changes) + behind, "to-server")


# --- artifacts ------------------------------------------------------------------------------------


def hand_out(talk: Talk, artifact: Path, client: int = 0) -> Any:
    """Return a client's reply to the whole artifact in one piece."""
    files = [(name, (artifact / name).read_bytes()) for name in ARTIFACT_FILES]
    piece = ArtifactPiece(files=tuple((name, len(data)) for name, data in files), offset=0)
    return talk.forged(client, piece, b"".join(data for _, data in files))


def test_an_artifact_that_the_operator_did_not_sign_is_not_installed(
    federation: Federation,
) -> None:
    talk = Talk(federation)
    talk.until(Stage.COMPUTED)
    assert talk.server.components is not None
    model = GFCF(rank=3).use(talk.server.components, federation.catalogue.item_ids)
    other = Ed25519PrivateKey.from_private_bytes(bytes(32))
    forged = model.save(federation.folder / "forged", {}, signing_key=other)
    installed = Installed(federation.folder / "client-0/model")
    said = said_in(hand_out(talk, forged))
    assert isinstance(said, Refused)
    assert said.code is Code.BAD_ARTIFACT
    assert not installed.versions()
    signed = federation.artifact(talk.server.components)
    assert said_in(hand_out(talk, signed)) == Received(
        offset=sum((signed / name).stat().st_size for name in ARTIFACT_FILES), installed=True
    )
    assert len(installed.versions()) == 1


@pytest.mark.parametrize("name", ["../../escaped", "escaped", "/escaped", "manifest.json/../x"])
def test_an_artifact_brings_no_other_files(federation: Federation, name: str) -> None:
    talk = Talk(federation)
    talk.until("share")
    home = federation.folder / "client-0"
    before = {path for path in home.rglob("*") if "memory" not in path.name}
    reply = talk.forged(0, ArtifactPiece(files=((name, 5),), offset=0), b"12345")
    refused(reply, "", Code.BAD_ARTIFACT, final=False)
    assert {path for path in home.rglob("*") if "memory" not in path.name} == before


def test_a_file_that_is_not_the_models_is_named_as_such(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until("share")
    twice = (("manifest.json", 2), ("manifest.json", 3))
    for files in ((("notes.txt", 5),), twice):
        reply = talk.forged(0, ArtifactPiece(files=files, offset=0), b"1")
        said = said_in(reply)
        assert isinstance(said, Refused), said
        assert said.code is Code.BAD_ARTIFACT


def test_the_pieces_of_an_artifact_leave_no_hole(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until("share")
    files = (("manifest.json", 10),)
    reply = talk.forged(0, ArtifactPiece(files=files, offset=3), b"12")
    refused(reply, "", Code.BAD_ARTIFACT, final=False)
    for offset in (0, 2):
        reply = talk.forged(0, ArtifactPiece(files=files, offset=offset), b"12")
        assert said_in(reply) == Received(offset=offset + 2, installed=False)


# --- plans, participants, lists -------------------------------------------------------------------


def test_participants_outside_the_plan_end_the_clients_part(federation: Federation) -> None:
    """The protocol's map has six clients, but the plan given to this client has five."""
    talk = Talk(federation)
    talk.until("advertise")
    announcement = bytes(envelope.peek(talk.message_for(0), "to-client").parts[0])
    told = talk.server.plan.pledges
    five = Pledges.of({client: told.signed(client) for client in range(5)})
    reply = talk.forged(0, Exchange(step=0), announcement, plan_with(talk, pledges=five))
    assert isinstance(said_in(reply), Answer)
    talk.server.receive(0, seal_again(federation, reply))
    talk.until("share")
    refused(
        federation.node(0).answer(talk.message_for(0)), "not in the plan", Code.BAD_PLAN, final=True
    )


def seal_again(federation: Federation, reply: Envelope) -> bytes:
    return reply.seal(federation.identities[reply.client], "to-server")


def test_the_clients_of_a_later_sum_are_those_of_the_first(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client checks this itself: in a sparse graph the protocol sees only neighbours."""
    monkeypatch.setattr(BellClient, "check_summed", lambda *_: None)
    talk = Talk(federation)
    talk.until("unmask", 2)
    told = envelope.peek(talk.message_for(0), "to-client")
    listed = write_participants({0, 1, 2, 3, 4}, federation.roster)
    lie = talk.forged(0, told.message, bytes(told.parts[0]), listed)
    refused(lie, "other clients are in sum 2 than in the first", Code.BAD_ASK, final=True)


def test_participants_are_judged_before_shares_leave(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All six clients were in the previous run; now one never appears, and the plan is accepted."""
    monkeypatch.setattr(CohortGuard, "check_plan", lambda *_: None)
    Talk(federation).until(Stage.COMPUTED)
    now = [0.0]
    talk = Talk(federation, name="second", clock=lambda: now[0])
    for _ in range(200):
        if talk.server.status()["step"] == "share":
            break
        now[0] += 5
        talk.step(skip={5})
    reply = federation.node(0).answer(talk.message_for(0))
    refused(reply, "without 1 clients", Code.COHORT, final=True)


def test_the_first_sum_is_judged_by_the_policy(federation: Federation) -> None:
    """All six take part, as in the previous run, but one of them is not in the sum."""
    Talk(federation).until(Stage.COMPUTED)
    now = [0.0]
    talk = Talk(federation, name="second", clock=lambda: now[0])
    talk.until("input", 1)
    for _ in range(200):
        if talk.server.status()["step"] != "input":
            break
        now[0] += 5
        talk.step(skip={5})
    reply = federation.node(0).answer(talk.message_for(0))
    refused(reply, "without 1 clients", Code.COHORT, final=True)


@pytest.mark.parametrize(
    ("step", "number"), [("advertise", 0), ("share", 0), ("input", 1), ("unmask", 1)]
)
def test_an_exchange_has_the_parts_that_belong_to_it(
    federation: Federation, step: str, number: int
) -> None:
    talk = Talk(federation)
    talk.until(step, number)
    told = envelope.peek(talk.message_for(0), "to-client")
    reply = talk.forged(0, told.message, *map(bytes, told.parts), b"more")
    refused(reply, "parts where", Code.BAD_MESSAGE, final=False)


# --- policies reach every step --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "step"),
    [
        ({"smallest_cohort": 7}, "advertise"),
        ({"corrupt_share": 0.34}, "share"),
        ({"largest_dropped_share": 0.1}, "advertise"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value,
)
def test_what_the_policy_asks_for_is_asked_of_the_protocol(
    federation: Federation, policy: dict[str, Any], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Disable the policy's own check of the plan."""
    monkeypatch.setattr(Policy, "check_run", lambda *_: None)
    monkeypatch.setattr(CohortGuard, "check_plan", lambda *_: None)
    monkeypatch.setattr(CohortGuard, "check_sum", lambda *_: None)
    strict = federation.policy.model_copy(update=policy)
    talk = Talk(federation)
    for name in ("advertise", "share"):
        talk.until(name)
        reply = federation.node(0, policy=strict).answer(talk.message_for(0))
        if name == step:
            said = said_in(reply)
            assert isinstance(said, Refused)
            assert (said.code, said.final) == (Code.PROTOCOL, True)
            return
        assert isinstance(said_in(reply), Answer)
        talk.server.receive(0, reply)


def test_the_bits_of_the_policy_are_those_of_the_protocol(federation: Federation) -> None:
    """The value changes nothing among six clients, because all are neighbours."""
    strict = federation.policy.model_copy(update={"security_bits": 77})
    assert federation.node(0, policy=strict)._answerer._insists().security_bits == 77


def test_answers_count_as_traffic(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until("share")
    state = remembered(federation, 0).load(talk.server.run)
    assert state is not None
    tight = federation.policy.model_copy(update={"most_bytes_up": state.bytes_up + 1})
    reply = federation.node(0, policy=tight).answer(talk.message_for(0))
    refused(reply, "bytes up", Code.POLICY, final=True)


def test_a_client_that_left_by_its_policy_stays_away(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until("input", 1)
    message = talk.message_for(0)
    strict = federation.policy.model_copy(update={"most_bytes_down": 500})
    refused(federation.node(0, policy=strict).answer(message), "", Code.POLICY, final=True)
    refused(federation.node(0).answer(message), "has left", Code.OWN_PROBLEM, final=False)


# --- order ----------------------------------------------------------------------------------------


def test_steps_come_in_their_order(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until("share")
    for step in (2, 3, 9, 1 << 30):
        refused(talk.forged(0, Exchange(step=step)), "too early", Code.TOO_EARLY, final=False)
    refused(talk.forged(0, Exchange(step=0)), "before", Code.ANSWERED_BEFORE, final=False)


def test_a_client_that_has_left_sends_no_vector(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until("unmask", 1)
    upload = next(federation.folder.glob("client-0/runs/*/upload-2"))
    kept = upload.read_bytes()
    assert isinstance(said_in(talk.forged(0, SendVector(step=2))), Vector)
    talk.forged(0, Abort(reason="enough"))
    assert not upload.exists()
    write_whole(upload, kept)
    refused(talk.forged(0, SendVector(step=2)), "has left", Code.OWN_PROBLEM, final=False)


def test_an_upload_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "upload-2"

    def blocks() -> Iterator[bytes]:
        yield b"one"
        assert not path.exists()
        yield b"two"
        assert not path.exists()

    write_pieces(path, blocks())
    assert bytes(mapped(path)) == b"onetwo"


def test_parts_of_uploads_that_a_crash_left_are_forgotten(tmp_path: Path) -> None:
    for name in ("upload-2", "upload-12", ".upload-12.77.part", "incoming"):
        (tmp_path / name).touch()
    forget_uploads(tmp_path, before=12)
    assert {path.name for path in tmp_path.iterdir()} == {"upload-12", "incoming"}
    forget_uploads(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"incoming"}


def test_one_run_at_a_time(federation: Federation) -> None:
    """A client keeps only the fact of an earlier run, so the secrets of two runs never coexist."""
    first = Talk(federation)
    first.until("unmask", 1)
    Talk(federation, name="second").until("share")
    memory = remembered(federation, 0)
    assert memory.knows(first.server.run)
    assert memory.load(first.server.run) is None
    assert not list(federation.folder.glob(f"client-0/runs/{first.server.run}"))


def test_memory_is_tagged_for_backup_tools(federation: Federation) -> None:
    federation.node(0)
    tag = (federation.folder / "client-0/runs/CACHEDIR.TAG").read_bytes()
    assert tag.startswith(b"Signature: 8a477f597d28d172789f06886806bc55")


# --- messages that the server accepts -------------------------------------------------------------


def test_the_server_takes_nothing_under_another_key_run_or_address(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until("share")
    message = talk.message_for(0)
    reply = federation.node(0).answer(message)
    honest = envelope.peek(reply, "to-server")
    waiting = talk.server.waiting_for()
    forged = honest.seal(federation.identities[1], "to-server")
    elsewhere = replace(honest, run="0" * 32).seal(federation.identities[0], "to-server")
    assert isinstance(honest.message, Answer)
    later = replace(honest, message=Answer(step=honest.message.step + 1))
    another_step = later.seal(federation.identities[0], "to-server")
    state = talk.server.clients[0].state
    bad_ones = ((0, forged), (0, elsewhere), (1, reply), ("stranger", reply), (0, another_step))
    for address, bad in bad_ones:
        talk.server.receive(address, bad)
        assert talk.server.clients[0].state is state
    assert talk.server.waiting_for() == waiting
    talk.server.receive(0, reply)
    assert talk.server.clients[0].state is not state


def test_who_comes_late_is_not_in_the_run(federation: Federation) -> None:
    """The signed plan does not include the late client."""
    now = [0.0]
    talk = Talk(federation, clock=lambda: now[0])
    for _ in range(40):
        now[0] += 5
        talk.step(skip={5})
        if talk.server.stage is Stage.SUMMING:
            break
    assert talk.server.stage is Stage.SUMMING
    assert 5 not in talk.server.plan.users
    invited = Envelope(talk.server.run, 5, talk.hello()).seal(federation.operator, "to-client")
    here = federation.node(5).answer(invited)
    assert isinstance(said_in(here), Here)
    talk.server.connected(set(federation.roster))
    talk.server.receive(5, here)
    assert talk.server.clients[5].address is None


def test_nobody_leaves_in_another_run_or_from_another_address(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until("share")
    no = Refused(code=Code.POLICY, reason="no", final=True)
    key = federation.identities[0]
    elsewhere = Envelope("0" * 32, 0, no).seal(key, "to-server")
    here = Envelope(talk.server.run, 0, no).seal(key, "to-server")
    talk.server.receive(0, elsewhere)
    talk.server.receive(1, here)
    assert not talk.server.clients[0].gone
    talk.server.receive(0, here)
    assert talk.server.clients[0].gone == "no"


# --- on the disk ----------------------------------------------------------------------------------


def test_a_whole_file_is_for_its_owner_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (waited.append(fd), real(fd))[1])
    path = tmp_path / "file"
    previous = os.umask(0)
    try:
        write_whole(path, b"content")
    finally:
        os.umask(previous)
    assert len(waited) == 2  # the file, then its folder
    assert path.stat().st_mode & 0o777 == 0o600

    def failing() -> Any:
        yield b"half"
        assert path.read_bytes() == b"content"
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        write_whole(path, *failing())
    assert path.read_bytes() == b"content"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_manifest_that_was_changed_on_the_device_is_not_loaded(federation: Federation) -> None:
    talk = Talk(federation)
    talk.until(Stage.COMPUTED)
    assert talk.server.components is not None
    installed = Installed(federation.folder / "model")
    installed.install(federation.artifact(talk.server.components))
    current = installed.current()
    shutil.copytree(current, current.with_name("0" * 64))
    write_whole(installed.folder / "current", b"0" * 64 + b"\n")
    with pytest.raises(Exception, match="damaged"):
        installed.load()
    np.testing.assert_equal(1, len(installed.versions()))
