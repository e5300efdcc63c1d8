"""Tests of message sizes: those in docs/reference/secagg-wire.md and in plans are the real ones."""

from __future__ import annotations

import numpy as np
import pytest

from breadth import first
from privirec.secagg import (
    ClientPolicy,
    LocalFederation,
    ServerModel,
    Statement,
    VectorShape,
    protocol,
    protocol_names,
)
from privirec.secagg.key_tree import KeyTree, path_hashes
from privirec.secagg.protocol import ServerSettings


@pytest.mark.parametrize("server", ServerModel)
def test_sizes_are_as_specified(server: ServerModel) -> None:
    clients, rounds, length = 64, 3, 50
    depth, bitmap = 6, 8  # of the tree of keys; bytes of a map
    shape = VectorShape(length, 12, bound=60)
    run = LocalFederation(
        *("secagg+", clients, [shape] * rounds),
        corrupt_share=0.05,
        dropped_share=0.05,
        server=server,
    )
    for _ in range(rounds):
        run.sum(lambda _client: [np.ones(length, int)])
    k = run.server.parameters.neighbours
    assert k < clients - 1
    sent_and_received = {
        "advertise": (124 + 32 * rounds, 86 + 18 * rounds),
        "share": (
            46 + k * (66 * rounds + 16),
            77 + bitmap + 32 * depth + k * (100 + 32 * rounds),
        ),
        "input": (rounds * (length * 12 // 8), 34 + k * (66 * rounds + 32)),
        "unmask": (rounds * (34 + 33 * k), rounds * (26 + bitmap)),
    }
    if server is ServerModel.ACTIVE:
        sent_and_received["confirm"] = (90, 26 + bitmap)
        sent_and_received["unmask"] = (
            rounds * (34 + 33 * k),
            30 + 64 * k + (rounds - 1) * (26 + bitmap),
        )
    assert run.traffic.mean_by_step() == sent_and_received


@pytest.mark.parametrize("server", ServerModel)
@pytest.mark.parametrize("name", protocol_names())
@pytest.mark.parametrize("clients", first(1, [22, 5, 37]))
def test_a_plan_knows_the_bytes_of_every_sum(name: str, clients: int, server: ServerModel) -> None:
    """Test uploads of one message, of several, and of part of one."""
    shapes = [VectorShape(length, 24, bound=2**20, bounds_sum=True) for length in (13, 16, 40)]
    run = LocalFederation(
        name,
        clients,
        shapes,
        server=server,
        settings=ServerSettings(block_entries=16),
        policy=ClientPolicy(proven_sums=True),
    )
    up, down = [], []
    for shape in shapes:
        run.sum(lambda _client, length=shape.length: [np.ones(length, int)])
        up.append(int(run.traffic.up_per_client().sum()))
        down.append(int(run.traffic.down_per_client().sum()))
    statement = Statement.of(clients, 0.05, 0.05, rounds=len(shapes), server=server)
    planned = protocol(name).sum_bytes(statement, shapes, 16)
    assert [one.up * clients for one in planned] == np.diff([0, *up]).tolist()
    assert [one.down * clients for one in planned] == np.diff([0, *down]).tolist()


@pytest.mark.parametrize("size", [*range(1, 20), 37, 64, 100])
def test_paths_are_counted_without_the_tree(size: int) -> None:
    tree = KeyTree([bytes(32)] * size)
    assert path_hashes(size) == sum(len(tree.path(place)) for place in range(size))
