"""Secure aggregation at the size of the paper's data, with real cryptography in one process.

    python benchmarks/secagg_scale.py degrees     # every user of Gowalla a client of its own
    python benchmarks/secagg_scale.py item-item   # ten silos, the whole triangle, streamed
    python benchmarks/secagg_scale.py head        # 100,000 clients, a head of 1,000 items

`degrees` and `head` also run smaller cohorts and draw cost per client against n (secagg-cost.png,
secagg-head.png). Every opened sum is compared with the plain one, entry by entry. One thread.

`head` takes the server for semi-honest, five in a hundred clients for corrupt and as many for
dropping out; the users are made up (`HEAD_DATA`), with fewer interactions than usual, so that how
many touched two items fits into 16 bits beside the four fraction bits of an item-item matrix.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from privirec import threads
from privirec.data import load_dataset
from privirec.data.synthetic import DEFAULT_SEED, Blocks, Size
from privirec.federated.contributions import HeadItemItem, Histories, ItemDegrees, ItemItem
from privirec.runtime.local.client import clients_of
from privirec.runtime.spec import vector_shape
from privirec.secagg import ClientPolicy, LocalFederation
from privirec.secagg.protocol import ServerSettings

HEAD = 1000
HEAD_BITS = 16
HEAD_DATA = Size(100_000, 20_000, 10.0, 4)
POLICY = ClientPolicy(proven_sums=True)


USUAL = {
    "degrees": ("100,1000,10000,29858", "secagg-cost.png"),
    "head": ("1000,10000,100000", "secagg-head.png"),
}
"""Cohorts, and where the picture goes."""


def peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


def degrees(dataset: str, n_users: int, drop_share: float) -> dict[str, Any]:
    """The item degrees of the first n users, each a client, some of whom drop out."""
    train = load_dataset(dataset).train.rows(0, n_users)
    ask = ItemDegrees(train.n_items, train.n_users)
    planned = ItemDegrees.planned(train.n_items, train.n_users)
    clients = clients_of(train)
    rng = np.random.default_rng(n_users)
    leaving = rng.choice(n_users, int(drop_share * n_users), replace=False).tolist()
    cpu = time.process_time()
    federation = LocalFederation("secagg+", n_users, [vector_shape(planned)], policy=POLICY)
    set_up = time.process_time() - cpu
    opened = federation.sum(lambda client: clients[client].answer(ask, 1), {"input": leaving})
    cpu = time.process_time() - cpu
    staying = np.setdiff1d(np.arange(n_users), leaving)
    plain = np.bincount(train.matrix[staying].indices, minlength=train.n_items)
    assert opened.survivors == tuple(staying.tolist())
    assert np.array_equal(opened.total.astype(np.int64), plain)
    traffic = federation.traffic
    parameters = federation.server.parameters
    return {
        "clients": n_users,
        "dropped": len(leaving),
        "neighbours": parameters.neighbours,
        "threshold": parameters.threshold,
        "entries": ask.length,
        "ring_bits": ask.encoding.width,
        "cpu_seconds": cpu,
        "set_up_cpu_seconds": set_up,
        "cpu_ms_per_client": 1000 * cpu / n_users,
        "bytes_up_per_client": float(traffic.up_per_client()[staying].mean()),
        "bytes_down_per_client": float(traffic.down_per_client()[staying].mean()),
        "payload_bytes": ask.encoding.payload_bytes(ask.length),
        "peak_gb": peak_gb(),
        "equal_to_plain_sum": True,
    }


def head(n_users: int, drop_share: float) -> dict[str, Any]:
    """Item degrees and the head's item-item matrix of the first n users, each a client."""
    data = Blocks(HEAD_DATA, DEFAULT_SEED, HEAD_DATA.users).block(0).rows(0, n_users)
    first = ItemDegrees(data.n_items, n_users)
    clients = clients_of(data)
    rng = np.random.default_rng(n_users)
    leaving = rng.choice(n_users, int(drop_share * n_users), replace=False).tolist()
    staying = np.setdiff1d(np.arange(n_users), leaving)
    stayed = Histories(data.matrix[staying])
    plans = [
        ItemDegrees.planned(data.n_items, n_users),
        HeadItemItem.planned(data.n_items, HEAD, 0.0, HEAD_BITS),
    ]
    cpu, wall = time.process_time(), time.perf_counter()
    shapes = [vector_shape(plan) for plan in plans]
    federation = LocalFederation(
        "secagg+", n_users, shapes, policy=POLICY, settings=ServerSettings(block_entries=1 << 20)
    )
    set_up = time.process_time() - cpu
    opened = federation.sum(lambda client: clients[client].answer(first, 1), {"input": leaving})
    degrees_done = time.process_time() - cpu
    item_degrees = opened.total.astype(np.int64)
    assert np.array_equal(item_degrees, stayed.item_degrees)
    ask = HeadItemItem(data.n_items, item_degrees, HEAD, 0.0, HEAD_BITS)
    opened = federation.sum(lambda client: clients[client].answer(ask, 2))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    plain = np.concatenate(list(ask.blocks(stayed)))
    assert np.array_equal(opened.total.astype(np.int64), plain)
    traffic, parameters = federation.traffic, federation.server.parameters
    payload = sum(each.encoding.payload_bytes(each.length) for each in (first, ask))
    return {
        "clients": n_users,
        "dropped": len(leaving),
        "neighbours": parameters.neighbours,
        "threshold": parameters.threshold,
        "entries": [first.length, ask.length],
        "ring_bits": [first.encoding.width, ask.encoding.width],
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        "set_up_cpu_seconds": set_up,
        "degrees_cpu_seconds": degrees_done - set_up,
        "head_cpu_seconds": cpu - degrees_done,
        "cpu_ms_per_client": 1000 * cpu / n_users,
        "bytes_up_per_client": float(traffic.up_per_client()[staying].mean()),
        "bytes_down_per_client": float(traffic.down_per_client()[staying].mean()),
        "payload_bytes": payload,
        "peak_gb": peak_gb(),
        "equal_to_plain_sum": True,
    }


