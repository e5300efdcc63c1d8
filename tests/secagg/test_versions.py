"""Tests of the protocols' versions: in messages, in derived keys and in stored clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from privirec.secagg import LocalFederation, VectorShape, keys
from privirec.secagg.errors import BadDump, WrongVersion
from privirec.secagg.registry import protocol_names
from secagg.testing import InsecureSeededBytes

SHAPE = VectorShape(8, 16, 100)


def federation(name: str, seen: list[tuple[str, bytes]] | None = None) -> LocalFederation:
    def observe(direction: str, _client: int, message: bytes) -> None:
        if seen is not None:
            seen.append((direction, message))

    return LocalFederation(
        name,
        6,
        [SHAPE],
        corrupt_share=0.17,
        random_bytes=InsecureSeededBytes("versions"),
        observe=observe,
    )


def of(client: Any) -> Any:
    """Return the exchange of a client, which has the protocol's version."""
    return client.exchange


@pytest.mark.parametrize("name", protocol_names())
def test_every_message_has_the_version_of_its_protocol(name: str) -> None:
    seen: list[tuple[str, bytes]] = []
    clients = federation(name, seen).clients
    messages = [message for direction, message in seen if direction != "vector" and message]
    assert len(messages) > len(clients)
    assert {message[0] for message in messages} == {of(clients[0]).version}


@pytest.mark.parametrize("name", protocol_names())
def test_a_client_refuses_an_announcement_of_another_version(name: str) -> None:
    run = federation(name)
    announcement = bytearray(run.server.announcement)
    announcement[0] += 1
    client: Any = run.clients[0]
    fresh = run.protocol.client(
        0, client.identity, client.roster, client.policy, InsecureSeededBytes("fresh")
    )
    with pytest.raises(WrongVersion):
        fresh.receive(bytes(announcement))


@pytest.mark.parametrize("name", protocol_names())
def test_keys_of_two_versions_differ(name: str) -> None:
    exchange = of(federation(name).clients[0])
    older = replace(exchange, version=exchange.version - 1)
    assert keys.mask_seed(exchange.label, *KEY) != keys.mask_seed(older.label, *KEY)


def test_keys_of_two_protocols_differ() -> None:
    labels = {of(federation(name).clients[0]).label for name in protocol_names()}
    assert len({keys.mask_seed(label, *KEY) for label in labels}) == len(protocol_names())


KEY = (bytes(32), bytes(16), 1, 2, 3)


@pytest.mark.parametrize("name", protocol_names())
def test_a_client_stored_by_another_version_is_not_loaded(name: str) -> None:
    client: Any = federation(name).clients[0]
    stored, exchange = client.dump(), client.exchange
    other = replace(exchange, version=exchange.version + 1)
    assert type(client.state).load(stored, exchange.label).dump(exchange.label) == stored
    with pytest.raises(BadDump):
        type(client.state).load(stored, other.label)
