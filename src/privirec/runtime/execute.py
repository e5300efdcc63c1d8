"""Drive the steps of a program with something that can sum."""

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
    """Whoever can answer "sum this over the cohort"."""

    def sum(self, ask: Contribution, ledger: Ledger) -> Any:
        """The total, with what it cost entered in the ledger."""
        ...


def execute(
    steps: Steps, runtime: Runtime, on_round: OnRound | None = None
) -> tuple[Components, Ledger]:
    """Run a program to its end, in one process: all noise comes from a seed."""
    ledger = Ledger(secret_noise=False)
    return execute_steps(steps, runtime, ledger, on_round), ledger


def execute_steps(
    steps: Generator[Contribution | Broadcast, Any, Result],
    runtime: Runtime,
    ledger: Ledger | None = None,
    on_round: OnRound | None = None,
) -> Result:
    """Run a program, or a part of one, and return what it returns."""
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
