"""Tests of a client's process over HTTPS: one process per folder, and changes apply at once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from privirec.durable import is_taken
from privirec.errors import FederationError, UsageError
from privirec.federated.dp.tables import gaussian_table
from privirec.privacy.policy import Policy
from privirec.runtime.enrolment.certificates import make_certificates
from privirec.runtime.enrolment.folders import ClientFolder
from privirec.runtime.https import client as client_module
from privirec.runtime.https.client import Answering, stay
from privirec.runtime.https.connection import Unreachable
from privirec.runtime.node import Node
from privirec.runtime.node.memory import Memory
from privirec.secagg.keys import Identity

from .test_enrolment import Homes, homes, join, joined

__all__ = ["homes"]

URL = "https://fed.example"


@pytest.fixture
def client(homes: Homes) -> ClientFolder:
    server, _ = homes
    found = joined(homes)
    make_certificates(server.folder / "tls")
    (server.folder / "tls/ca.crt").rename(found.folder / "ca.crt")
    return found


@pytest.fixture
def answering(client: ClientFolder) -> Iterator[Answering]:
    with closing(Answering(client)) as found:
        yield found


@pytest.fixture
def during(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[dict[str, Any]], None]], Any]:
    """Run a function while a client is connected, with the arguments of its `Connection`."""

    class Connected:
        do: Callable[[dict[str, Any]], None]

        def __init__(self, *given: Any, **named: Any) -> None:
            names = ("server", "client", "identity", "server_key", "tls", "answer")
            self._given = dict(zip(names, given, strict=True)) | named

        def stay(self, _tell: object) -> None:
            Connected.do(self._given)

        def close(self) -> None:
            closed.append(self)

    closed: list[Connected] = []

    def set_to(do: Callable[[dict[str, Any]], None]) -> list[Connected]:
        Connected.do = staticmethod(do)
        return closed

    monkeypatch.setattr(client_module, "Connection", Connected)
    monkeypatch.setattr(client_module, "logged_to", lambda _: contextlib.nullcontext())
    return set_to


def nothing(_: object) -> None:
    pass


def changed(path: Path) -> None:
    """Update the change time of a file, despite the coarse clock of the file system."""
    before = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == before:
        os.utime(path)


def test_a_client_is_connected_once(client: ClientFolder, during: Callable[..., Any]) -> None:
    """A second process would answer in the client's name and use up its stamps."""
    tried: list[str] = []

    def second(_: object) -> None:
        assert is_taken(client.folder / "https")
        with pytest.raises(FederationError, match="another process is at work there") as refused:
            stay(client.folder, URL, nothing)
        tried.append(str(refused.value))

    closed = during(second)
    stay(client.folder, URL, nothing)
    assert len(tried) == len(closed) == 1
    assert not is_taken(client.folder / "https")


def test_a_connection_ends_with_the_client(
    client: ClientFolder, during: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupt the client: its node and its connection are closed."""
    ended: list[Node] = []
    close = Node.close

    def ends(node: Node) -> None:
        ended.append(node)
        close(node)

    def interrupted(_: object) -> None:
        assert not ended
        raise KeyboardInterrupt

    monkeypatch.setattr(Node, "close", ends)
    closed = during(interrupted)
    with pytest.raises(KeyboardInterrupt):
        stay(client.folder, URL, nothing)
    assert len(closed) == len(ended) == 1


def test_a_client_that_stays_looks_at_its_folder(
    homes: Homes, client: ClientFolder, during: Callable[..., Any]
) -> None:
    """Read the policy before each message, and the keys when the server rejects them."""
    server, _ = homes
    seen: list[str] = []

    def look(given: dict[str, Any]) -> None:
        named = bytes.fromhex(server.members.server)
        assert (given["server"], given["client"]) == (URL, 0)
        assert (given["identity"].public, given["server_key"]) == (client.identity.public, named)
        for limit in (100, 200):
            policy = f"most_bytes_down = {limit}\n"
            (client.folder / "policy.toml").write_text(policy, encoding="utf-8")
            assert given["largest"]() == limit
        rotation = client.rotate()
        rotated = server.members.rotate(rotation).name_server(Identity(b"s" * 32).public.hex())
        server.save(rotated)
        join(client, server)
        identity, key = given["keys"]()
        assert identity.public.hex() == rotation.card.key
        assert key == Identity(b"s" * 32).public
        seen.append("all")

    during(look)
    stay(client.folder, URL, nothing)
    assert seen == ["all"]


def test_no_table_of_noise_is_kept_until_the_next_message(answering: Answering) -> None:
    gaussian_table(Fraction(4))
    answering.answer(b"nonsense")
    assert gaussian_table.cache_info().currsize == 0


def test_whom_to_trust_is_in_the_folder(client: ClientFolder, during: Callable[..., Any]) -> None:
    during(nothing)
    (client.folder / "ca.crt").write_text("nonsense")
    with pytest.raises(UsageError, match="not a certificate to know the server by"):
        stay(client.folder, URL, nothing)


@pytest.mark.parametrize(
    "name", ["client.json", "roster.json", "policy.toml", "catalogue.txt", "identity.key"]
)
def test_a_file_that_was_changed_is_read_again(
    client: ClientFolder, answering: Answering, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A new node reads it; the old node is closed first, since a memory has one user at a time."""
    open_now: list[Memory] = []
    begin, close = Node.__init__, Node.close

    def began(node: Node, *given: Any, **named: Any) -> None:
        assert not open_now
        begin(node, *given, **named)
        open_now.append(node.memory)

    def closed(node: Node) -> None:
        open_now.remove(node.memory)
        close(node)

    monkeypatch.setattr(Node, "__init__", began)
    monkeypatch.setattr(Node, "close", closed)
    first = answering.node()
    assert answering.node() is first
    changed(client.folder / name)
    second = answering.node()
    assert second is not first
    assert answering.node() is second
    answering.close()
    assert not open_now


@pytest.mark.parametrize("half", [None, b"{"])
@pytest.mark.parametrize("name", ["roster.json", "identity.key"])
def test_a_folder_that_cannot_be_read_is_tried_again_later(
    client: ClientFolder, answering: Answering, name: str, half: bytes | None
) -> None:
    """The folder may be in the middle of a change; neither that nor a message ends the client."""
    answering.keys()
    kept = (client.folder / name).read_bytes()
    (client.folder / name).unlink()
    if half is not None:
        (client.folder / name).write_bytes(half)
        (client.folder / name).chmod(0o600)
    with pytest.raises(Unreachable, match="keys cannot be read"):
        answering.keys()
    with pytest.raises(Unreachable, match="this client cannot answer"):
        answering.answer(b"question")
    (client.folder / name).write_bytes(kept)
    (client.folder / name).chmod(0o600)
    answering.keys()


def test_a_client_without_a_policy_has_the_default(
    client: ClientFolder, answering: Answering
) -> None:
    first = answering.node()
    (client.folder / "policy.toml").unlink()
    assert answering.node() is not first
    assert answering.largest() == Policy().most_bytes_down
