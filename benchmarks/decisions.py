"""Costs and gains of three choices that make the code longer; the table in
docs/results/decisions.md.

    python benchmarks/decisions.py client          # NumPy versions of the compiled loops
    python benchmarks/decisions.py later           # imports on first use
    python benchmarks/decisions.py lanes [--users 6000]   # LLVM instructions written by hand

`client` and `later` start each process several times, in turn, and print the least of each figure.
`lanes` runs the same models twice in one process, once with loops that Numba compiles from plain
Python, and compares the results. One thread.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1")

STARTS = 5
POSTPONED = (
    "scipy.sparse",
    "scipy.linalg.lapack",
    "privirec.filters.kernels",
    "privirec.evaluation",
)
"""Modules that are imported on first use (`compiled.Later`)."""
PLAIN = """
import numpy as np
from numba import njit

LANES = 16
STAGE = 32


@njit(inline="always")
def _gather(indices, start, stop, source, column, factor, out, row, width):
    total = out[row, column : column + width]
    total[:] = 0
    for position in range(start, stop):
        line = source[np.uint64(indices[position]), column : column + width]
        for lane in range(width):
            total[lane] += line[lane]
    for lane in range(width):
        total[lane] *= factor


@njit(inline="always")
def gather(indices, start, stop, source, column, factor, out, row):
    _gather(indices, start, stop, source, column, factor, out, row, LANES)


@njit(inline="always")
def gather_wide(indices, start, stop, source, column, factor, out, row):
    _gather(indices, start, stop, source, column, factor, out, row, 4 * LANES)


@njit(inline="always")
def above(line, first, threshold):
    found = False
    for lane in range(LANES):
        found |= line[first + lane] > threshold
    return found


@njit(inline="always")
def reaching(line, norms, first, factor, threshold):
    bits = np.uint64(0)
    for lane in range(LANES):
        reached = line[first + lane] + factor * norms[first + lane] >= threshold
        bits |= np.uint64(reached) << np.uint64(lane)
    return bits


@njit(inline="always")
def lowest(bits):
    place = np.uint64(0)
    while not (bits >> place) & np.uint64(1):
        place += np.uint64(1)
    return place


@njit(inline="always")
def _total(sums):
    a, b, c, d = sums[0] + sums[8], sums[1] + sums[9], sums[2] + sums[10], sums[3] + sums[11]
    e, f, g, h = sums[4] + sums[12], sums[5] + sums[13], sums[6] + sums[14], sums[7] + sums[15]
    return ((a + e) + (c + g)) + ((b + f) + (d + h))


@njit(inline="always")
def _add_stage(one, other, sums):
    for start in range(0, STAGE, LANES):
        for lane in range(LANES):
            sums[lane] += one[start + lane] * other[start + lane]


@njit(inline="always")
def inner_product(coordinates, row, vectors, item, n_items, stages):
    sums = np.zeros(LANES, np.float32)
    for stage in range(stages):
        one = coordinates[row, stage * STAGE : (stage + 1) * STAGE]
        _add_stage(one, vectors[stage * n_items + item], sums)
    return _total(sums)


@njit(inline="always")
def next_stage(coordinates, row, vectors, line, stage, sums, place, onto):
    held = sums[onto]
    held[:] = sums[place]
    one = coordinates[row, stage * STAGE : (stage + 1) * STAGE]
    _add_stage(one, vectors[line], held)
    return _total(held)


@njit(inline="always")
def fetch(array, row):
    pass
"""


# --- a client -------------------------------------------------------------------------------------


def figures(started: tuple[float, float]) -> dict[str, float]:
    """Return wall and CPU seconds since the start, and the peak of memory so far."""
    wall, cpu = started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "peak_mb": peak,
    }


def be_client(way: str, imports: str) -> dict[str, Any]:
    """Import what `privirec client` imports, and compute the sums of one person."""
    started = (time.perf_counter(), time.process_time())
    from privirec.compiled import go_without

    if way == "numpy":
        go_without()
    import_all(imports)
    from privirec.app.cli import light  # noqa: F401

    start = figures(started)
    contribute()
    return {"start": start, "end": figures(started)}


def contribute() -> None:
    """Compute noise, vectors and masks of one person among 2,000 with Gowalla's items."""
    import numpy as np

    from privirec.data.interactions import Interactions
    from privirec.federated.contributions import Histories, answer
    from privirec.federated.programs import Protected, ProtectedSettings
    from privirec.federated.randomness import ClientRandomness
    from privirec.secagg.prg import MaskGenerator

    n_items = 40_981
    noise = {"epsilon": 8.0, "clients": 2000, "contributors": 1500}
    settings = ProtectedSettings(way="gram", head=1000, **noise)
    program = Protected(settings, 2000, n_items)
    own = np.arange(0, n_items, 1000)
    rows = np.zeros(len(own), np.int64)
    train = Interactions.from_indices(rows, own, np.arange(1), np.arange(n_items))
    histories = Histories(train.matrix)
    randomness, masks = ClientRandomness.fresh(), MaskGenerator()
    seeds = [os.urandom(32) for _ in range(60)]
    for number, planned in enumerate(program.sums(), 1):
        items = np.arange(0, 1000)
        known = {"items": items, "weights": np.ones(len(items), np.int64)} if number > 1 else {}
        ask = planned.ask(**known)
        for block in answer(ask, histories, randomness.stream(number, ask.name)):
            masks.add(block, 0, seeds)


