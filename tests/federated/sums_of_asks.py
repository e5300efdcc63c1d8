"""Print, as JSON, digests of the sums that this machine computes for the requests in a folder.

    python sums_of_asks.py FOLDER [in-numpy]

The output also covers plans, single numbers and synthetic data. It is a separate program because a
process emulates one machine from its start on (`cpus`). Every total and every client's stream
becomes a digest: equal digests mean equal bits.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import scipy.sparse as sp

import cpus
from privirec import compiled
from privirec import evaluation as ranking
from privirec.data import Interactions
from privirec.data.synthetic import synthetic
from privirec.federated import wire
from privirec.federated.contributions import Contribution, Histories
from privirec.federated.programs import Program, program_of, settings_of
from privirec.filters.normalize import degree_power
from privirec.filters.spectral import response
from privirec.runtime.local.client import split_as_dealt, streams_of
from privirec.runtime.run_plan import asked_digest
from privirec.runtime.spec import vector_shape

CANDIDATES = [
    {"rank": 8, "history_exponent": 0.4, "item_exponent": 0.35, "response": "power", "power": 0.3},
    {"rank": 5, "history_exponent": 0.33, "item_exponent": -0.1, "response": "heat", "time": 4.0},
]
SPECTRAL = {"rank": 8, "columns": [6, 6]}
SETTINGS: list[dict[str, Any]] = [
    {"method": "privirec", "rank": 6, "rounds": 2, "start": "users"},
    {"method": "privirec", "rank": 0, "alpha": 0.3},
    {"method": "privirec-k", "rank": 6, "rounds": 3},
    {"method": "head-gram", "head": 40, "alpha": 0.35},
    {"method": "linkprop-multi"},
    {"method": "spectral", **SPECTRAL},
    {"method": "spectral-validation", **SPECTRAL, "candidates": CANDIDATES},
    *(
        {"method": "protected", "way": way, "head": 40, "clients": 20, "contributors": 15, **more}
        for way, more in (("gram", {}), ("power", {"columns": 3, "pairs_share": 0.3}))
    ),
]
"""Programs that together ask for every kind of contribution, with all kinds of exponents."""
CLIENTS = 4


def people(train: Interactions, program: Program[Any]) -> Histories:
    """Return all histories, without the held-out items if the program holds any out."""
    return split_as_dealt(Histories(train.matrix), program.held_out, CLIENTS, 0)


def programs(train: Interactions) -> list[Program[Any]]:
    return [program_of(settings_of(each), train.n_users, train.n_items) for each in SETTINGS]


def digest(*parts: Any) -> str:
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, sp.csr_array):
            parts_of = (part.indptr.astype("<i8"), part.indices.astype("<i8"), part.data)
            found.update(digest(*parts_of).encode())
        elif isinstance(part, np.ndarray):
            found.update(f"{part.dtype} {part.shape}".encode() + part.tobytes())
        else:
            found.update(repr(part).encode())
    return found.hexdigest()


def sums(number: int, ask: Contribution, histories: Histories) -> dict[str, str]:
    """Return digests of the cohort's total and of the upload of a client with its second half."""
    n_users = histories.n_users
    total = ask.total(histories, streams_of(n_users, CLIENTS, 0, number, ask.name))
    half = n_users // 2
    held_out = None if histories.held_out is None else histories.held_out[half:]
    own = Histories(histories.matrix[half:], half, held_out)
    (stream,) = streams_of(1, 1, 1, number, ask.name)
    sent = np.concatenate([np.zeros(0, np.int64), *ask.blocks(own, stream.stream)])
    return {
        "total": digest(total),
        "sent": digest(sent),
        "encoding": repr(ask.encoding),
        "shape": repr(ask.shape),
    }


def plans(made: Iterable[Program[Any]]) -> dict[str, str]:
    """Return digests of what clients agree to before the first sum, and of noise and privacy
    loss."""
    found = {}
    for number, program in enumerate(made):
        planned = program.sums()
        found[f"{number} {program.name}"] = digest(
            [(one.name, one.shape, sorted(one.fixed.items())) for one in planned],
            [vector_shape(one) for one in planned],
            program.opened_share(),
            asked_digest(program.settings.model_dump_json().encode(), b""),
        )
    return found


def numbers() -> dict[str, str]:
    """Return digests of the numbers from which clients compute uploads. Rounded to whole units,
    they would seldom show a difference."""
    degrees = np.arange(2000)
    values = np.linspace(0, 1, 300).astype(np.float32)
    exponents = (-1.0, -0.66, -0.5, -0.35, 0.0, 0.1, 0.33, 0.5, 1.2)
    return {
        "powers of degrees": digest(*(degree_power(degrees, each) for each in exponents)),
        "powers of eigenvalues": digest(
            *(response(values, "power", power=each) for each in (0.1, 0.37, 2.0, 3.5))
        ),
        "exponentials": digest(*(response(values, "heat", time=each) for each in (0.3, 2.0, 50.0))),
        "discounts": digest(ranking.discounts(1000)),
    }


def data() -> dict[str, str]:
    """Return digests of synthetic data sets and their test splits."""
    found = {}
    for name in ("synthetic:small", "synthetic:demo"):
        made = synthetic(name)
        found[name] = made.train.fingerprint()
        found[f"test of {name}"] = made.test.fingerprint()
    return found


def answers(folder: Path) -> dict[str, Any]:
    train = synthetic("synthetic:small").train
    made = programs(train)
    found = {}
    for path in sorted(folder.glob("*.ask")):
        place, number, name = path.stem.split(" ")
        ask = wire.decode(path.read_bytes())
        found[f"{place} {number} {name}"] = sums(int(number), ask, people(train, made[int(place)]))
    return {
        "sums": found,
        "plans": plans(made),
        "numbers": numbers(),
        "data": data(),
        "taken for": cpus.taken_for(),
    }


if __name__ == "__main__":
    if sys.argv[2:] == ["in-numpy"]:
        compiled.go_without()
    print(json.dumps(answers(Path(sys.argv[1]))))
