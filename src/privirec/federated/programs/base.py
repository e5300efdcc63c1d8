"""Base of all programs: settings, an outline of the sums, and steps that follow the outline.

The steps are a generator. It yields a request for a sum over the cohort, receives the total, and
finally returns components. It is independent of transport and masks, so the same program runs in a
simulation, in one process and over a network.

`outline` is the only list of a program's requests, and the generator makes each request from its
entry in that list. Lengths, widths and numbers of rounds are therefore stated only once, and a
program that departs from its outline is refused.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from privirec.errors import FederationError, UsageError
from privirec.federated.contributions import Contribution, Histories, PlannedSum
from privirec.federated.dp.gaussian import DEFAULT_DELTA
from privirec.federated.dp.loss import Loss
from privirec.federated.settings import ProgramSettings, Settings, validated
from privirec.filters.components import Components

OnStep = Callable[[int, NDArray[np.float64], NDArray[np.float64]], None]


@dataclass(frozen=True)
class Broadcast:
    """Public results that go to every client outside a sum."""

    name: str
    n_bytes: int

    def measured(self, n_bytes: int) -> Broadcast:
        """Return the same broadcast with its actual size."""
        return replace(self, n_bytes=n_bytes)

    def check(self, step: object) -> None:
        """Refuse anything but this broadcast; its size may differ from the planned one."""
        if not isinstance(step, Broadcast) or step.name != self.name:
            raise FederationError(f"the step is not the broadcast of {self.name} of the outline")


@dataclass(frozen=True)
class CohortSize:
    """Question of a program to its runtime: how many clients add noise to the sums.

    The answer is known when the first sum is open, since nobody may drop out after that.
    """


Planned = PlannedSum | Broadcast
Step = Contribution | Broadcast | CohortSize
Steps = Generator[Step, Any, Components]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Bounds:
    """Bounds on all sums of a run together, where sizes are decided during the run."""

    cap: Loss
    """Most that the sums may cost a person."""
    upload_bytes: int
    """Most bytes that a client sends in their vectors."""

    def left(self, spent: Loss) -> Loss:
        """Return what later sums may cost after these."""
        return Loss(spent.left(self.cap), max(0.0, math.nextafter(self.cap.gap - spent.gap, 0.0)))

    def check(self, ask: Contribution, spent: Loss, sent: int) -> None:
        """Refuse a request that exceeds a bound, after sums of this loss and these bytes.

        This is a privacy filter (`Loss.allowed`): whatever a server chose after each sum, all of
        them together keep the cap.
        """
        protection = ask.protected
        if protection is None:
            raise FederationError(f"{ask.name} without noise in a run that promises it")
        if not Loss.together((spent, protection.loss)).fits(self.cap):
            raise FederationError(
                f"the noise of {ask.name} is less than what is left of the plan's promise requires"
            )
        if sent + ask.encoding.payload_bytes(ask.length) > self.upload_bytes:
            raise FederationError(
                f"a {ask.name} with which a client would send more than the "
                f"{self.upload_bytes:,} bytes of the plan"
            )


MOST_COLUMNS = 1 << 24
"""Largest number of columns of a basis.

