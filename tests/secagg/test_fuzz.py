"""Tests of malformed and damaged messages in every state of client and server."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breadth import first
from privirec.secagg.messages import encode

from . import fuzzing
from .strategies import messages


@st.composite
def damaged(draw: st.DrawFn, originals: list[bytes]) -> bytes:
    raw = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.integers(0, 2))
        place = draw(st.integers(0, len(raw) - 1)) if raw else 0
        if kind == 0 and raw:
            raw[place] ^= 1 << draw(st.integers(0, 7))
        elif kind == 1:
            del raw[place : place + draw(st.integers(1, 40))]
        else:
            raw[place:place] = draw(st.binary(min_size=1, max_size=8))
    return bytes(raw)


@settings(max_examples=300)
@given(st.integers(0, len(fuzzing.STORED) - 1), damaged(fuzzing.MESSAGES))
def test_damaged_messages_to_a_client(stage: int, data: bytes) -> None:
    fuzzing.tell_client(stage, data)


ACTIVE = fuzzing.RECORDED["active"]


@settings(max_examples=300)
@given(st.integers(0, len(ACTIVE.stored) - 1), damaged(ACTIVE.messages))
def test_damaged_messages_to_a_client_against_an_active_server(stage: int, data: bytes) -> None:
    fuzzing.tell_client(stage, data, "active")


LIGHT = fuzzing.RECORDED["lightsecagg"]


@settings(max_examples=300)
@given(st.integers(0, len(LIGHT.stored) - 1), damaged(LIGHT.messages))
def test_damaged_messages_to_a_client_of_lightsecagg(stage: int, data: bytes) -> None:
    fuzzing.tell_client(stage, data, "lightsecagg")


NOISY = fuzzing.RECORDED["correlated-noise"]


@settings(max_examples=300)
@given(st.integers(0, len(NOISY.stored) - 1), damaged(NOISY.messages))
def test_damaged_messages_to_a_client_with_correlated_noise(stage: int, data: bytes) -> None:
    fuzzing.tell_client(stage, data, "correlated-noise")


@settings(max_examples=150)
@given(st.integers(0, len(fuzzing.STORED) - 1), messages())
def test_other_messages_to_a_client(stage: int, message: object) -> None:
    fuzzing.tell_client(stage, encode(message))  # type: ignore[arg-type]


SERVER_MESSAGES = {
    name: [
        raw
        for stage in range(fuzzing.steps_of(name))
        for _, raw in fuzzing.server_at(stage, name)[1]
    ]
    for name in ("secagg+", "active", "none", "lightsecagg", "correlated-noise")
}


@pytest.mark.parametrize(
    "name", first(2, ["active", "lightsecagg", "secagg+", "none", "correlated-noise"])
)
@settings(max_examples=120)
@given(st.integers(0, 5), st.data())
def test_damaged_messages_to_a_server(name: str, sender: int, data: st.DataObject) -> None:
    stage = data.draw(st.integers(0, fuzzing.steps_of(name) - 1))
    fuzzing.tell_server(stage, data.draw(damaged(SERVER_MESSAGES[name])), sender, name)


@given(st.binary(max_size=300) | damaged(LIGHT.messages) | damaged(NOISY.messages))
def test_anything_to_the_codec(data: bytes) -> None:
    fuzzing.decode_anything(data)
