"""All protocols of aggregation beside each other: CPU of a client and of the server, and bytes.

    python benchmarks/protocols.py                            # the cells that take minutes
    python benchmarks/protocols.py --all                      # all of them, some take an hour
    python benchmarks/protocols.py --protocol lightsecagg --clients 1000 --entries 10000000
    python benchmarks/protocols.py --table                    # only what has been measured

One sum of 32-bit entries under the statement that 5 % of the clients are corrupt and 5 % drop out,
and so many do, after they have dealt their secrets and before they send their vectors: the worst
case for the server. Every cell is written to --out (JSON lines) when it is done, and skipped when
it is there, so that an interrupted run goes on where it was.

A cell is *measured* where all clients run, with real cryptography, in this process; CPU of a client
is the mean over all. It is *sampled*, and marked with ~, where that would take days: then one real
client runs against messages that fit those of n - 1 others, and every kind of work of the server is
timed on a few messages and counted exactly (see protocol_samples.py). One thread.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# Before NumPy is imported.
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1")

import numpy as np
from protocol_samples import SHAPE_BITS, SHARES, Sample, samplers, shape_of

from privirec.secagg import ClientPolicy, ClientSession, LocalFederation, protocol_names
from privirec.secagg.errors import ProtocolError

CLIENTS = (100, 1_000, 10_000)
ENTRIES = (100_000, 10_000_000)
OUT = Path("protocols.jsonl")
# Clients that are run for real, by length of the vectors; the rest is sampled.
MEASURED_UP_TO = {100_000: 1_000, 10_000_000: 100}
MINUTES_AT_MOST = 3
"""Of CPU for a cell that is run in full, unless --all is given."""
SECONDS_PER_CLIENT_AT_MOST = 2.0
"""A client that takes longer in the sample is not run n times."""


@dataclass(frozen=True)
class Cell:
    """One line of the table."""

    protocol: str
    clients: int
    entries: int
    client_seconds: float
    server_seconds: float
    opening_seconds: float
    """Of the server's, those after the last answer."""
    bytes_up: float
    bytes_down: float
    sampled: bool
    refused: str = ""

    @property
    def key(self) -> tuple[str, int, int]:
        return self.protocol, self.clients, self.entries


class Stopwatch:
    """CPU seconds of sessions: wraps their methods, and subtracts what is nested."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wrap(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            start = time.process_time()
            result = method(*arguments)
            self.seconds += time.process_time() - start
            return result

        return timed

    def wrap_iterator(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            start = time.process_time()
            iterator = iter(method(*arguments))
            self.seconds += time.process_time() - start
            while True:
                start = time.process_time()
                try:
                    item = next(iterator)
                except StopIteration:
                    return
                finally:
                    self.seconds += time.process_time() - start
                yield item

        return timed


def measure(name: str, clients: int, entries: int) -> Cell:
    """Everybody runs."""
    on_clients, on_server, on_opening = Stopwatch(), Stopwatch(), Stopwatch()
    values = np.arange(entries, dtype=np.int64) % 1000
    run = _timed_federation(name, clients, entries, on_clients, on_server, on_opening)
    leaving = set(range(int(clients * SHARES[1])))
    opened = run.sum(lambda _client: [values], {"input": leaving})
    deviation = run.protocol.deviation(shape_of(entries), _statement_of(run))
    if not deviation:
        assert np.array_equal(opened.total, values * (clients - len(leaving)))
    staying = [client for client in range(clients) if client not in leaving]
    return Cell(
        name,
        clients,
        entries,
        on_clients.seconds / clients,
        on_server.seconds + on_opening.seconds,
        on_opening.seconds,
        float(run.traffic.up_per_client()[staying].mean()),
        float(run.traffic.down_per_client()[staying].mean()),
        sampled=False,
    )


def _statement_of(run: LocalFederation) -> Any:
    from privirec.secagg import Statement

    return Statement.of(len(run.clients), *SHARES)


def _timed_federation(
    name: str,
    clients: int,
    entries: int,
    on_clients: Stopwatch,
    on_server: Stopwatch,
    on_opening: Stopwatch,
) -> LocalFederation:
    """A federation whose sessions are timed from their first message on."""

    class Timed(LocalFederation):
        def _step(self) -> Any:
            if not hasattr(self, "timed"):
                self.timed = True
                server: Any = self.server
                server.receive = on_server.wrap(server.receive)
                server.advance = on_server.wrap(server.advance)
                server.open_sum = on_opening.wrap(server.open_sum)
                server.outgoing = on_server.wrap_iterator(server.outgoing)
                session: ClientSession
                for session in self.clients:
                    client: Any = session
                    client.receive = on_clients.wrap(client.receive)
                    client.contribute = on_clients.wrap_iterator(client.contribute)
            return super()._step()

    return Timed(
        name,
        clients,
        [shape_of(entries)],
        corrupt_share=SHARES[0],
        dropped_share=SHARES[1],
        policy=ClientPolicy(proven_sums=True),
    )


def sample(name: str, clients: int, entries: int) -> Cell:
    """One client runs, and samples of the server's work."""
    found: Sample = samplers()[name](clients, entries)
    return Cell(
        name,
        clients,
        entries,
        found.client_seconds,
        found.server_seconds,
        found.opening_seconds,
        float(found.bytes_up),
        float(found.bytes_down),
        sampled=True,
    )