The server chooses the number, so the limit bounds what a client allocates for it.
"""


class Program(ABC, Generic[Settings]):
    """A federated computation with its settings, for a cohort and a catalogue of given sizes."""

    name: ClassVar[str]
    title: ClassVar[str]
    """Display name."""
    in_short: ClassVar[str]
    """Short description of the computation, for a list of methods."""
    gives_away: ClassVar[str]
    """One sentence, without a full stop, on what the program's release gives away."""
    settings_type: ClassVar[type[ProgramSettings]]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Published settings, by name; see `preset`."""
    preset_models: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Settings of the usual model that were chosen together with a preset, by preset name."""
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Further settings that a table of costs compares."""
    only_for_models_with: ClassVar[frozenset[str]] = frozenset()
    """Settings that a model must list in `needs` for this program to compute it, because they
    change the model's input."""
    usual_model: ClassVar[str | None] = None
    """Name of the model that the components are made for, if there is a single one."""
    protects: ClassVar[bool] = False
    """True if noise protects every sum."""
    validates: ClassVar[bool] = False
    """True if clients hold out randomly chosen items for validation; see `held_out`."""
    low_rank: ClassVar[bool] = False
    """True if the rank is that of the item-item matrix itself, from which a model's low-pass filter
    takes the leading vectors.

    If false, the rank is that of the low-pass filter alone.
    """

    def __init__(self, settings: Settings, n_users: int, n_items: int) -> None:
        """Raise UsageError if the program cannot run with these settings and sizes."""
        if not isinstance(settings, self.settings_type):
            raise UsageError(f"{self.name} does not run with settings of {settings.method}")
        if n_users < 1:
            raise UsageError("a federation needs at least one user")
        self.settings = settings
        self.n_users = n_users
        self.n_items = n_items
        self.check()

    @property
    def delta(self) -> float:
        """Delta at which the cost of the sums is stated as an epsilon."""
        return DEFAULT_DELTA

    @property
    def level(self) -> float:
        """Largest level (`dp.gaussian`) of all sums together; 0 without noise."""
        return 0.0

    @classmethod
    def settings_from(
        cls,
        given: Mapping[str, Any],
        offered: Mapping[str, Any] | None = None,
        preset: str | None = None,
    ) -> Any:
        """Return settings merged from three sources.

        Values in `given` take precedence over the preset, and the preset over `offered`. Every name
        in `given` must be a field of the settings; names in `offered` that are not fields are
        ignored.
        """
        fields = cls.settings_type.model_fields
        if preset is not None and preset not in cls.presets:
            raise UsageError(f"the preset {preset} does not go with {cls.name}")
        for name in given:
            if name not in fields:
                raise UsageError(f"{name.replace('_', '-')} does not go with {cls.name}")
        values = {name: value for name, value in (offered or {}).items() if name in fields}
        published = cls.presets[preset] if preset is not None else {}
        return validated(cls.settings_type, {"method": cls.name, **values, **published, **given})

    @classmethod
    def preset(cls, name: str, **given: Any) -> Any:
        """Return the settings of a preset, with changes."""
        return cls.settings_from(given, preset=name)

    # --- defined by each program ------------------------------------------------------------------

    @abstractmethod
    def outline(self, item_item_entries: int | None = None) -> list[Planned]:
        """Return all sums and broadcasts, in order.

        `item_item_entries` is the number of non-zeros of P~ if it is known. Otherwise a released
        item-item matrix counts as its dense triangle.
        """

    @abstractmethod
    def _steps(self, outline: list[Any]) -> Steps:
        """Run the computation; make each request from its entry in the outline."""

    def check(self) -> None:
        """Refuse settings that cannot run with these sizes."""

    def with_factors(self, components: Components, histories: Histories) -> Components:
        """Return the components in a form that is faster to apply, if there is one.

        Only a holder of all histories can compute that form, so this is for simulations.
        """
        return components

    @property
    def bounds(self) -> Bounds | None:
        """Bounds on all sums together; None if the outline states each sum exactly."""
        return None

    @property
    def loss(self) -> Loss:
        """Largest privacy loss of a person through all sums with noise together."""
        return Loss.together(one.protection.loss for one in self.sums() if one.protection)

    def loss_to_come(self, number: int, spent: Loss) -> Loss:
        """Return the largest loss of sum `number` and all later ones, after what was spent."""
        if self.bounds:
            return self.bounds.left(spent)
        return Loss.together(
            one.protection.loss for one in self.sums()[number - 1 :] if one.protection
        )

    def forecast(self, item_item_entries: int | None = None) -> list[Planned]:
        """Return the sums and broadcasts to expect.

        They are those of `outline` unless sizes are decided during the run.
        """
        return self.outline(item_item_entries)

    def describe(self) -> dict[str, Any]:
        """Return the description of the computation for a row of results."""
        return {"rank": None, "rounds": None, "multiplications": None, "solver": None}

    @property
    def held_out(self) -> float:
        """Share of each user's items that clients keep out of all sums, for validation."""
        return 0.0

    def found(self) -> dict[str, Any]:
        """Return results other than components, once the steps have finished.

        Manifests and rows of results include them.
        """
        return {}

    # --- derived ----------------------------------------------------------------------------------

    def sums(self) -> list[PlannedSum]:
        """Return the secure sums of a run, in order; optional ones come last."""
        return [planned for planned in self.outline() if isinstance(planned, PlannedSum)]

    def expected_sums(self) -> list[PlannedSum]:
        """Return the secure sums to expect, in order; see `forecast`."""
        return [planned for planned in self.forecast() if isinstance(planned, PlannedSum)]

    def steps(self) -> Steps:
        """Return the steps of the computation, checked against the outline."""
        outline = self.outline()
        return keep_to(outline, self._steps(outline), self.bounds)

    def opened_share(self) -> float:
        """Return the share of the item-item matrix that the sums reveal if every item is in use.

        The share is larger if fewer items are in use.
        """
        return sum(one.opened(self.n_items, self.n_items).share for one in self.sums())


def keep_to(
    outline: Iterable[Planned], steps: Generator[Step, Any, Result], bounds: Bounds | None = None
) -> Generator[Step, Any, Result]:
    """Yield the steps, and refuse the first one that departs from the outline or exceeds a bound.

    Optional sums may be left out, but only all remaining ones: keys and masks are assigned to sums
    in order.
    """
    planned = iter(outline)
    spent, sent = Loss(), 0
    answer: Any = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as stop:
            if _next_after_sums_left_out(planned) is not None:
                raise FederationError("the program ended before its outline did") from None
            return stop.value
        if not isinstance(step, CohortSize):
            no_sum = isinstance(step, Broadcast)
            expected = _next_after_sums_left_out(planned) if no_sum else next(planned, None)
            if expected is None:
                raise FederationError(f"{step.name} comes after the end of the outline")
            expected.check(step)
        if bounds and isinstance(step, Contribution):
            bounds.check(step, spent, sent)
            spent = Loss.together((spent, step.protected.loss)) if step.protected else spent
            sent += step.encoding.payload_bytes(step.length)
        answer = yield step


def _next_after_sums_left_out(planned: Iterator[Planned]) -> Planned | None:
    return next((one for one in planned if not getattr(one, "optional", False)), None)
