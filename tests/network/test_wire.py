"""Tests of the encoding of asks: one encoding each, and everything else is refused."""

from __future__ import annotations

import json
import struct
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from privirec.codec import canonical
from privirec.errors import FederationError
from privirec.federated import wire
from privirec.federated.contributions import (
    REGISTRY,
    Contribution,
    ItemDegrees,
    ItemItem,
    PowerStep,
    RowReach,
    ScaledStep,
    SeededScaledStep,
    SeededStep,
    UserStart,
    ValidationMetrics,
)
from privirec.runtime.messages import one_line

sizes = st.integers(1, 9)
widths = st.integers(1, 64)


@st.composite
def asks(draw: st.DrawFn) -> Contribution:
    kind = draw(st.sampled_from(sorted(REGISTRY)))
    n_items, columns = draw(sizes), draw(sizes)
    top = draw(st.sampled_from([1, 100, 2**15, 2**31, 2**62]))
    degrees = draw(arrays(np.int64, n_items, elements=st.integers(0, top)))
    numbers = st.integers(-(2**31), 2**31 - 1)
    if kind == "item-degrees":
        return ItemDegrees(n_items, draw(sizes))
    if kind == "item-item":
        return ItemItem(n_items, draw(sizes), draw(st.floats(0, 1)), draw(widths))
    if kind == "seeded-step":
        return SeededStep(degrees, draw(st.binary(min_size=32, max_size=32)), columns, draw(widths))
    if kind == "seeded-scaled-step":
        seed = draw(st.binary(min_size=32, max_size=32))
        return SeededScaledStep(degrees, seed, columns, draw(widths))
    if kind in ("row-reach", "scaled-step"):
        most = draw(st.sampled_from([7, 127, 2**15 - 1]))
        coarse = draw(arrays(np.int16, (n_items, columns), elements=st.integers(-most - 1, most)))
        units = draw(arrays(np.int64, n_items, elements=st.integers(0, 2**14)))
        bits = draw(st.integers(-40, 60))
        if kind == "row-reach":
            return RowReach(degrees, coarse, units, bits)
        scales = draw(arrays(np.int64, n_items, elements=st.integers(0, 2**31 - 1)))
        return ScaledStep(degrees, coarse, units, bits, scales, draw(widths))
    if kind == "validation-metrics":
        vectors = draw(arrays(np.int16, (n_items, columns), elements=st.integers(-127, 127)))
        units, values = (
            draw(arrays(np.int64, length, elements=st.integers(0, 2**31 - 1)))
            for length in (n_items, columns)
        )
        packed = draw(st.binary(max_size=40))
        return ValidationMetrics(draw(sizes), packed, degrees, vectors, units, values)
    rows = n_items if kind == "power-step" else draw(sizes)
    block = draw(arrays(np.int32, (rows, columns), elements=numbers))
    made = PowerStep if kind == "power-step" else UserStart
    return made(degrees, block, draw(st.integers(-40, 60)), draw(widths))


def same(one: Contribution, other: Contribution) -> bool:
    assert type(one) is type(other)
    for field in fields(one):  # type: ignore[arg-type]
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
        else:
            assert a == b
            assert type(a) is type(b)
    return True


@given(asks())
def test_every_contribution_survives(ask: Contribution) -> None:
    message = wire.encode(ask)
    again = wire.decode(message)
    assert same(ask, again)
    assert wire.encode(again) == message


def test_every_contribution_of_the_registry_can_be_written() -> None:
    known = {"int", "float", "bytes", "str", *wire._ARRAYS}
    for kind in REGISTRY.values():
        assert {str(field.type) for field in fields(kind)} <= known


@given(asks(), st.data())
def test_damage_is_refused_or_changes_what_is_asked(ask: Contribution, data: st.DataObject) -> None:
    message = bytearray(wire.encode(ask))
    place = data.draw(st.integers(0, len(message) - 1))
    message[place] ^= data.draw(st.integers(1, 255))
    try:
        again = wire.decode(bytes(message))
    except FederationError:
        return
    assert wire.encode(again) == bytes(message) != wire.encode(ask)


@given(asks(), st.data())
def test_cut_and_longer_messages_are_refused(ask: Contribution, data: st.DataObject) -> None:
    message = wire.encode(ask)
    cut = data.draw(st.integers(0, len(message) - 1))
    for bad in (message[:cut], message + b"\0"):
        with pytest.raises(FederationError):
            wire.decode(bad)


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    for message in (noise, b"PRW\x01" + noise, b"PRW\x01" + struct.pack(">I", len(noise)) + noise):
        with pytest.raises(FederationError):
            wire.decode(message)


@pytest.mark.parametrize(
    "change",
    [
        {"ask": "os.system"},
        {"fields": {"n_items": 3, "n_users": 2.0}},
        {"fields": {"n_items": 3}},
        {"fields": {"n_items": 3, "n_users": 2, "more": 1}},
        {"fields": {"n_items": 3, "n_users": 2**70}},
        {"arrays": [{"name": "x", "dtype": "i1", "shape": [0]}]},
        {"arrays": None},
    ],
)
def test_other_fields_are_refused(change: dict[str, object]) -> None:
    header = {"ask": "item-degrees", "fields": {"n_items": 3, "n_users": 2}, "arrays": []} | change
    raw = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    with pytest.raises(FederationError, match="cannot be read"):
        wire.decode(b"PRW\x01" + struct.pack(">I", len(raw)) + raw)


def test_sizes_are_limited_and_small() -> None:
    step = PowerStep(np.full(1000, 200), np.full((1000, 16), 2**30, np.int32), 20)
    message = wire.encode(step)
    assert len(message) < step.broadcast_bytes + 2 * 1000 + 300
    with pytest.raises(FederationError, match="are the most"):
        wire.decode(message, max_bytes=1000)


def test_what_is_not_registered_is_not_written() -> None:
    class Other(ItemDegrees):
        pass

    with pytest.raises(FederationError, match="registry"):
        wire.encode(Other(3, 2))


def test_the_one_text_of_a_content() -> None:
    content = {"b": [1, 2.5, None], "a": {"d": "\u00e9", "c": True}}
    assert canonical(content) == rb'{"a":{"c":true,"d":"\u00e9"},"b":[1,2.5,null]}'
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="not JSON compliant"):
            canonical({"a": wrong})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Zo\u00eb", "Zo\u00eb"),
        ("a\nb\x1b[31m", "a b [31m"),
        ("x" * 501, "x" * 500),
        ("\n" * 501, " " * 500),
    ],
)
def test_what_others_wrote_is_one_line(text: str, shown: str) -> None:
    assert one_line(text) == shown
