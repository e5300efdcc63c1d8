"""Noise beside masking, one thread: what each adds to a client's vector of one sum.

    python benchmarks/noise.py [--neighbours 60] [--epsilon 8] [--json FILE]

For cohorts of several sizes: the noise share of a client of the protected program (its deviation,
ring and length as the program plans them) beside the masks of the same vector, in the same ring,
for so many neighbours and the client's own. CPU seconds of the fastest of a few repetitions, taken
in turn, so that whatever else the machine does slows both.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable

os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1")

import numpy as np

from privirec.federated.dp.sampler import GaussianNoise, NoiseGenerator
from privirec.federated.programs import Protected, ProtectedSettings
from privirec.runtime.spec import Assumptions
from privirec.secagg.prg import MaskGenerator
from privirec.secagg.ring import VectorShape

# People, items, clients: Gowalla and Globo with a client for each person, and a few silos.
COHORTS = [(29_858, 40_981, 29_858), (157_926, 11_832, 157_926), (157_926, 11_832, 5)]
REPETITIONS = 7


def alternating(*actions: Callable[[], None]) -> list[float]:
    """CPU seconds of each, the least of several turns."""
    for action in actions:
        action()
    least = [float("inf")] * len(actions)
    for _ in range(REPETITIONS):
        for place, action in enumerate(actions):
            start = time.process_time()
            action()
            least[place] = min(least[place], time.process_time() - start)
    return least


def measured(cohort: tuple[int, int, int], epsilon: float, neighbours: int) -> dict[str, float]:
    users, items, clients = cohort
    contributors = Assumptions().contributors(clients)
    settings = ProtectedSettings(epsilon=epsilon, clients=clients, contributors=contributors)
    program = Protected(settings, users, items)
    share, planned = program.calibration.shares[-1], program.sums()[-1]
    shape = VectorShape(planned.shape.length, planned.shape.ring_bits, 1, signed=True)
    words = np.zeros(shape.length, shape.ring.dtype)
    values = np.zeros(shape.length, np.int64)
    seeds = [os.urandom(32) for _ in range(neighbours + 1)]
    start = time.process_time()
    masks, noise = MaskGenerator(), NoiseGenerator(GaussianNoise(share.deviation))
    table = time.process_time() - start
    masking, drawing = alternating(
        lambda: masks.add(words, 0, seeds), lambda: noise.add(values, 0, seeds[:1])
    )
    return {
        "users": users,
        "clients": clients,
        "entries": shape.length,
        "ring_bits": planned.shape.ring_bits,
        "deviation": share.deviation,
        "levels": len(GaussianNoise(share.deviation).shifts),
        "masking_seconds": masking,
        "noise_seconds": drawing,
        "noise_by_masking": drawing / masking,
        "table_seconds": table,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--neighbours", type=int, default=60)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--json", metavar="FILE", help="write one JSON object a line")
    options = parser.parse_args()
    rows = [measured(cohort, options.epsilon, options.neighbours) for cohort in COHORTS]
    for row in rows:
        print(
            "{clients} clients, {entries} entries of {ring_bits} bits, deviation {deviation} in "
            "{levels} level(s): masks {masking_seconds:.4f} s, noise {noise_seconds:.4f} s, "
            "{noise_by_masking:.2f} times the masks; its table, once, {table_seconds:.3f} s".format(
                **row
            )
        )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
