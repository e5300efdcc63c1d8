"""Execution of a program on a runtime that can compute sums."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar

from privirec.federated.contributions import Contribution
from privirec.federated.programs import Broadcast, Steps
from privirec.filters.components import Components
from privirec.privacy.ledger import Ledger

OnRound = Callable[[str], None]
Result = TypeVar("Result")


class Runtime(Protocol):
    """Something that can sum a contribution over the cohort."""

    def sum(self, ask: Contribution, ledger: Ledger) -> Any:
        """Return the total, and enter its cost in the ledger."""
        ...


def execute(
    steps: Steps, runtime: Runtime, on_round: OnRound | None = None
) -> tuple[Components, Ledger]:
    """Run a program to its end in one process, where all noise comes from a seed."""
    ledger = Ledger(secret_noise=False)
    return execute_steps(steps, runtime, ledger, on_round), ledger


def execute_steps(
    steps: Generator[Contribution | Broadcast, Any, Result],
    runtime: Runtime,
    ledger: Ledger | None = None,
    on_round: OnRound | None = None,
) -> Result:
    """Run a program, or a part of one, and return its result."""
    ledger = Ledger() if ledger is None else ledger
    answer: Any = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        if isinstance(step, Broadcast):
            ledger.add_broadcast(step)
            answer = None
        else:
            if on_round:
                on_round(step.name)
            answer = runtime.sum(step, ledger)