def import_all(imports: str) -> None:
    if imports == "at-once":
        import importlib

        for name in POSTPONED:
            module = importlib.import_module(name)
            getattr(module, "something", None)  # loads a module that was put off


def be_command(imports: str) -> dict[str, Any]:
    """Print the help of the command line."""
    started = (time.perf_counter(), time.process_time())
    import_all(imports)
    import contextlib
    import io

    from privirec.app.cli import main

    sys.argv = ["privirec", "--help"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main.called()()
    return {"end": figures(started)}


def least(kinds: dict[str, list[str]]) -> dict[str, dict[str, Any]]:
    """Start a process of each kind in turn, and return the least of each of its figures."""
    found: dict[str, dict[str, Any]] = {}
    for turn in range(STARTS + 1):
        for kind, arguments in kinds.items():
            command = [sys.executable, __file__, "child", *arguments]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            if not turn:  # compiles, and writes bytecode
                continue
            row = json.loads(out.splitlines()[-1])
            before = found.setdefault(kind, row)
            for moment, numbers in row.items():
                for name, value in numbers.items():
                    before[moment][name] = min(before[moment][name], value)
    return found


def show(found: dict[str, dict[str, Any]]) -> None:
    first = next(iter(found.values()))
    for kind, row in found.items():
        for moment, numbers in row.items():
            text = ", ".join(
                f"{name} {value:.2f} ({value / first[moment][name]:.2f} x)"
                for name, value in numbers.items()
            )
            print(f"{kind:22} {moment:6} {text}", flush=True)


# --- instructions by hand -------------------------------------------------------------------------


def compare_lanes(dataset: str, users: int) -> None:
    """Fit and rank with both kinds of loops, in turn."""
    import importlib.util

    import numpy as np

    from privirec.data import load_dataset
    from privirec.filters import kernels
    from privirec.models import BSPMEM, GFCF, TurboCF

    folder = Path(tempfile.mkdtemp())
    (folder / "plain_lanes.py").write_text(PLAIN)
    source = Path(kernels.__file__).read_text(encoding="utf-8")
    source = source.replace("from privirec.filters import lanes", "import plain_lanes as lanes")
    (folder / "plain_kernels.py").write_text(source.replace("cache=True", "cache=False"))
    sys.path.insert(0, str(folder))
    plain = importlib.import_module("plain_kernels")

    small, data = load_dataset("synthetic:small"), load_dataset(dataset)
    for kind in (GFCF, TurboCF, BSPMEM):
        config = {} if kind is TurboCF else {"rank": 16}
        seconds, lists = [], []
        for loops in (plain, kernels):
            sys.modules["privirec.filters.kernels"] = loops
            warm = kind(**config).fit(small.train)
            warm.recommend(np.arange(64), small.train.matrix[:64], N=20)
        count = data.train.n_users if kind is not BSPMEM else users
        chosen = np.arange(count)
        for loops in (plain, kernels):
            sys.modules["privirec.filters.kernels"] = loops
            before = time.process_time()
            model = kind(kind.published["gowalla"]).fit(data.train)
            fitted = time.process_time()
            lists.append(model.recommend(chosen, data.train.matrix[:count], N=20))
            seconds.append((fitted - before, time.process_time() - fitted))
        same = all(np.array_equal(one, two) for one, two in zip(*lists, strict=True))
        (fit, rank), (own_fit, own_rank) = seconds
        print(
            f"{dataset} {kind.name}, {count} users: fit {fit:.1f} -> {own_fit:.1f} CPU s, "
            f"rank {rank:.1f} -> {own_rank:.1f} CPU s, "
            f"together {(fit + rank) / (own_fit + own_rank):.2f} x; same lists: {same}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("choice", choices=("client", "later", "lanes", "child"))
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--dataset", default="gowalla")
    parser.add_argument("--users", type=int, default=6000, help="users that BSPM ranks for")
    given = parser.parse_args()
    if given.choice == "child":
        what, *rest = given.arguments
        print(json.dumps(be_command(*rest) if what == "help" else be_client(*rest)))
    elif given.choice == "client":
        kinds = {"NumPy": ["client", "numpy", "later"], "Numba": ["client", "numba", "later"]}
        show(least(kinds))
    elif given.choice == "later":
        for what in (["help"], ["client", "numpy"]):
            print(" ".join(what))
            show(least({"on first use": [*what, "later"], "at once": [*what, "at-once"]}))
    else:
        compare_lanes(given.dataset, given.users)


if __name__ == "__main__":
    main()
