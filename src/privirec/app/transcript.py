"""The sums that a server has seen in a network run, read from the folder of that run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from privirec.data.interactions import Dataset
from privirec.errors import UsageError
from privirec.federated.contributions import Contribution
from privirec.federated.programs import Broadcast, CohortSize, Program
from privirec.privacy.ledger import Ledger
from privirec.privacy.releases import Release, ReleasedSum
from privirec.runtime.coordinator.journal import Planned, RunJournal, SumOpened
from privirec.runtime.execute import Runtime, total_of
from privirec.runtime.run_plan import RunPlan
from privirec.secagg import protocol


def opened_by(
    program: Program[Any], runtime: Runtime, sums: int | None = None
) -> list[ReleasedSum]:
    """Return all sums that a run of a program opens, or the first `sums` of them.

    The program is closed after the last of these sums, without computing its result.
    """
    steps = program.steps()
    answer: Any = None
    opened: list[ReleasedSum] = []
    most = len(program.sums()) if sums is None else sums
    while len(opened) < most:
        try:
            step = steps.send(answer)
        except StopIteration:
            break
        if isinstance(step, Broadcast):
            answer = None
        elif isinstance(step, CohortSize):
            answer = runtime.clients
        else:
            answer = runtime.sum(step, Ledger())
            opened.append(ReleasedSum(step, answer))
    steps.close()
    return opened


def is_record(folder: Path) -> bool:
    """Return True if the folder is that of a run that a server keeps."""
    return (folder / "journal").is_file() and (folder / "sums").is_dir()


def recorded(folder: Path, dataset: Dataset) -> Release:
    """Return the sums that a run opened, with their asks.

    The asks are recovered by running the program again on the recorded sums.
    """
    plan, opened, clients = None, 0, 0
    for event, content in RunJournal(folder).events():
        if isinstance(event, Planned):
            plan = RunPlan.parse(content)
        if isinstance(event, SumOpened):
            opened, clients = max(opened, event.sum_number), len(event.clients)
    if plan is None or not opened:
        raise UsageError(f"{folder}: this run has not opened a sum")
    train = dataset.train
    if plan.n_items != train.n_items or plan.n_users > train.n_users:
        raise UsageError(
            f"{folder}: a run over {plan.n_users} people and {plan.n_items} items, which are not "
            f"those of {dataset.name}"
        )
    sums = opened_by(plan.program, _Record(folder, plan, clients), opened)
    return Release(str(folder), tuple(sums))


class _Record:
    """Runtime that reads recorded sums from disk, in the order of the asks."""

    def __init__(self, folder: Path, plan: RunPlan, clients: int) -> None:
        self._folder, self._plan, self.clients = folder, plan, clients
        self._asked = 0

    def sum(self, ask: Contribution, ledger: Ledger) -> Any:
        self._asked += 1
        announced = self._plan.shapes[self._asked - 1].shortened(ask.length)
        shape = protocol(self._plan.spec.aggregator).opened_shape(announced, self._plan.statement)
        path = self._folder / "sums" / str(self._asked)
        try:
            words = np.fromfile(path, shape.ring.dtype)
        except OSError:
            raise UsageError(f"{path}: cannot be read") from None
        if len(words) != shape.length:
            raise UsageError(f"{path}: {len(words)} numbers where {shape.length} were opened")
        return total_of(ask, words, shape)
