"""What a release gives away, measured: whatever is registered, on whatever was released."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from privirec import threads as threading
from privirec.data.interactions import Dataset
from privirec.errors import UsageError
from privirec.federated.programs import (
    DEFAULT_RANK,
    PROGRAMS,
    Broadcast,
    Program,
    program_class,
    program_of,
)
from privirec.models import artifact
from privirec.privacy.attacks import ATTACKS
from privirec.privacy.attacks.grading import grade, grade_rows
from privirec.privacy.ledger import Ledger
from privirec.privacy.releases import Release, ReleasedFilters, ReleasedSum
from privirec.report.progress import QUIET, Phases
from privirec.runtime.execute import Runtime
from privirec.runtime.local.simulation import Simulation
from privirec.version import __version__


def opened_by(program: Program[Any], runtime: Runtime) -> list[ReleasedSum]:
    """Every sum that a run of a program opens; what the program makes of the last is left out."""
    steps = program.steps()
    left, opened, answer = len(program.sums()), [], None
    while left:
        step = steps.send(answer)
        answer = None
        if not isinstance(step, Broadcast):
            answer = runtime.sum(step, Ledger())
            opened.append(ReleasedSum(step, answer))
            left -= 1
    steps.close()
    return opened


def release_of(name: str, dataset: Dataset, given: Mapping[str, Any] | None = None) -> Release:
    """What the server of a run holds, by the name of a program, or what an artifact in a folder of
    this name says. `given` are settings of the program.

    Without a rank, the low-pass filter of a program that has one beside its item-item matrix is
    left out of the run.
    """
    if name in PROGRAMS:
        train = dataset.train
        kind = program_class(name)
        rank = min(DEFAULT_RANK, train.n_items) if kind.low_rank else 0
        settings = kind.settings_from(given or {}, {"rank": rank})
        program = program_of(settings, train.n_users, train.n_items)
        return Release(name, tuple(opened_by(program, Simulation(train))))
    if not Path(name).is_dir():
        known = ", ".join(PROGRAMS)
        raise UsageError(f"no release {name!r}: name a program ({known}) or a saved model's folder")
    if given:
        raise UsageError(f"{name} is saved: its settings cannot be chosen any more")
    return _saved(Path(name), dataset)


def _saved(folder: Path, dataset: Dataset) -> Release:
    saved = artifact.read(folder)
    manifest, train = saved.manifest, dataset.train
    theirs = [str(one) for one in saved.item_ids.tolist()]
    if theirs != [str(one) for one in train.item_ids.tolist()]:
        raise UsageError(f"{folder}: a model of other items than {dataset.name}")
    run = manifest.get("run")
    made_from = run.get("fingerprint") if isinstance(run, dict) else None
    if made_from not in (None, train.fingerprint()[:16]):
        raise UsageError(f"{folder}: a model of other histories than {dataset.name}")
    rows = manifest.get("ledger")
    ledger = tuple(row for row in rows if isinstance(row, dict)) if isinstance(rows, list) else ()
    return Release(str(folder), filters=ReleasedFilters(saved.components, ledger))


def audit(
    dataset: Dataset,
    release: str,
    given: Mapping[str, Any] | None = None,
    *,
    threads: int | None = None,
    phases: Phases = QUIET,
) -> list[dict[str, Any]]:
    """A row for each attack that applies to a release; the truth is used only to grade."""
    with threading.limit(threads):
        phases(f"what {release} releases")(0, 1)
        held = release_of(release, dataset, given)
        return [
            _attacked(name, held, dataset, phases)
            for name, attack in ATTACKS.items()
            if attack.applies_to(held)
        ]


def _attacked(name: str, release: Release, dataset: Dataset, phases: Phases) -> dict[str, Any]:
    wall, cpu = time.perf_counter(), time.process_time()
    found = ATTACKS[name].run(release, phases(name))
    seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - cpu
    rows = grade_rows(found.rows, dataset.train) if found.rows else {}
    return {
        "dataset": dataset.name,
        "release": release.source,
        "attack": name,
        **grade(found, dataset.train, found.visible_items),
        **rows,
        **found.facts,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "version": __version__,
    }


def unmet_needs() -> str:
    """What attacks there are, and what each would need."""
    return "; ".join(f"{name} needs {attack.needs}" for name, attack in ATTACKS.items())
