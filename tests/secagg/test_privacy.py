"""Tests of the server's view: uniform vectors, and never both secrets of a client."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from scipy.stats import chisquare

from privirec.secagg import LocalFederation, ServerModel, VectorShape
from privirec.secagg.bell2020.messages import Deliver, Survivors, Unmask, decode
from secagg.testing import InsecureSeededBytes, Scenario, Weather, simulate

WIDTH, LENGTH, CLIENTS, RUNS = 4, 64, 5, 60


def masked_views(entry: int) -> np.ndarray:
    """Return all masked entries that the server sees of client 2, whose input is `entry`
    throughout."""
    seen: list[np.ndarray] = []
    shape = VectorShape(LENGTH, WIDTH, bound=3)

    def observe(direction: str, client: int, message: bytes) -> None:
        if client == 2 and direction == "vector":
            seen.append(shape.ring.unpack(message, LENGTH))

    for run in range(RUNS):
        federation = LocalFederation(
            "secagg+",
            CLIENTS,
            [shape],
            corrupt_share=0.2,
            dropped_share=0.2,
            random_bytes=InsecureSeededBytes(f"{run} {entry}"),
            observe=observe,
        )
        values = {client: entry if client == 2 else client % 3 for client in range(CLIENTS)}
        opened = federation.sum(
            lambda client, values=values: [np.full(LENGTH, values[client])],
            {"input": {run % 5} - {2}},
        )
        assert 2 in opened.survivors
    return np.stack(seen)


def test_the_servers_view_does_not_depend_on_the_input() -> None:
    views = {entry: masked_views(entry) for entry in (0, 3)}
    for entry, view in views.items():
        assert view.shape == (RUNS, LENGTH)
        counts = np.bincount(view.ravel(), minlength=1 << WIDTH)
        assert chisquare(counts).pvalue > 1e-6, f"input {entry}: {counts}"
        # Neighbouring entries together: 256 cells, so that a repeated mask shows.
        pairs = view[:, 0::2].ravel().astype(int) * (1 << WIDTH) + view[:, 1::2].ravel()
        assert chisquare(np.bincount(pairs, minlength=1 << 2 * WIDTH)).pvalue > 1e-6
    # The test must be able to fail: unmasked inputs are far from uniform.
    bare = np.bincount(np.full(RUNS * LENGTH, 3), minlength=1 << WIDTH)
    assert chisquare(bare).pvalue < 1e-6


def secrets_in(transcript: list[tuple[str, int, bytes]]) -> dict[tuple[int, int], set[str]]:
    """Return (round, client) -> the kinds of its secrets of which the server got any share.

    Ids are places in the roster, as in `simulate`.
    """
    cohorts: dict[int, set[int]] = {}
    holds: dict[int, list[int]] = {}
    opened: dict[tuple[int, int], set[str]] = defaultdict(set)
    for direction, client, raw in transcript:
        if direction == "vector":
            continue
        message = decode(raw)
        if direction == "down" and isinstance(message, Deliver):
            holds[client] = [share.sender for share in message.shares]
        if direction == "down" and isinstance(message, Survivors):
            bits = int.from_bytes(message.survivors, "little")
            cohorts[client] = {place for place in range(64) if bits >> place & 1}
        if direction == "up" and isinstance(message, Unmask):
            survivors = [peer for peer in holds[client] if peer in cohorts[client]]
            dropped = [peer for peer in holds[client] if peer not in cohorts[client]]
            assert len(message.seed_shares) == len(survivors)
            if message.sum_number > 1:
                dropped = []  # clients that dropped before have no secrets in this sum
            assert len(message.key_shares) == len(dropped)
            for owner in survivors:
                opened[message.sum_number, owner].add("seed")
            for owner in dropped:
                opened[message.sum_number, owner].add("key")
    return opened


@pytest.mark.parametrize("name", ["secagg+", "secagg"])
@pytest.mark.parametrize("server", ServerModel)
def test_no_transcript_holds_both_secrets_of_a_client(name: str, server: ServerModel) -> None:
    kinds: set[str] = set()
    for seed in range(25):
        weather = Weather(dies=0.03, lies=0.1 * (seed % 2))
        storm = Scenario(name, clients=8, server=server, weather=weather)
        opened = secrets_in(simulate(seed, storm).transcript)
        assert all(len(of_client) == 1 for of_client in opened.values())
        kinds.update(*opened.values())
    assert kinds == {"seed", "key"}  # the test saw both kinds, of different clients


def test_no_secret_is_in_the_clear_anywhere_in_a_transcript() -> None:
    heard: list[bytes] = []
    federation = LocalFederation(
        "secagg+",
        6,
        [VectorShape(8, 16, bound=9)],
        corrupt_share=0.2,
        observe=lambda _direction, _client, message: heard.append(message),
    )
    secrets = [
        secret.reveal()
        for client in federation.clients
        for secret in (
            client.state.seeds,  # type: ignore[attr-defined]
            client.state.mask_privates,  # type: ignore[attr-defined]
        )
    ]
    federation.sum(lambda _client: [np.ones(8, int)])
    everything = b"".join(heard)
    assert len(secrets) == 12
    assert not any(secret in everything for secret in secrets)
