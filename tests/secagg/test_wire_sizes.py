"""The sizes that docs/secagg-wire.md gives are the sizes of real messages."""

from __future__ import annotations

import numpy as np
import pytest

from privirec.secagg import LocalFederation, ServerModel, VectorShape


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
        "input": (rounds * (34 + length * 12 // 8), 34 + k * (66 * rounds + 32)),
        "unmask": (rounds * (34 + 33 * k), rounds * (26 + bitmap)),
    }
    if server is ServerModel.ACTIVE:
        sent_and_received["confirm"] = (90, 26 + bitmap)
        sent_and_received["unmask"] = (
            rounds * (34 + 33 * k),
            30 + 64 * k + (rounds - 1) * (26 + bitmap),
        )
    assert run.traffic.mean_by_step() == sent_and_received
