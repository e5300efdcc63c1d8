"""One trial of a trained method on a fifth of a train split, held out.

    python benchmarks/tune_trained.py --method mf --dataset gowalla --epochs 8 \\
        --settings '{"unobserved": 0.01, "ridge": 0.01}'

Prints, after some epochs each, NDCG@20 of the people looked at, bytes per client and CPU seconds.
What was tried and chosen is in docs/results/frontier.md, and the choice in
`privirec.experiments.peers.training`. Test splits are not read.
"""

from __future__ import annotations

import argparse
import json

from tune_private import held_out

from privirec import threads
from privirec.evaluation import evaluate
from privirec.experiments.frontier import CHECKPOINTS, TrainingRun
from privirec.experiments.peers import TRAINED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--method", choices=list(TRAINED), required=True)
    parser.add_argument("--dataset", default="gowalla")
    parser.add_argument("--settings", type=json.loads, default={}, help="as JSON")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--people", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    data = held_out(asked.dataset, asked.people)
    run = TrainingRun(asked.method, data, asked.settings, asked.seed)
    with threads.limit(1):
        for epochs in [*(one for one in CHECKPOINTS if one < asked.epochs), asked.epochs]:
            found = evaluate(run.up_to(epochs).scorer(), data)
            row = {
                "method": asked.method,
                "dataset": asked.dataset,
                "settings": asked.settings,
                "epochs": epochs,
                **found.as_row(),
                "bytes_up_per_client": run.ledger.bytes_up,
                "bytes_down_per_client": run.ledger.bytes_down,
                "cpu_seconds": round(run.seconds, 1),
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
