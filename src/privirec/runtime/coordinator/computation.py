"""The program and the protocol of one run: requested sums and opened sums.

FOLDER/sums/N    opened sums: under secure aggregation, all that this server ever learns
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from privirec.durable import private_folder, sync
from privirec.errors import FederationError
from privirec.federated import wire
from privirec.federated.contributions import Contribution
from privirec.federated.programs import Broadcast, Protected
from privirec.filters.components import Components
from privirec.filters.earlier import Earlier
from privirec.privacy.ledger import Ledger
from privirec.runtime.execute import total_of
from privirec.runtime.run_plan import RunPlan, asked_digest
from privirec.secagg import ServerSettings, Step, protocol
from privirec.secagg.keys import Roster
from privirec.secagg.ring import VectorShape, Words

ON_DISK = 1 << 28
"""Minimum bytes of a sum that is kept in a file while it is added up."""


@dataclass(frozen=True)
class AskedSum:
    """The sum that is being computed."""

    number: int
    ask: Contribution
    encoded: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.encoded).hexdigest()


class Computation:
    """A program that requests sums and a protocol that computes them, one after the other."""

    def __init__(
        self,
        folder: Path,
        roster: Roster,
        plan: RunPlan,
        on_sum: Callable[[str], None] | None = None,
        earlier: Earlier | None = None,
    ) -> None:
        self.plan = plan
        self.ledger = Ledger(delta=plan.program.delta)
        self.components: Components | None = None
        """Result of the program; None until all sums are open."""
        self.asked: AskedSum | None = None
        self._folder = folder
        self._sums = private_folder(folder / "sums")
        self._on_sum = on_sum
        self._spools: list[BinaryIO] = []
        self._protocol = protocol(plan.spec.aggregator)
        self._steps = plan.steps
        self._shapes = plan.shapes
        self._program = plan.program
        if earlier is not None and isinstance(self._program, Protected):
            self._program.go_on_from(earlier)
        self._program_steps = self._program.steps()
        self.session = self._protocol.server(
            roster,
            plan.statement,
            self._shapes,
            ServerSettings(
                plan.spec.smallest_cohort,
                plan.spec.block_entries,
                run=bytes.fromhex(plan.run),
                accumulator=self._accumulator,
                spool=self._spool,
            ),
            os.urandom,
        )

    @property
    def found(self) -> dict[str, Any]:
        """Results of the program besides components, once all sums are open."""
        return self._program.found()

    @property
    def step(self) -> Step:
        """The current exchange."""
        if self.session.step is None:
            raise FederationError("no sum is being computed")
        return self.session.step

    @property
    def position(self) -> int:
        """Index of the current exchange in the run."""
        return self._steps.index(self.step)

    def step_at(self, position: int) -> Step:
        return self._steps[position]

    def advance(self) -> None:
        """End the step. After set-up, request the first sum."""
        self.session.advance()
        if self.step.sum_number and self.asked is None:
            self._ask_next(None)

    def open(self) -> None:
        """Unmask the sum and write it to the disk."""
        path = self._sums / str(self.step.sum_number)
        partial = path.with_suffix(".part")
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            for block in self.session.open_blocks():
                file.write(memoryview(np.ascontiguousarray(block)).cast("B"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync(self._sums)

    def go_on(self, number: int, clients: Iterable[int], carried: tuple[float, float]) -> None:
        """Pass an opened sum to the program.

        `carried` is the mean number of bytes up and down per client for this sum.
        """
        (self._folder / f"adding-{number}").unlink(missing_ok=True)
        asked = self.current()
        if self.session.step is not None and self.session.step.sum_number == number:
            self.session.skip_sum(clients)  # after a restart the sum is on the disk
        total = total_of(asked.ask, *self._opened(asked))
        up, down = carried
        payload = asked.ask.encoding.payload_bytes(asked.ask.length)
        self.ledger.add_sum(
            asked.ask,
            round(up) - payload,
            round(down) - asked.ask.broadcast_bytes,
            self.session.deviation,
        )
        self._ask_next(total)

    def current(self) -> AskedSum:
        if self.asked is None:
            raise FederationError("no sum is being computed")
        return self.asked

    def close(self) -> None:
        """Close temporary files."""
        for spool in self._spools:
            spool.close()

    def _ask_next(self, total: Any) -> None:
        """Resume the program until it requests a sum or ends."""
        while True:
            try:
                wanted = self._program_steps.send(total)
            except StopIteration as stop:
                self.components, self.asked = stop.value, None
                return
            if isinstance(wanted, Contribution):
                break
            if isinstance(wanted, Broadcast):
                self.ledger.add_broadcast(wanted)
                total = None
            else:
                total = len(self.session.survivors)
        if self._on_sum:
            self._on_sum(wanted.name)
        self.asked = AskedSum(self.step.sum_number, wanted, wire.encode(wanted))
        self.session.ask(asked_digest(self.plan.text, self.asked.encoded), wanted.length)

    def _opened(self, asked: AskedSum) -> tuple[Words, VectorShape]:
        """Return a sum on the disk, with its shape."""
        announced = self._shapes[asked.number - 1].shortened(asked.ask.length)
        shape = self._protocol.opened_shape(announced, self.plan.statement)
        path = self._sums / str(asked.number)
        return np.memmap(path, shape.ring.dtype, "r", shape=(shape.length,)), shape

    def _accumulator(self, number: int, shape: VectorShape) -> Words:
        dtype = shape.ring.dtype
        if shape.length * dtype.itemsize < ON_DISK:
            return np.zeros(shape.length, dtype)
        path = self._folder / f"adding-{number}"
        return np.memmap(path, dtype, "w+", shape=(shape.length,))

    def _spool(self) -> BinaryIO:
        file: Any = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - see close
        self._spools = [spool for spool in self._spools if not spool.closed]
        self._spools.append(file)
        return file
