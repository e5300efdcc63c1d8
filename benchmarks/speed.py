"""CPU seconds, memory and phases of load, fit, score and rank, beside the baselines' own code.

    python benchmarks/speed.py [--dataset gowalla] [--models gf-cf,turbo-cf,bspm-em] [--json FILE]

Every measurement is a process of its own, so that peak memory is its own. One thread unless said
otherwise; the wall-time ratio of two threads needs an idle machine.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections import Counter
from typing import Any

# CPU seconds of the authors' own code on the same kind of machine, one thread, fit plus score and
# rank for all users (measured once, outside this repository; their code is not ours to ship).
THEIRS = {
    ("gowalla", "gf-cf"): 291,
    ("gowalla", "turbo-cf"): 35,
    ("gowalla", "bspm-lm"): 1131,
    ("gowalla", "bspm-em"): 1231,
    ("yelp2018", "gf-cf"): 448,
    ("yelp2018", "turbo-cf"): 143,
    ("yelp2018", "bspm-lm"): 741,
    ("yelp2018", "bspm-em"): 801,
}


def measure(dataset: str, model: str, method: str, threads: int) -> dict[str, Any]:
    """One run in this process, with the time that each phase takes."""
    from privirec import evaluation as ranking
    from privirec import threads as threading
    from privirec.data import load_dataset
    from privirec.filters import components, kernels, operators
    from privirec.models import base
    from privirec.runtime.local import simulation
    from privirec.runtime.run import run
    from privirec.runtime.spec import RunSpec

    spent: Counter[str] = Counter()

    def timed(owner: Any, name: str, phase: str) -> None:
        function = getattr(owner, name)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            started, before = time.process_time(), sum(spent.values())
            try:
                return function(*args, **kwargs)
            finally:
                # Less what a phase inside this one has counted already.
                inside = sum(spent.values()) - before
                spent[phase] += time.process_time() - started - inside

        setattr(owner, name, wrapper)

    # Compile before the clock runs; numba keeps the result, so a user pays this once.
    warm = load_dataset("synthetic:small")
    rank = {} if model == "turbo-cf" else {"rank": 16}
    run(
        warm,
        RunSpec.of(method, model=model, threads=threads, **rank),
    )

    timed(components, "leading_eigenpairs", "singular vectors")
    timed(kernels, "add_sparse_rows", "x P~ (sparse)")
    timed(operators.FactoredOperator, "times", "y P~ (dense)")
    timed(operators.FactoredOperator, "written_out", "writing P~ out")
    timed(kernels, "top_items", "top 20")
    timed(kernels, "best_of_sums", "top 20 of few")
    timed(base.Recommender, "ready_for", "once for all users")
    timed(ranking, "measure_rankings", "metric")
    timed(simulation.Simulation, "sum", "federated sums")
    started, cpu = time.perf_counter(), time.process_time()
    with threading.limit(threads):
        data = load_dataset(dataset)
    spent["load"] = time.process_time() - cpu
    row = run(data, RunSpec.of(method, model=model, threads=threads)).row
    total = time.process_time() - cpu
    spent["rest"] = max(0.0, total - sum(spent.values()))
    return {
        "dataset": dataset,
        "model": model,
        "method": method,
        "threads": threads,
        "ndcg@20": row["ndcg@20"],
        "cpu_seconds": total,
        "wall_seconds": time.perf_counter() - started,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        # The clock is the whole process's: with several threads at work it counts phases twice.
        "phases": {name: round(value, 2) for name, value in spent.most_common() if threads == 1},
    }


def in_own_process(dataset: str, model: str, method: str, threads: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", dataset, model, method, str(threads)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return dict(json.loads(out.splitlines()[-1]))


def show(row: dict[str, Any]) -> None:
    theirs = THEIRS.get((row["dataset"], row["model"]))
    ratio = f"{theirs / row['cpu_seconds']:5.1f} x less CPU than theirs" if theirs else ""
    if row["method"] != "centralized":
        ratio = ""
    print(
        f"{row['dataset']:10} {row['model']:9} {row['method']:12} {row['threads']} thread(s): "
        f"CPU {row['cpu_seconds']:7.1f} s  wall {row['wall_seconds']:7.1f} s  "
        f"peak {row['peak_rss_mb']:6.0f} MB  NDCG@20 {row['ndcg@20']:.4f}  {ratio}"
    )
    total = row["cpu_seconds"]
    shares = ", ".join(f"{name} {value / total:.0%}" for name, value in row["phases"].items())
    print(f"{'':11}{shares}".rstrip(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="gowalla")
    parser.add_argument("--models", default="gf-cf,turbo-cf,bspm-lm,bspm-em")
    parser.add_argument("--json")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        dataset, model, method, threads = args.one
        print(json.dumps(measure(dataset, model, method, int(threads))))
        return
    rows = []
    for model in args.models.split(","):
        central = in_own_process(args.dataset, model, "centralized", 1)
        show(central)
        federated = in_own_process(args.dataset, model, "privirec", 1)
        show(federated)
        two = in_own_process(args.dataset, model, "centralized", 2)
        show(two)
        more = federated["cpu_seconds"] / central["cpu_seconds"] - 1
        faster = central["wall_seconds"] / two["wall_seconds"]
        print(f"{'':11}federated {more:+.0%} CPU; two threads {faster:.2f} x in wall time\n")
        rows += [central, federated, two]
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
