"""Tests of programs against their outlines: the first deviation is detected."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from privirec.data import Interactions
from privirec.errors import FederationError, UsageError
from privirec.extra.likely_links import LinkDegrees, LinkItemItem, ScoreHistogram
from privirec.federated.contributions import (
    REGISTRY,
    ClientContext,
    HeadItemItem,
    Histories,
    ItemDegrees,
    ItemItem,
    PlannedSum,
    PowerStep,
    SeededStep,
    UserStart,
)
from privirec.federated.fixed_point import FixedPoint
from privirec.federated.programs import (
    DEFAULT_PROGRAM,
    PROGRAMS,
    Broadcast,
    Privirec,
    PrivirecKSettings,
    PrivirecSettings,
    SpectralSettings,
    keep_to,
    program_of,
    settings_of,
)
from privirec.runtime.spec import RunSpec

ROOT = Path(__file__).parents[2]
DEGREES = ItemDegrees.planned(5, 9)
TOLD = Broadcast("item-degrees", 20)
MATRIX = ItemItem.planned(5, 0.5, 32)


@dataclass(frozen=True)
class Signed(ItemItem):
    """A sum with the planned name, length and ring, but another sign."""

    @property
    def encoding(self) -> FixedPoint:
        return replace(super().encoding, signed=True)


def drive(outline: list[Any], steps: list[Any]) -> None:
    def program() -> Generator[Any, Any, None]:
        yield from steps

    assert list(keep_to(outline, program())) == steps


def test_what_was_planned_passes() -> None:
    drive([DEGREES, TOLD, MATRIX], [DEGREES.ask(), TOLD, MATRIX.ask(largest_degree=3)])
    drive([TOLD], [TOLD.measured(7)])
    drive([], [])


OPTIONAL = replace(MATRIX, optional=True)
ASKED = MATRIX.ask(largest_degree=3)


def test_optional_sums_may_be_left_out_from_some_point_on() -> None:
    for asked in ([], [ASKED], [ASKED, ASKED]):
        drive([DEGREES, OPTIONAL, OPTIONAL, TOLD], [DEGREES.ask(), *asked, TOLD])
        drive([DEGREES, OPTIONAL, OPTIONAL], [DEGREES.ask(), *asked])


def test_no_other_sum_takes_the_place_of_an_optional_one() -> None:
    with pytest.raises(FederationError, match="is not the item-item of the plan"):
        drive([OPTIONAL, DEGREES], [DEGREES.ask()])
    with pytest.raises(FederationError, match="after the end of the outline"):
        drive([OPTIONAL, TOLD], [TOLD, ASKED])


def test_optional_sums_come_last() -> None:
    """Test the order of optional sums: keys are dealt for sums in order, and none can be
    skipped."""
    settings = SpectralSettings(rank=4, columns=(2,) * 5, settle=0.1)
    optional = [one.optional for one in program_of(settings, 9, 30).sums()]
    assert optional == sorted(optional)
    assert optional.count(True) == 2 * 3


@pytest.mark.parametrize(
    ("outline", "steps", "says"),
    [
        ([DEGREES], [MATRIX.ask(largest_degree=3)], "is not the item-degrees of the plan"),
        ([DEGREES], [TOLD], "is not the item-degrees of the plan"),
        ([TOLD], [DEGREES.ask()], "not the broadcast of item-degrees"),
        ([TOLD], [Broadcast("filters", 20)], "not the broadcast of item-degrees"),
        ([DEGREES], [ItemDegrees(6, 9)], "another length, ring or sign"),
        ([DEGREES], [ItemDegrees(5, 20)], "another length, ring or sign"),
        ([DEGREES], [ItemDegrees(5, 10)], "another number of users"),
        ([MATRIX], [ItemItem(5, 3, 0.5, 31)], "another length, ring or sign"),
        ([MATRIX], [ItemItem(5, 3, 0.4, 32)], "another alpha"),
        ([replace(MATRIX, kind=Signed)], [Signed(5, 3)], "another length, ring or sign"),
        ([DEGREES], [DEGREES.ask(), TOLD], "after the end of the outline"),
        ([DEGREES, TOLD], [DEGREES.ask()], "before its outline did"),
    ],
)
def test_departures_are_refused(outline: list[Any], steps: list[Any], says: str) -> None:
    with pytest.raises(FederationError, match=says):
        drive(outline, steps)


def links(holes: Interactions) -> list[tuple[PlannedSum, Any]]:
    """Return the sums over likely links at the second stage."""
    matrix = ItemItem(holes.n_items, 20).total(Histories(holes.matrix))
    fixed = {"n_items": holes.n_items, "n_users": holes.n_users, "width": 32, "alpha": 0.34}
    fixed |= {"left": 0.5, "right": 0.25, "user_exponent": 1.0}
    public = {
        "item_degrees": np.tile(holes.item_degrees, 2),
        "indptr": matrix.indptr,
        "indices": matrix.indices,
        "entries": np.tile(matrix.data, 2),
        "thresholds": np.array([7]),
    }
    decided = public | {"thresholds": np.array([7, 8])}
    return [
        (ScoreHistogram.planned(2, matrix.nnz, **fixed), public | {"upper": 3}),
        (LinkDegrees.planned(2, matrix.nnz, **fixed), decided),
        (LinkItemItem.planned(2, matrix.nnz, **fixed), decided),
    ]


def test_a_plan_s_shapes_are_those_of_its_asks(holes: Interactions) -> None:
    degrees, users, items = holes.item_degrees, holes.n_users, holes.n_items
    x = np.ones((users, 3))
    made: list[tuple[PlannedSum, Any]] = [
        (ItemDegrees.planned(items, users), {}),
        (ItemItem.planned(items, 0.3, 40), {"largest_degree": 7}),
        (HeadItemItem.planned(items, 5, 0.3, 40), {"item_degrees": degrees}),
        *links(holes),
        (PowerStep.planned(items, 3, 24), {"x": x[:items], "item_degrees": degrees}),
        (SeededStep.planned(items, 3, 24, bytes(32)), {"item_degrees": degrees}),
        (UserStart.planned(items, users, 3, 24), {"x": x, "item_degrees": degrees}),
    ]
    for planned, known in made:
        ask = planned.ask(**known)
        planned.check(ask)
        assert ask.shape == planned.shape
        assert (ask.encoding.width, ask.encoding.signed) == (ask.shape.ring_bits, ask.shape.signed)
        assert ask.encoding.payload_bytes(ask.length) == planned.payload_bytes
        assert planned.kind.gives_away
    for program in PROGRAMS.values():
        assert program.gives_away
        assert not program.gives_away.endswith(".")


# --- checks by a client ---------------------------------------------------------------------------


def client(holes: Interactions, **changes: Any) -> ClientContext:
    """Return a client with the first ten of thirty users."""
    own = Histories(holes.matrix[:10])
    return replace(ClientContext(30, 17, PrivirecSettings(), own), **changes)


def test_degrees_that_cannot_be_are_refused_or_noted(holes: Interactions) -> None:
    """Test degrees that every client can refute (refused) and that only this client can (noted)."""
    degrees, own = holes.item_degrees, holes.rows(0, 10).item_degrees
    for kind in (PowerStep, UserStart):
        rows = 17 if kind is PowerStep else 30
        for fine in (degrees, own):
            context = client(holes)
            kind.of(np.eye(rows, 2), fine, 32).check(context)
            assert not context.contradictions
        context = client(holes)
        kind.of(np.eye(rows, 2), np.maximum(own - 1, 0), 32).check(context)
        assert context.contradictions == ["item degrees below this client's own"]
        with pytest.raises(FederationError, match="more than there are users"):
            kind.of(np.eye(rows, 2), degrees + 30, 32).check(client(holes))
    with pytest.raises(FederationError, match="another number of users"):
        UserStart.of(np.eye(31, 2), degrees, 32).check(client(holes))


def test_a_largest_degree_that_cannot_be_is_refused(holes: Interactions) -> None:
    own = int(holes.rows(0, 10).item_degrees.max())
    for fine in (own, 30):
        context = client(holes)
        ItemItem(17, fine).check(context)
        assert not context.contradictions
    ItemItem(17, own - 1).check(context)
    assert context.contradictions == ["a largest item degree below this client's own"]
    for wrong in (-1, 31):
        with pytest.raises(FederationError, match="largest item degree"):
            ItemItem(17, wrong).check(client(holes))


def test_public_inputs_are_pinned_for_a_run(holes: Interactions) -> None:
    degrees = holes.item_degrees
    pinned: dict[str, str] = {}
    SeededStep(degrees, bytes(32), 2).check(client(holes, pinned=pinned))
    assert list(pinned) == ["item degrees"]
    # Another process of the same client reads the digests from storage.
    PowerStep.of(np.eye(17, 2), degrees, 32).check(client(holes, pinned=dict(pinned)))
    with pytest.raises(FederationError, match="other item degrees than in an earlier sum"):
        PowerStep.of(np.eye(17, 2), degrees + 1, 32).check(client(holes, pinned=dict(pinned)))


# --- settings -------------------------------------------------------------------------------------


def test_a_spec_holds_the_settings_of_any_program() -> None:
    for settings in (PrivirecSettings(rank=3), PrivirecKSettings(rank=3, eigenvalues="diagonal")):
        spec = RunSpec(program=settings)
        again = RunSpec.model_validate_json(spec.model_dump_json())
        assert again == spec
        assert type(again.program) is type(settings)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"method": "magic"}, "no method 'magic'; there are privirec, privirec-k"),
        ({}, "no method 'None'"),
        ({"method": "privirec", "roundz": 3}, "roundz"),
        ({"method": "privirec-k", "rank": -1}, "rank"),
    ],
)
def test_unknown_methods_and_settings_are_refused_in_one_line(
    record: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        settings_of(record)
    assert "\n" not in str(refused.value)
    with pytest.raises(ValidationError, match=says):
        RunSpec.model_validate({"program": record})


def test_what_does_not_go_with_a_program_is_refused() -> None:
    with pytest.raises(UsageError, match="eigenvalues does not go with privirec"):
        Privirec.settings_from({"eigenvalues": "diagonal"})
    with pytest.raises(UsageError, match="preset magic does not go with privirec"):
        Privirec.preset("magic")
    offered = {"rank": 3, "eigenvalues": "diagonal"}
    assert Privirec.settings_from({}, offered) == PrivirecSettings(rank=3)
    with pytest.raises(UsageError, match="privirec-k does not run with settings of privirec"):
        PROGRAMS["privirec-k"](PrivirecSettings(rank=3), 9, 9)


def test_a_name_stands_for_one_thing() -> None:
    @dataclass(frozen=True)
    class Other(ItemDegrees):
        pass

    class OtherProgram(Privirec):
        pass

    with pytest.raises(UsageError, match="already"):
        REGISTRY.register(Other)
    with pytest.raises(UsageError, match="already"):
        PROGRAMS.register(OtherProgram)
    REGISTRY.register(ItemDegrees)
    PROGRAMS.register(Privirec)


def test_a_run_is_protected_by_default() -> None:
    program = PROGRAMS[DEFAULT_PROGRAM]
    spec = RunSpec(program=program.settings_type())
    assert spec.protected
    assert program_of(spec.program, 300, 300).sums()
