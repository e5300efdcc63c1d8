"""Tests of registered clients that lie: the server neither stops nor opens another sum."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from privirec.privacy.cohorts import Demands
from privirec.runtime import envelope
from privirec.runtime.coordinator import Stage
from privirec.runtime.envelope import MOST_PARTS, BadEnvelope, Envelope
from privirec.runtime.messages import Answer, Goodbye, Here, Message, Received, Vector
from privirec.runtime.pledges import SignedPledge
from privirec.secagg import protocol
from privirec.version import __version__

from .chaos import TERMS, Federation, check_same
from .test_node import Talk

LIAR = 5
LARGE = (1 << 40) - 1


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)


def say(talk: Talk, message: Message, *parts: bytes, run: str = "") -> None:
    sealed = Envelope(run or talk.server.run, LIAR, message, parts)
    talk.server.receive(LIAR, sealed.seal(talk.federation.identities[LIAR], "to-server"))


def lies(talk: Talk, step: int) -> None:
    """Send messages that do not belong here, none of them in place of a requested vector."""
    for place in (0, step, step + 1, max(0, step - 1), LARGE):
        say(talk, Answer(step=place), b"")
        say(talk, Answer(step=place), bytes(1000))
        say(talk, Answer(step=place))
        say(talk, Answer(step=place), b"one", b"two")
        if place != step:
            say(talk, Vector(step=place), bytes(100))
            say(talk, Vector(step=place))
    say(talk, Received(offset=LARGE, installed=True))
    say(talk, Goodbye())
    say(talk, Answer(step=step), b"", run="0" * 32)


def test_what_does_not_belong_here_changes_nothing(federation: Federation) -> None:
    now = [0.0]
    steps = protocol(TERMS.aggregator).schedule_for(TERMS.statement(6, 3)).steps(3)
    talk = Talk(federation, clock=lambda: now[0])
    talk.until("advertise")
    for _ in range(60):
        now[0] += 1.5  # a client whose message was dropped is asked again after a moment
        if talk.server.stage is Stage.COMPUTED:
            break
        talk.server.connected(set(federation.roster))
        status = talk.server.status()
        names = [(one.name, one.sum_number) for one in steps]
        at = (status["step"], status["sum_number"])
        lies(talk, names.index(at) if at in names else 0)
        talk.step()
    components = talk.server.components
    assert components is not None
    assert talk.server.cohort == tuple(range(6))
    check_same(components, federation.simulated(frozenset(range(6)), TERMS.program))


def test_a_vector_is_one_part(federation: Federation) -> None:
    """Test a good vector with a second part beside it."""
    talk = Talk(federation)
    talk.until("input", 1)
    good = envelope.peek(federation.node(LIAR).answer(talk.message_for(LIAR)), "to-server")
    say(talk, good.message, bytes(good.parts[0]), b"more")
    assert talk.server.clients[LIAR].gone


@pytest.mark.parametrize("parts", [(), (bytes(50),), (b"one", b"two")])
def test_nonsense_in_the_place_of_a_vector_drops_the_client_that_sent_it(
    federation: Federation, parts: tuple[bytes, ...]
) -> None:
    talk = Talk(federation)
    talk.until("input", 1)
    say(talk, Vector(step=2), *parts)
    talk.until(Stage.COMPUTED)
    components = talk.server.components
    assert components is not None
    assert talk.server.cohort == tuple(range(5))
    check_same(components, federation.simulated(frozenset(range(5)), TERMS.program))


@pytest.mark.parametrize("users", [0, (1 << 32) - 1])
def test_a_client_that_counts_its_users_wrongly_ends_at_most_the_run(
    federation: Federation, users: int
) -> None:
    talk = Talk(federation)
    talk.step(skip={LIAR})
    pledge = SignedPledge(users, Demands(3, 4, 4)).signed(
        talk.server.run, LIAR, federation.identities[LIAR], federation.roster
    )
    here = Here(
        users=users,
        demands=(3, 4, 4),
        period="",
        signature=pledge.signature.hex(),
        version=__version__,
    )
    say(talk, here, b"", b"")
    assert talk.server.clients[LIAR].users == users
    for _ in range(30):
        talk.step()
        if talk.server.stage in (Stage.COMPUTED, Stage.STOPPED):
            break
    talk.server.close()
    again = federation.server()
    assert again.stage in (Stage.SUMMING, Stage.COMPUTED, Stage.STOPPED)


def test_headers_of_strangers_are_short() -> None:
    """A header is read before its sender is known, so it must be cheap to read."""
    for parts in (MOST_PARTS + 1, 5_000_000):
        text = b'{"client":0,"fields":{},"kind":"goodbye","parts":[' + b"0," * (parts - 1)
        text += b'0],"run":""}'
        message = b"PRE\x04" + struct.pack(">I", len(text)) + text + bytes(64)
        with pytest.raises(BadEnvelope):
            envelope.peek(message, "to-server")
