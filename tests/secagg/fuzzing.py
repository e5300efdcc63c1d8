"""One fuzz target for hypothesis and atheris: bytes in, a ProtocolError or an answer out."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np

from privirec.secagg import (
    ClientPolicy,
    ClientSession,
    Identity,
    Phase,
    Roster,
    ServerSession,
    ServerSettings,
    Statement,
    VectorShape,
    protocol,
)
from privirec.secagg.bell2020.messages import decode
from privirec.secagg.errors import MalformedMessage, ProtocolError
from privirec.secagg.messages import encode
from privirec.secagg.testing import InsecureSeededBytes

_RUN = json.loads((Path(__file__).parent.parent / "vectors" / "secagg" / "run.json").read_text())
_STEPS = _RUN["clients"][0]["steps"]
_ROSTER = Roster({int(client): bytes.fromhex(key) for client, key in _RUN["roster"].items()})
_SHAPE = VectorShape(20, 9, 100)


def _dumps() -> list[bytes]:
    """The stored state of one client before each of its steps."""
    recorded = _RUN["clients"][0]
    draws = iter(recorded["random"])
    client = protocol("secagg+").client(
        recorded["client"],
        Identity(bytes.fromhex(recorded["identity_seed"])),
        _ROSTER,
        ClientPolicy(),
        lambda _size: bytes.fromhex(next(draws)),
    )
    stored = []
    for step in _STEPS:
        stored.append(client.dump())
        if "receive" in step:
            client.receive(bytes.fromhex(step["receive"]))
        else:
            list(client.contribute(step["contribute"], [np.array(step["values"])]))
    return stored


STORED = _dumps()
MESSAGES = [bytes.fromhex(step["receive"]) for step in _STEPS if "receive" in step]


def client_at(stage: int) -> ClientSession:
    """The recorded client before one of its steps."""
    recorded = _RUN["clients"][0]
    identity = Identity(bytes.fromhex(recorded["identity_seed"]))
    source = InsecureSeededBytes("fuzz")
    return protocol("secagg+").load_client(STORED[stage], identity, _ROSTER, ClientPolicy(), source)


def server_at(stage: int, name: str = "secagg+") -> tuple[ServerSession, list[tuple[int, bytes]]]:
    """A server before advertisements, shares, input or answers, and the messages it waits for."""
    source = InsecureSeededBytes("fuzz server")
    identities = [Identity.generate(source) for _ in range(4)]
    roster = Roster({number: identity.public for number, identity in enumerate(identities)})
    scheme = protocol(name)
    statement = Statement.of(4, 0.25, 0.25)
    settings = ServerSettings(block_entries=8, spool=io.BytesIO)
    server = scheme.server(roster, statement, [_SHAPE], settings, source)
    clients = [
        scheme.client(number, identity, roster, ClientPolicy(), source)
        for number, identity in enumerate(identities)
    ]
    for place in range(len(scheme.schedule.names)):
        replies = [(n, clients[n].receive(m)) for n, m in server.outgoing()]
        answers = [(number, reply) for number, reply in replies if reply is not None]
        if server.step and server.step.phase is Phase.INPUT:
            answers = [
                (number, message)
                for number, client in enumerate(clients)
                for message in client.contribute(1, [np.arange(20)])
            ]
        if place == stage:
            return server, answers
        for number, message in answers:
            server.receive(number, message)
        server.advance()
    raise ValueError(f"no step {stage}")


def decode_anything(data: bytes) -> None:
    try:
        message = decode(data)
    except MalformedMessage:
        return
    if encode(message) != data:
        raise AssertionError("an accepted message is not canonical")


def tell_client(stage: int, data: bytes) -> None:
    client = client_at(stage)
    try:
        client.receive(data)
    except ProtocolError as error:
        if error.fatal:
            try:
                client.dump()
            except ProtocolError:
                return
            raise AssertionError("a refusal left the session open") from error


def tell_server(stage: int, data: bytes, sender: int, name: str = "secagg+") -> None:
    server, expected = server_at(stage, name)
    try:
        server.receive(sender, data)
    except ProtocolError:
        # What was refused must not have changed anything: the run goes on.
        for number, message in expected:
            server.receive(number, message)
