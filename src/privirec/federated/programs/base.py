"""What a program is: settings, the plan of its sums, and steps that keep to that plan.

The steps are a generator: it yields what it wants summed over the cohort, is sent the total, and
returns components. It knows nothing of transport or of masks, so the same program runs in a
simulation, in one process and over a network.

What a program will ask for is listed once, in `plan`, and the generator makes each ask from the
entry of that list: lengths, widths and numbers of rounds are not said a second time, and whoever
drives the steps sees a program that departs from its plan refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from privirec.errors import FederationError, UsageError
from privirec.federated.contributions import Contribution, Histories, PlannedSum
from privirec.filters.components import Components

OnStep = Callable[[int, NDArray[np.float64], NDArray[np.float64]], None]


@dataclass(frozen=True)
class Broadcast:
    """Public results that go to every client outside a sum."""

    name: str
    n_bytes: int

    def measured(self, n_bytes: int) -> Broadcast:
        """The same broadcast, once its size is known."""
        return replace(self, n_bytes=n_bytes)

    def check(self, step: object) -> None:
        """Refuse anything but this broadcast; its size may turn out another than planned."""
        if not isinstance(step, Broadcast) or step.name != self.name:
            raise FederationError(f"what comes is not the broadcast of {self.name} of the plan")


Planned = PlannedSum | Broadcast
Steps = Generator["Contribution | Broadcast", Any, Components]
Result = TypeVar("Result")


MOST_COLUMNS = 1 << 24
"""Of a basis. A server names it: what a client makes of it must stay small."""


class ProgramSettings(BaseModel):
    """How components are computed with the clients: what all programs have in common."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    former_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields without effect that earlier versions wrote down for this method."""

    method: str
    """Name of the program."""
    ring_bits: int = Field(32, ge=1, le=64)
    """Width of the ring for all sums but counts."""
    seed: int = Field(0, ge=0)
    """Of public start blocks; no secret comes from it."""


Settings = TypeVar("Settings", bound=ProgramSettings)


def validated(kind: type[Settings], values: Mapping[str, Any]) -> Settings:
    """Settings of a kind; what is wrong with the values is said in one line."""
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


class Program(ABC, Generic[Settings]):
    """One federated computation with its settings, for a cohort and a catalogue of given sizes."""

    name: ClassVar[str]
    title: ClassVar[str]
    """As people write it."""
    in_short: ClassVar[str]
    """What it computes, in a few words for a list of methods."""
    gives_away: ClassVar[str]
    """What its release gives away, in one sentence without a full stop."""
    settings_type: ClassVar[type[ProgramSettings]]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Published settings, by name; see `preset`."""
    preset_models: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Settings of the usual model that were chosen with a preset, by its name."""
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Further settings that a table of costs compares."""
    only_for_models_with: ClassVar[frozenset[str]] = frozenset()
    """Settings that change what a model gets: a model that does not name them is not computed."""
    usual_model: ClassVar[str | None] = None
    """Name of the model that its components are made for, if it is one."""
    protects: ClassVar[bool] = False
    """Whether noise protects every sum."""
    validates: ClassVar[bool] = False
    """Whether clients keep items back to validate on, which they choose at random; see
    `held_out`."""
    low_rank: ClassVar[bool] = False
    """Whether the rank is that of the item-item matrix itself, of which a model's low-pass filter
    takes the leading vectors, and not that of the low-pass filter alone."""

    def __init__(self, settings: Settings, n_users: int, n_items: int) -> None:
        """Raises UsageError for what cannot run at all."""
        if not isinstance(settings, self.settings_type):
            raise UsageError(f"{self.name} does not run with settings of {settings.method}")
        if n_users < 1:
            raise UsageError("a federation needs at least one user")
        self.settings = settings
        self.n_users = n_users
        self.n_items = n_items
        self.check()

    @classmethod
    def settings_from(
        cls,
        given: Mapping[str, Any],
        offered: Mapping[str, Any] | None = None,
        preset: str | None = None,
    ) -> Any:
        """Settings from what somebody gave by name, all of which must fit, over a preset, over what
        is offered, of which the program takes the fields that it has."""
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
        """The settings of a preset, with changes."""
        return cls.settings_from(given, preset=name)

    # --- what a program defines -------------------------------------------------------------------

    @abstractmethod
    def plan(self, item_item_entries: int | None = None) -> list[Planned]:
        """All sums and broadcasts, in order.

        `item_item_entries` is the number of non-zeros of P~ where it is known; otherwise a released
        item-item matrix counts as its dense triangle.
        """

    @abstractmethod
    def _steps(self, plan: list[Any]) -> Steps:
        """The computation, each ask made from its entry in the plan."""

    def check(self) -> None:
        """Refuse settings that cannot run on these sizes."""

    def with_factors(self, components: Components, histories: Histories) -> Components:
        """The same components in a form that only whoever holds all histories can have, where that
        is quicker to apply. For simulations."""
        return components

    def describe(self) -> dict[str, Any]:
        """What a row of results says of the computation."""
        return {"rank": None, "rounds": None, "multiplications": None, "solver": None}

    @property
    def held_out(self) -> float:
        """The share of everybody's items that clients keep out of all sums, to validate on."""
        return 0.0

    def found(self) -> dict[str, Any]:
        """What the steps found beside components, once they have come to their end: for manifests
        and rows of results."""
        return {}

    # --- what follows -----------------------------------------------------------------------------

    def sums(self) -> list[PlannedSum]:
        """The secure sums of a run, in order; optional ones come last."""
        return [planned for planned in self.plan() if isinstance(planned, PlannedSum)]

    def steps(self) -> Steps:
        """The computation, held to its plan."""
        plan = self.plan()
        return keep_to(plan, self._steps(plan))

    def opened_share(self) -> float:
        """The share of the item-item matrix that the sums open if every item is in use; where
        fewer are, it is more."""
        return sum(one.opened(self.n_items, self.n_items).share for one in self.sums())


def keep_to(
    plan: Iterable[Planned], steps: Generator[Contribution | Broadcast, Any, Result]
) -> Generator[Contribution | Broadcast, Any, Result]:
    """The same steps, refused at the first that departs from the plan. Optional sums may be left
    out, but only all that are left: keys and masks are dealt for sums in their order."""
    planned = iter(plan)
    answer: Any = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as stop:
            if _next_after_sums_left_out(planned) is not None:
                raise FederationError("the program ended before its plan did") from None
            return stop.value
        no_sum = isinstance(step, Broadcast)
        expected = _next_after_sums_left_out(planned) if no_sum else next(planned, None)
        if expected is None:
            raise FederationError(f"{step.name} comes after the end of the plan")
        expected.check(step)
        answer = yield step


def _next_after_sums_left_out(planned: Iterator[Planned]) -> Planned | None:
    return next((one for one in planned if not getattr(one, "optional", False)), None)
