"""Fuzz target for hypothesis and atheris: bytes in, a ProtocolError or an answer out."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np

from privirec.extra.correlated.messages import decode as decode_noisy
from privirec.extra.lightsecagg.messages import decode as decode_light
from privirec.secagg import (
    ClientPolicy,
    ClientSession,
    Identity,
    Phase,
    Protocol,
    Roster,
    ServerModel,
    ServerSession,
    ServerSettings,
    Statement,
    VectorShape,
    protocol,
)
from privirec.secagg.bell2020.messages import decode
from privirec.secagg.errors import MalformedMessage, ProtocolError
from privirec.secagg.messages import encode
from secagg.testing import InsecureSeededBytes

_FOLDER = Path(__file__).parent.parent / "vectors" / "secagg"
_SHAPE = VectorShape(20, 9, 100)


class RecordedClient:
    """The first client of a recorded run, before each of its steps."""

    def __init__(self, file: str) -> None:
        run = json.loads((_FOLDER / file).read_text())
        recorded = run["clients"][0]
        self._protocol = protocol(run["protocol"])
        self._identity = Identity(bytes.fromhex(recorded["identity_seed"]))
        self._roster = Roster({int(one): bytes.fromhex(key) for one, key in run["roster"].items()})
        steps = recorded["steps"]
        self.messages = [bytes.fromhex(step["receive"]) for step in steps if "receive" in step]
        draws = iter(recorded["random"])
        client = self._protocol.client(
            recorded["client"],
            self._identity,
            self._roster,
            ClientPolicy(),
            lambda _size: bytes.fromhex(next(draws)),
        )
        self.stored = []
        for step in steps:
            self.stored.append(client.dump())
            if "receive" in step:
                client.receive(bytes.fromhex(step["receive"]))
            else:
                list(
                    client.contribute(
                        step["contribute"], [np.array(step["values"])], bytes.fromhex(step["asked"])
                    )
                )

    def at(self, stage: int) -> ClientSession:
        """Return a new session with the state before a step."""
        source = InsecureSeededBytes("fuzz")
        return self._protocol.load_client(
            self.stored[stage], self._identity, self._roster, ClientPolicy(), source
        )


RECORDED = {
    "secagg+": RecordedClient("run.json"),
    "active": RecordedClient("run-active.json"),
    "lightsecagg": RecordedClient("run-lightsecagg.json"),
    "correlated-noise": RecordedClient("run-correlated-noise.json"),
}
STORED = RECORDED["secagg+"].stored
MESSAGES = RECORDED["secagg+"].messages


def steps_of(name: str) -> int:
    """Return the steps of a run over one sum; "active" is secagg+ against an active server."""
    scheme, statement = scheme_of(name)
    return len(scheme.schedule_for(statement).names)


def scheme_of(name: str) -> tuple[Protocol, Statement]:
    model = ServerModel.ACTIVE if name == "active" else ServerModel.SEMI_HONEST
    scheme = protocol("secagg+" if name == "active" else name)
    return scheme, Statement.of(5, 0.2, 0.2, server=model)


def server_at(stage: int, name: str = "secagg+") -> tuple[ServerSession, list[tuple[int, bytes]]]:
    """Return a server before advertisements, shares, input or answers, and its expected
    messages."""
    source = InsecureSeededBytes("fuzz server")
    identities = [Identity.generate(source) for _ in range(5)]
    roster = Roster({number: identity.public for number, identity in enumerate(identities)})
    scheme, statement = scheme_of(name)
    settings = ServerSettings(block_entries=8, spool=io.BytesIO)
    server = scheme.server(roster, statement, [_SHAPE], settings, source)
    clients = [
        scheme.client(number, identity, roster, ClientPolicy(), source)
        for number, identity in enumerate(identities)
    ]
    for place in range(steps_of(name)):
        replies = [(n, clients[n].receive(m)) for n, m in server.outgoing() if m]
        answers = [(number, reply) for number, reply in replies if reply is not None]
        if server.step and server.step.phase is Phase.INPUT:
            answers = [
                (number, b"".join(client.contribute(1, [np.arange(20)])))
                for number, client in enumerate(clients)
            ]
        if place == stage:
            return server, answers
        for number, message in answers:
            deliver(server, number, message)
        server.advance()
    raise ValueError(f"no step {stage}")


def deliver(server: ServerSession, client: int, message: bytes) -> None:
    """Give the server a client's answer, or its vector in an input step."""
    if server.step and server.step.phase is Phase.INPUT:
        server.add_vector(client, server.step.sum_number, message)
    else:
        server.receive(client, message)


def decode_anything(data: bytes) -> None:
    for read in (decode, decode_light, decode_noisy):
        try:
            message = read(data)
        except MalformedMessage:
            continue
        if encode(message) != data:
            raise AssertionError("an accepted message is not canonical")


def tell_client(stage: int, data: bytes, name: str = "secagg+") -> None:
    client = RECORDED[name].at(stage)
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
    for give in (ServerSession.receive, deliver):
        server, expected = server_at(stage, name)
        try:
            give(server, sender, data)
        except ProtocolError:
            # A refused message must not change anything: the run goes on.
            for number, message in expected:
                deliver(server, number, message)