def one_cell(name: str, clients: int, entries: int, everything: bool) -> Cell | None:
    """The cell, or None where it takes longer than was asked for."""
    try:
        sampled = sample(name, clients, entries) if name in samplers() else None
        if clients > MEASURED_UP_TO.get(entries, 0):
            return sampled
        if sampled and sampled.client_seconds > SECONDS_PER_CLIENT_AT_MOST:
            return sampled
        expected = clients * sampled.client_seconds + sampled.server_seconds if sampled else 0.0
        if expected > MINUTES_AT_MOST * 60 and not everything:
            print(
                f"{name}, {clients} clients: measured in {expected:.0f} s with --all",
                file=sys.stderr,
            )
            return sampled
        return measure(name, clients, entries)
    except ProtocolError as refusal:
        nothing = (float("nan"),) * 5
        return Cell(name, clients, entries, *nothing, sampled=False, refused=str(refusal))


def read(path: Path) -> dict[tuple[str, int, int], Cell]:
    if not path.exists():
        return {}
    cells = (Cell(**json.loads(line)) for line in path.read_text().splitlines())
    return {cell.key: cell for cell in cells}


def table(cells: list[Cell]) -> str:
    lines = [
        "| entries | clients | protocol | client CPU s | server CPU s | of it to open | MB up "
        "| MB down |",
        "|---:|---:|---|---:|---:|---:|---:|---:|",
    ]
    names = protocol_names()
    cells = sorted(cells, key=lambda one: (one.entries, one.clients, names.index(one.protocol)))
    for cell in cells:
        about = "~" if cell.sampled else ""
        if cell.refused:
            numbers = f"refused: {cell.refused} | | | | "
        else:
            numbers = " | ".join(
                (
                    f"{about}{_digits(cell.client_seconds)}",
                    f"{about}{_digits(cell.server_seconds)}",
                    f"{about}{_digits(cell.opening_seconds)}",
                    f"{about}{_digits(cell.bytes_up / 1e6)}",
                    f"{about}{_digits(cell.bytes_down / 1e6)}",
                )
            )
        lines.append(f"| {cell.entries:,} | {cell.clients:,} | {cell.protocol} | {numbers} |")
    return "\n".join(lines)


def _digits(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [name for name in protocol_names() if name != "none"]
    parser.add_argument("--protocol", action="append", choices=names)
    parser.add_argument("--clients", action="append", type=int)
    parser.add_argument("--entries", action="append", type=int)
    parser.add_argument("--all", action="store_true", help="also cells that take an hour")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    cells = read(options.out)
    if not options.table:
        for name in options.protocol or names:  # compile, and load what is compiled
            measure(name, 20, 100)
        for entries in options.entries or ENTRIES:
            for clients in options.clients or CLIENTS:
                for name in options.protocol or names:
                    if (name, clients, entries) in cells:
                        continue
                    began = time.perf_counter()
                    cell = one_cell(name, clients, entries, options.all)
                    if cell is None:
                        continue
                    cells[cell.key] = cell
                    with options.out.open("a") as file:
                        file.write(json.dumps(asdict(cell)) + "\n")
                    print(f"{cell} ({time.perf_counter() - began:.0f} s)", file=sys.stderr)
    print(f"One sum, {SHAPE_BITS} bits an entry, 5 % corrupt, 5 % drop out\n")
    print(table(list(cells.values())))


if __name__ == "__main__":
    main()
