"""Record of what a run revealed, and of its cost in bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from privirec.federated.contributions import Contribution, PlannedSum
from privirec.federated.dp.gaussian import DEFAULT_DELTA
from privirec.federated.dp.loss import Loss
from privirec.federated.noise import NO_NOISE, Noise
from privirec.federated.programs import Broadcast, Planned
from privirec.privacy.worth import NOTHING, SIMULATED, figures, worth


@dataclass(frozen=True)
class Entry:
    """A message to the cohort, or a sum over it."""

    what: str
    entries: int
    ring_bits: int
    fraction_bits: int
    bytes_up_per_client: int
    bytes_down_per_client: int
    revealed_to: str
    noise: Noise = NO_NOISE
    gives_away: str = ""
    """One sentence on what the party that sees the sum learns."""
    residual_deviation: float = 0.0
    """Standard deviation of the error that the aggregation itself left in an entry, in the values
    of the sum."""
    loss: Loss | None = None
    """Bound on what the sum tells about a person; None if there is no bound."""

    def as_row(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {
            "noise": self.noise.as_row(),
            "loss": asdict(self.loss) if self.loss else None,
        }


@dataclass
class Ledger:
    """All aggregates that were revealed, in order."""

    entries: list[Entry] = field(default_factory=list)
    delta: float = DEFAULT_DELTA
    """Delta at which epsilon is stated."""
    secret_noise: bool = True
    """True if nobody can reproduce the noise.

    Noise from a known seed, as in a simulation, protects nobody.
    """

    @classmethod
    def planned(cls, outline: Iterable[Planned]) -> Ledger:
        """Return the ledger of a run before anything is sent; scales are not known yet."""
        ledger = cls()
        for step in outline:
            if isinstance(step, PlannedSum):
                ledger.entries.append(
                    Entry(
                        step.name,
                        step.shape.length,
                        step.shape.ring_bits,
                        0,
                        step.payload_bytes,
                        step.shape.broadcast_bytes,
                        "server",
                        gives_away=step.kind.gives_away,
                    )
                )
            else:
                ledger.add_broadcast(step)
        return ledger

    def add_sum(
        self,
        ask: Contribution,
        overhead_up: int = 0,
        overhead_down: int = 0,
        residual_deviation: float = 0.0,
    ) -> None:
        """Add an opened sum.

        `residual_deviation` is the error that the aggregation left in an entry, in units of the
        encoding.
        """
        encoding = ask.encoding
        self.entries.append(
            Entry(
                ask.name,
                ask.length,
                encoding.width,
                encoding.fraction_bits,
                encoding.payload_bytes(ask.length) + overhead_up,
                ask.broadcast_bytes + overhead_down,
                "server",
                ask.noise,
                ask.gives_away,
                math.ldexp(residual_deviation, -encoding.fraction_bits),
                self._loss(ask),
            )
        )

    def add_broadcast(self, message: Broadcast) -> None:
        self.entries.append(Entry(message.name, 0, 0, 0, 0, message.n_bytes, "every client"))

    def _loss(self, ask: Contribution) -> Loss | None:
        found = type(ask).protection(ask.shape, vars(ask))
        return found.loss if found and self.secret_noise else None

    @property
    def sums(self) -> int:
        """Number of sums."""
        return sum(entry.entries > 0 for entry in self.entries)

    @property
    def bytes_up(self) -> int:
        return sum(entry.bytes_up_per_client for entry in self.entries)

    @property
    def bytes_down(self) -> int:
        return sum(entry.bytes_down_per_client for entry in self.entries)

    def by_name(self, what: str) -> dict[str, int]:
        """Return bytes up or down (`what` is the field name), added up over sums of the same
        name."""
        found: dict[str, int] = {}
        for entry in self.entries:
            found[entry.what] = found.get(entry.what, 0) + getattr(entry, what)
        return found

    def loss(self, entries: int | None = None) -> Loss:
        """Return the loss of the first `entries` entries (None: all); unbounded if one is exact."""
        sums = [entry.loss for entry in self.entries[:entries] if entry.entries]
        return Loss.together(Loss(math.inf) if loss is None else loss for loss in sums)

    def epsilon(self) -> float:
        """Return the epsilon of all entries; infinite if one is exact."""
        return self.loss().epsilon(self.delta)

    @property
    def promised(self) -> str:
        """Promise of all sums, in figures and in plain words."""
        loss = self.loss()
        epsilon, replacing = loss.epsilon(self.delta), loss.epsilon_replacing(self.delta)
        if math.isfinite(epsilon):
            return f"Promised: {figures(epsilon, self.delta, replacing)}. {worth(loss)}"
        return NOTHING if self.secret_noise else SIMULATED

    def as_rows(self) -> list[dict[str, Any]]:
        """Return the rows of a manifest: each entry, and both figures of epsilon up to and
        including it, or "none"."""
        rows = []
        for number, entry in enumerate(self.entries, start=1):
            loss = self.loss(number)
            so_far = {
                "epsilon_so_far": loss.epsilon(self.delta),
                "epsilon_replacing_so_far": loss.epsilon_replacing(self.delta),
            }
            shown = {name: "none" if math.isinf(e) else e for name, e in so_far.items()}
            rows.append(entry.as_row() | shown | {"delta": self.delta})
        return rows
