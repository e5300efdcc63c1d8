"""Write tests/vectors/secagg/two-server.json: reports of sums by two servers, good and bad.

    PYTHONPATH=tests python -m secagg.two_server_vectors

HPKE draws its own keys, so that each call writes other boxes.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from privirec.secagg.errors import ProtocolError
from privirec.secagg.keys import Identity, Secret
from privirec.secagg.ring import VectorShape
from privirec.secagg.two_server.aggregator import Aggregator
from privirec.secagg.two_server.reports import (
    DealtTrees,
    Report,
    Role,
    Sealing,
    ServerKey,
    SparseRows,
    Task,
)
from secagg.testing import InsecureSeededBytes

FILE = Path(__file__).parent.parent / "vectors" / "secagg" / "two-server.json"
SHAPE = VectorShape(21 * 3, 13, 2000, signed=True, bounds_sum=True)


def tasks() -> dict[str, Task]:
    run, asked, key = bytes(range(16)), bytes(range(32)), bytes(range(32, 64))
    sparse = Task(run, 2, asked, SHAPE, 3, 4, key)
    later = replace(sparse, sum_number=3, continues=sparse.digest)
    return {"dense": Task(run, 1, asked, SHAPE), "sparse": sparse, "continued": later}


def described(task: Task) -> dict[str, Any]:
    return {
        "run": task.run.hex(),
        "sum": task.sum_number,
        "asked": task.asked.hex(),
        "length": SHAPE.length,
        "width": SHAPE.width,
        "signed": SHAPE.signed,
        "bounds_sum": SHAPE.bounds_sum,
        "bound": SHAPE.bound,
        "row_entries": task.row_entries,
        "most_rows": task.most_rows,
        "table_key": task.table_key.hex(),
        "continues": task.continues.hex(),
        "digest": task.digest.hex(),
    }


def make() -> dict[str, Any]:
    draw = InsecureSeededBytes(27)
    keys = ServerKey(Secret(draw(32))), ServerKey(Secret(draw(32)))
    identity = Identity.generate(draw)
    sealing = Sealing(identity, (keys[0].public, keys[1].public))
    named = tasks()
    rng = np.random.default_rng(27)
    rows = SparseRows(np.array([2, 7, 20]), rng.integers(-50, 50, (3, 3)))
    whole = np.zeros((21, 3), np.int64)
    whole[rows.rows] = rows.values
    dealt = DealtTrees.deal(named["sparse"], rows.rows.tolist(), draw)
    reports = {
        "dense": sealing.dense(named["dense"], [whole.reshape(-1)], draw),
        "sparse": sealing.sparse(named["sparse"], rows, dealt),
        "continued": sealing.sparse(named["continued"], rows, dealt),
    }
    begun = {"continued": reports["sparse"]}
    good = []
    for name, report in reports.items():
        proofs = [
            Aggregator(role, named[name], keys[role], 2).check(report, begun.get(name)).proof.hex()
            for role in Role
        ]
        task = described(named[name])
        good.append({"name": name, "task": task, "report": report.encode().hex(), "proofs": proofs})
    return {
        "version": 1,
        "private_keys": [key.private.reveal().hex() for key in keys],
        "client": identity.public.hex(),
        "vector": whole.reshape(-1).tolist(),
        "good": good,
        "bad": bad(reports, named, keys),
    }


def bad(
    reports: dict[str, Report], named: dict[str, Task], keys: tuple[ServerKey, ServerKey]
) -> list[dict[str, str]]:
    """Return damaged reports, each with the error that the helper raises."""
    sent = {name: report.encode() for name, report in reports.items()}
    swapped = replace(reports["sparse"], boxes=reports["sparse"].boxes[::-1])
    cases = {
        "another version": ("sparse", b"\2" + sent["sparse"][1:]),
        "a report for another task": ("dense", sent["sparse"]),
        "cut off": ("sparse", sent["sparse"][:-1]),
        "a byte too many": ("sparse", sent["sparse"] + b"\0"),
        "another signature": ("sparse", sent["sparse"][:-1] + bytes([sent["sparse"][-1] ^ 1])),
        "another shared part": ("sparse", _flipped(sent["sparse"], 120)),
        "the boxes of the other server": ("sparse", swapped.encode()),
        "another client": ("dense", _flipped(sent["dense"], 40)),
        "continued without the earlier report": ("continued", sent["continued"]),
    }
    found = []
    for name, (task, report) in cases.items():
        try:
            Aggregator(Role.HELPER, named[task], keys[1], 2).check(Report.decode(report))
        except ProtocolError as error:
            why = type(error).__name__
            found.append({"name": name, "task": task, "error": why, "report": report.hex()})
        else:
            raise AssertionError(f"{name} is accepted")
    return found


def _flipped(sent: bytes, place: int) -> bytes:
    return sent[:place] + bytes([sent[place] ^ 1]) + sent[place + 1 :]


if __name__ == "__main__":
    FILE.write_text(json.dumps(make(), indent=1) + "\n")