def item_item(dataset: str, silos: int) -> dict[str, Any]:
    """The whole triangle of P' over silo clients."""
    train = load_dataset(dataset).train
    ask = ItemItem(train.n_items, int(train.item_degrees.max()))
    planned = ItemItem.planned(train.n_items, ask.alpha, ask.width)
    clients = clients_of(train, silos)
    cpu = time.process_time()
    federation = LocalFederation("secagg", silos, [vector_shape(planned)], policy=POLICY)
    opened = federation.sum(lambda client: clients[client].answer(ask, 1))
    cpu = time.process_time() - cpu
    start = 0
    for block in ask.blocks(Histories(train.matrix)):
        part = opened.total[start : start + len(block)]
        assert np.array_equal(part.astype(np.int64), block), f"entries from {start} on differ"
        start += len(block)
    assert start == ask.length
    return {
        "clients": silos,
        "entries": ask.length,
        "entries_compared": start,
        "ring_bits": ask.encoding.width,
        "fraction_bits": ask.encoding.fraction_bits,
        "cpu_seconds": cpu,
        "cpu_seconds_per_client": cpu / silos,
        "bytes_up_per_client": float(federation.traffic.up_per_client().mean()),
        "bytes_down_per_client": float(federation.traffic.down_per_client().mean()),
        "payload_bytes": ask.encoding.payload_bytes(ask.length),
        "peak_gb": peak_gb(),
        "equal_to_plain_sum": True,
    }


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    from privirec.app.pictures.canvas import (
        axes_in,
        heading,
        legend_below,
        new_figure,
        write_picture,
    )
    from privirec.app.pictures.palette import CHANCE, INK

    figure = new_figure(9.0, 3.8)
    n = np.array([row["clients"] for row in rows], float)
    panels = (
        ("CPU ms per client", [row["cpu_ms_per_client"] for row in rows]),
        (
            "kB per client beside the vector, up and down",
            [
                (row["bytes_up_per_client"] + row["bytes_down_per_client"] - row["payload_bytes"])
                / 1000
                for row in rows
            ],
        ),
    )
    for place, (title, values) in enumerate(panels, 1):
        axes = axes_in(figure, 120 + place)
        label = "measured" if place == 1 else None
        axes.semilogx(n, values, "o-", color=INK, label=label)
        log_n = np.log(n) * values[-1] / np.log(n[-1])
        label = "log n, scaled to the last point" if place == 1 else None
        axes.semilogx(n, log_n, "--", color=CHANCE, label=label)
        axes.set_ylim(bottom=0)
        heading(axes, title)
        axes.set_xlabel("clients", color=INK)
    legend_below(figure, ncols=2)
    write_picture(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("degrees", "item-item", "head"))
    parser.add_argument("--dataset", default="gowalla")
    parser.add_argument("--cohorts", help="sizes, with commas between them")
    parser.add_argument("--silos", type=int, default=10)
    parser.add_argument("--drop-share", type=float, default=0.02)
    parser.add_argument("--out", type=Path, default=Path("privirec-out"))
    parser.add_argument("--draw", type=Path, help="only draw the rows in this file")
    args = parser.parse_args()
    if args.draw:
        kept = [json.loads(line) for line in args.draw.read_text().splitlines()]
        plot(kept, args.out / USUAL[args.what][1])
        return
    rows = []
    with threads.limit(1):
        if args.what != "item-item":
            usual, picture = USUAL[args.what]
            for n_users in map(int, (args.cohorts or usual).split(",")):
                if args.what == "head":
                    rows.append(head(n_users, args.drop_share))
                else:
                    rows.append(degrees(args.dataset, n_users, args.drop_share))
                print(json.dumps(rows[-1]), flush=True)
            if len(rows) > 1:
                plot(rows, args.out / picture)
                print(f"Saved {args.out / picture}")
        else:
            print(json.dumps(item_item(args.dataset, args.silos)))


if __name__ == "__main__":
    sys.exit(main())
