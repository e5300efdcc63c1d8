"""Tests of the server's memory: unfinished clients use no more than honest ones send."""

from __future__ import annotations

from pathlib import Path

import pytest

from privirec.privacy.policy import Aggregator
from privirec.runtime import envelope
from privirec.runtime.coordinator import Stage
from privirec.runtime.envelope import Envelope
from privirec.runtime.messages import Answer, Exchange, Vector

from .chaos import Federation
from .test_node import Talk

JUNK = 1 << 22


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("aggregator", ["secagg+", "lightsecagg"])
def test_answers_that_are_too_long_are_not_kept(tmp_path: Path, aggregator: Aggregator) -> None:
    """At every step one client first sends four megabytes, alone or appended to its real answer."""
    federation = Federation(tmp_path, aggregator=aggregator)
    talk = Talk(federation)
    tried = set()
    for _ in range(200):
        talk.server.connected(set(federation.roster))
        for address, message in list(talk.server.outgoing()):
            client = int(str(address))
            honest = federation.node(client).answer(message)
            asked = envelope.peek(message, "to-client").message
            if client == 0 and isinstance(asked, Exchange) and asked.step not in tried:
                tried.add(asked.step)
                reply = envelope.peek(honest, "to-server")
                before = _size(federation.folder / "server")
                for first in (b"", bytes(reply.parts[0])):
                    junk = (first + bytes(JUNK), *reply.parts[1:])
                    sent = Envelope(reply.run, 0, reply.message, junk)
                    said = reply.message
                    assert isinstance(said, Answer | Vector)
                    if isinstance(said, Vector):
                        continue  # junk in place of a vector would exclude the client
                    talk.server.receive(0, sent.seal(federation.identities[0], "to-server"))
                assert _size(federation.folder / "server") - before < JUNK // 8
            talk.server.receive(address, honest)
        talk.server.tick()
        if talk.server.stage is Stage.COMPUTED:
            break
    assert talk.server.stage is Stage.COMPUTED, talk.server.reason
    assert len(tried) == len(talk.server.plan.steps)


def test_a_vector_that_is_too_long_ends_a_clients_part(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    talk = Talk(federation)
    talk.until("input", 1)
    talk.server.connected(set(federation.roster))
    list(talk.server.outgoing())
    reply = envelope.peek(federation.node(0).answer(talk.message_for(0)), "to-server")
    before = _size(federation.folder / "server")
    junk = Envelope(reply.run, 0, reply.message, (bytes(JUNK),))
    talk.server.receive(0, junk.seal(federation.identities[0], "to-server"))
    assert talk.server.clients[0].gone
    assert _size(federation.folder / "server") - before < JUNK // 8
