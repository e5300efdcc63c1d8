"""Tests that a sum opens only if all its clients received the same request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from privirec.extra.correlated import client as correlated_client
from privirec.extra.lightsecagg import client as light_client
from privirec.extra.lightsecagg.messages import Deal
from privirec.extra.lightsecagg.shared import EXCHANGE
from privirec.secagg import ServerModel, VectorShape, keys
from privirec.secagg.bell2020 import client as bell_client
from privirec.secagg.errors import BadShare, OtherAsk, ProtocolError
from privirec.secagg.local_federation import LocalFederation
from privirec.secagg.messages import encode

SHAPE = VectorShape(400, 16, 1000)
CLIENTS, VICTIM = 9, 4
ONE, OTHER = b"1" * 32, b"2" * 32
MASKED = ["secagg+", "secagg", "lightsecagg"]
BLURRED = [*MASKED, "correlated-noise"]


def history() -> np.ndarray:
    return np.random.default_rng(4).integers(0, 1000, SHAPE.length)


def federation(protocol: str, asked: Callable[[int], bytes], sums: int = 1) -> LocalFederation:
    """Return a federation whose clients receive the requests of `asked`, as told by the server."""
    run = LocalFederation(
        protocol, CLIENTS, [SHAPE] * sums, dropped_share=0.2, server=ServerModel.ACTIVE
    )
    for client, session in enumerate(run.clients):
        contribute = session.contribute

        def answer(number: int, blocks: Any, give: Any = contribute, one: int = client) -> Any:
            return give(number, blocks, asked(one))

        session.contribute = answer  # type: ignore[method-assign]
        if protocol == "lightsecagg":
            session.receive = told(session.receive, asked(client))  # type: ignore[method-assign]
    run.server.asked = ONE
    return run


def told(receive: Callable[[bytes], Any], asked: bytes) -> Callable[[bytes], Any]:
    """Return a receiver to which the server names another request when pieces are dealt."""

    def take(raw: bytes) -> Any:
        message = EXCHANGE.decode(raw)
        lie = encode(replace(message, asked=asked)) if isinstance(message, Deal) else raw
        return receive(lie)

    return take


def alone(client: int) -> list[np.ndarray]:
    """Return the victim's history; for all other clients, zeros."""
    return [history() if client == VICTIM else np.zeros(SHAPE.length, int)]


def different(client: int) -> bytes:
    return OTHER if client == VICTIM else ONE


@pytest.mark.parametrize("protocol", MASKED)
def test_clients_that_were_asked_for_the_same_are_summed(protocol: str) -> None:
    run = federation(protocol, lambda _: ONE)
    total = run.sum(lambda client: [np.full(SHAPE.length, client)], {"input": [7]}).total
    assert (total == sum(set(range(CLIENTS)) - {7})).all()


@pytest.mark.parametrize("sums", [1, 2])
@pytest.mark.parametrize("protocol", ["secagg+", "secagg"])
def test_the_masks_of_one_who_was_asked_for_something_else_do_not_cancel(
    protocol: str, sums: int
) -> None:
    run = federation(protocol, different, sums)
    for _ in range(sums):
        total = run.sum(alone).total
        # As good as random: two in 65,536 entries agree by chance.
        assert np.count_nonzero(total == history()) < 5
        assert np.count_nonzero(total) > 0.95 * SHAPE.length


@pytest.mark.parametrize("protocol", ["secagg+", "secagg"])
def test_they_would_cancel_if_the_seeds_were_the_same(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = keys.mask_seed
    monkeypatch.setattr(bell_client.keys, "mask_seed", lambda *parts: seed(*parts[:6]))
    assert (federation(protocol, different).sum(alone).total == history()).all()


def test_pieces_of_one_who_was_told_something_else_do_not_open() -> None:
    run = federation("lightsecagg", different)
    with pytest.raises(BadShare):
        run.sum(alone)


def test_they_would_open_if_they_were_bound_to_the_participants_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bound = light_client.pieces_context
    monkeypatch.setattr(
        light_client,
        "pieces_context",
        lambda digest, number, _asked, receivers: bound(digest, number, ONE, receivers),
    )
    assert (federation("lightsecagg", different).sum(alone).total == history()).all()


@pytest.mark.parametrize("guarded", [True, False])
def test_pieces_for_one_ask_do_not_serve_for_another(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test a server that names one request to all, and then asks one client for something else."""
    asked = ONE

    def lie(client: int) -> bytes:
        return OTHER if client == VICTIM and asked == OTHER else ONE

    run = federation("lightsecagg", lie)
    asked = OTHER
    if guarded:
        with pytest.raises(OtherAsk):
            run.sum(alone)
        with pytest.raises(ProtocolError):
            run.clients[VICTIM].dump()
        return
    masks = light_client.LightClient.masks
    monkeypatch.setattr(
        light_client.LightClient, "masks", lambda self, n, _asked: masks(self, n, self.state.asked)
    )
    assert (run.sum(alone).total == history()).all()


@pytest.mark.parametrize("guarded", [True, False])
def test_common_noise_of_one_who_was_asked_for_something_else_stays(
    guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that the sum then hides the victim exactly as well as its own upload does."""
    derive = keys.derive
    if not guarded:
        monkeypatch.setattr(
            correlated_client.keys,
            "derive",
            lambda *parts: derive(*parts[:6]) if parts[6:] else derive(*parts),
        )
    run = federation("correlated-noise", different)
    opened = run.sum(alone)
    error = np.std(opened.shape.ring.decode_signed(opened.total) - history())
    if guarded:
        assert error > 50 * opened.deviation
    else:
        assert error < 2 * opened.deviation


@pytest.mark.parametrize("protocol", BLURRED)
def test_a_digest_has_its_length(protocol: str) -> None:
    run = LocalFederation(protocol, CLIENTS, [SHAPE])
    with pytest.raises(ValueError, match="31 bytes"):
        run.clients[VICTIM].contribute(1, alone(VICTIM), b"1" * 31)
