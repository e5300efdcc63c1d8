"""The sizes that docs/secagg-wire.md gives are the sizes of real messages."""

from __future__ import annotations

import numpy as np

from privirec.secagg import LocalFederation, VectorShape


def test_sizes_are_as_specified() -> None:
    clients, rounds, length = 20, 3, 50
    shape = VectorShape(length, 12, bound=100)
    run = LocalFederation(
        "secagg+", clients, [shape] * rounds, corrupt_share=0.1, dropped_share=0.1
    )
    for _ in range(rounds):
        run.sum(lambda _client: [np.ones(length, int)])
    k = run.server.parameters.neighbours
    assert k < clients - 1
    sent_and_received = {
        "advertise": (124 + 32 * rounds, 26 + 59 + 18 * rounds),
        "share": (
            46 + k * (66 * rounds + 16),
            44 + (clients + 7) // 8 + k * (100 + 32 * rounds),
        ),
        "input": (rounds * (34 + length * 12 // 8), 34 + k * (66 * rounds + 32)),
        "unmask": (rounds * (34 + 33 * k), rounds * (38 + 4 * k)),
    }
    assert run.traffic.mean_by_step() == sent_and_received
