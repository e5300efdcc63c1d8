"""Execution of a program on a runtime that can compute sums, and conversion of opened sums."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from privirec.federated.contributions import Contribution
from privirec.federated.dp.gaussian import DEFAULT_DELTA
from privirec.federated.programs import Broadcast, CohortSize, Step, Steps
from privirec.filters.components import Components
from privirec.privacy.ledger import Ledger
from privirec.secagg import VectorShape

OnRound = Callable[[str], None]
Result = TypeVar("Result")


class Runtime(Protocol):
    """Something that can sum a contribution over the cohort."""

    def sum(self, ask: Contribution, ledger: Ledger) -> Any:
        """Return the total, and enter its cost in the ledger."""
        ...

    @property
    def clients(self) -> int:
        """Number of clients that add noise; clients may drop out before the first sum is open."""
        ...


def execute(
    steps: Steps,
    runtime: Runtime,
    on_round: OnRound | None = None,
    delta: float = DEFAULT_DELTA,
) -> tuple[Components, Ledger]:
    """Run a program to its end in one process; `delta` is that of the ledger's epsilon.

    Noise counts as secret only if the runtime says so. The components say which sums they come
    from.
    """
    ledger = Ledger(delta=delta, secret_noise=getattr(runtime, "secret_noise", False))
    components = execute_steps(steps, runtime, ledger, on_round)
    return replace(
        components, origin={"ledger": ledger.as_rows(), "promised": ledger.promised}
    ), ledger


def execute_steps(
    steps: Generator[Step, Any, Result],
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
        elif isinstance(step, CohortSize):
            answer = runtime.clients
        else:
            if on_round:
                on_round(step.name)
            answer = runtime.sum(step, ledger)


def total_of(ask: Contribution, words: NDArray[Any], shape: VectorShape) -> Any:
    """Return the total of a contribution.

    `words` is the sum in the ring in which the protocol opens it.
    """
    return ask.collect(_pieces(ask, words, shape))


def _pieces(
    ask: Contribution, words: NDArray[Any], shape: VectorShape
) -> Iterator[NDArray[np.int64]]:
    start = 0
    for length in ask.block_lengths():
        yield shape.decode(words[start : start + length])
        start += length
