"""What a release gives away, measured: run the attack on exactly what a run reveals."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from privirec import threads as threading
from privirec.data.interactions import Dataset
from privirec.federated.contributions import ItemItem
from privirec.federated.programs.privirec import item_item_sum
from privirec.privacy.attacks.grading import grade
from privirec.privacy.attacks.peeling import from_normalized
from privirec.privacy.ledger import Ledger
from privirec.report.progress import QUIET, Phases
from privirec.runtime.execute import execute_steps
from privirec.runtime.local.simulation import Simulation
from privirec.version import __version__


def audit_privirec(
    dataset: Dataset,
    *,
    ring_bits: int = 32,
    threads: int | None = None,
    phases: Phases = QUIET,
) -> dict[str, Any]:
    """Peel the histories out of V and P~ as PriviRec reveals them; grade only afterwards."""
    train = dataset.train
    planned = ItemItem.planned(train.n_items, 0.5, ring_bits)
    with threading.limit(threads):
        phases("the release: item degrees and item-item matrix")(0, 1)
        degrees = train.item_degrees
        ledger = Ledger()
        normalized = execute_steps(item_item_sum(planned, degrees), Simulation(train), ledger)
        started, started_cpu = time.perf_counter(), time.process_time()
        peeled = from_normalized(
            degrees,
            normalized,
            ledger.entries[0].fraction_bits,
            0.5,
            progress=phases("peeling"),
        )
        seconds, cpu = time.perf_counter() - started, time.process_time() - started_cpu
    return {
        "dataset": dataset.name,
        "release": "privirec",
        "attack": "peeling",
        **grade(peeled, train),
        "ring_bits": ring_bits,
        "fraction_bits": ledger.entries[0].fraction_bits,
        "released_entries": int(np.count_nonzero(normalized.data)),
        "seconds": seconds,
        "cpu_seconds": cpu,
        "version": __version__,
    }
