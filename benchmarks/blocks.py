"""How much of an honest block lies on one item: what `largest_item_share` has to leave room for.

    python benchmarks/blocks.py synthetic:small synthetic:demo gowalla [--rank 256] [--rounds 5]

The blocks that a server broadcasts in the power steps of PriviRec-k, X = V^1/2 W with orthonormal
columns. For each round and rank: the largest share of an item in a column (X_ic^2), and the largest
in all columns together (the squared norm of its row, its leverage). A block of rank k is the first
k columns of a wider one, so one run at the largest rank measures all.
"""

from __future__ import annotations

import argparse

import numpy as np

from privirec.data import load_dataset
from privirec.federated.contributions import PowerStep
from privirec.federated.programs import PrivirecKSettings, program_of
from privirec.privacy.ledger import Ledger
from privirec.runtime.local.simulation import Simulation

RANKS = (4, 16, 64, 256)


def measure(name: str, rank: int, rounds: int, seed: int) -> None:
    train = load_dataset(name).train
    rank = min(rank, train.n_items)
    settings = PrivirecKSettings(rank=rank, rounds=rounds, seed=seed)
    program = program_of(settings, train.n_users, train.n_items)
    summing, ledger = Simulation(train), Ledger()
    steps, total, number = program.steps(), None, 0
    while True:
        try:
            ask = steps.send(total)
        except StopIteration:
            return
        total = summing.sum(ask, ledger) if hasattr(ask, "blocks") else None
        if not isinstance(ask, PowerStep):
            continue
        number += 1
        roots = np.sqrt(ask.item_degrees.astype(float))[:, None]
        shares = (roots * np.ldexp(ask.block.astype(float), -ask.block_bits)) ** 2
        used = int(np.count_nonzero(ask.item_degrees))
        popular = ask.item_degrees.max() / ask.item_degrees.sum()
        for k in RANKS:
            if k <= rank:
                inside = shares[:, :k]
                print(
                    f"| {name} | {used:,} | {popular:.4f} | {number} | {k} "
                    f"| {inside.max():.3f} | {inside.sum(axis=1).max():.3f} |",
                    flush=True,
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--rank", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print("| data | items in use | most popular | block | k | largest share | leverage |")
    print("|---|---|---|---|---|---|---|")
    for dataset in given.datasets:
        measure(dataset, given.rank, given.rounds, given.seed)
