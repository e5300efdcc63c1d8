"""What protection against an active server costs beside trust in a semi-honest one: secagg+.

    python benchmarks/server_models.py                  # the table of docs/reference/secagg-wire.md
    python benchmarks/server_models.py --clients 100        # one size

Shares of 5 % corrupt and 5 % dropped clients, a run of six sums (degrees and five rounds), 32-bit
entries. One real client runs, with real keys and messages of all its neighbours: its bytes and CPU
seconds are measured. The server's CPU is that of the set-up and one sum, with as many drop-outs as
may be: all clients' keys in full, everything else timed on a few messages and multiplied by their
number (~, see protocol_samples.py). One thread.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

# Before NumPy is imported.
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1")

from protocol_samples import SHARES, sample_bell, shape_of

from privirec.secagg import ServerModel, Statement, protocol

CLIENTS = (100, 1_000, 10_000, 30_000)
ENTRIES = 100_000
SUMS = 6


def row(clients: int, model: ServerModel) -> str:
    """One line of the table."""
    scheme = protocol("secagg+")
    statement = Statement.of(clients, *SHARES, rounds=SUMS, server=model)
    numbers = scheme.parameters(statement)
    exchanges = len(scheme.schedule_for(statement).steps(SUMS))
    sample = sample_bell("secagg+", clients, ENTRIES, model, SUMS)
    setup, masked, end = (sample.stages[stage] for stage in ("set-up", "input", "unmask"))
    vector = shape_of(ENTRIES).ring.packed_bytes(ENTRIES)
    cells = (
        f"{clients:,}",
        model.value,
        f"{numbers.neighbours}/{numbers.threshold}",
        str(exchanges),
        _kilobytes(setup.bytes_up),
        _kilobytes(setup.bytes_down),
        _kilobytes(end.bytes_up - setup.bytes_up - vector),
        _kilobytes(end.bytes_down - setup.bytes_down),
        _digits(setup.client_seconds),
        _digits(masked.client_seconds - setup.client_seconds),
        _digits(end.client_seconds - masked.client_seconds),
        "~" + _digits(end.server_seconds),
    )
    return "| " + " | ".join(cells) + " |"


def table(sizes: Sequence[int]) -> str:
    lines = [
        "| clients | server | k/t | exchanges | set-up kB up | kB down | a sum kB up | kB down "
        "| client CPU s: set-up | masking | unmasking | server CPU s |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [row(clients, model) for clients in sizes for model in ServerModel]
    return "\n".join(lines)


def _kilobytes(size: float) -> str:
    return _digits(size / 1000)


def _digits(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", action="append", type=int)
    options = parser.parse_args()
    sample_bell("secagg+", 20, 100)  # load what is compiled
    print(table(options.clients or CLIENTS))


if __name__ == "__main__":
    main()
