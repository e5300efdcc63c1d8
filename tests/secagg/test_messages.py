"""Tests of the codec: round trips, and nothing but MalformedMessage for invalid input."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privirec.secagg.bell2020.messages import (
    VERSION,
    Confirm,
    Confirmed,
    Deliver,
    SealedShares,
    decode,
)
from privirec.secagg.errors import (
    MalformedMessage,
    OversizedMessage,
    TruncatedMessage,
    WrongVersion,
)
from privirec.secagg.messages import (
    MAX_MESSAGE_BYTES,
    Announce,
    ProtocolMessage,
    decoder,
    encode,
)
from privirec.secagg.parameters import Statement
from privirec.secagg.ring import VectorShape

from .strategies import messages


@given(messages())
def test_messages_come_back(message: ProtocolMessage) -> None:
    assert decode(encode(message)) == message


@settings(max_examples=400)
@given(st.binary(max_size=400), st.integers(1, 10))
def test_noise_is_malformed_and_nothing_else(noise: bytes, kind: int) -> None:
    for data in (noise, bytes([VERSION, kind]) + noise):
        try:
            message = decode(data)
        except MalformedMessage:
            continue
        assert encode(message) == data


@settings(max_examples=400)
@given(messages(), st.data())
def test_damaged_messages_are_malformed_or_canonical(
    message: ProtocolMessage, data: st.DataObject
) -> None:
    raw = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place] = data.draw(st.integers(0, 255))
    try:
        read = decode(bytes(raw))
    except MalformedMessage:
        return
    assert encode(read) == bytes(raw)


@given(messages(), st.data())
def test_truncated_messages(message: ProtocolMessage, data: st.DataObject) -> None:
    raw = encode(message)
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    if (raw[1] == 6 and len(cut) >= 34) or (raw[1] == 7 and len(cut) >= 26):
        # Blocks of entries and maps of survivors have no length field; sessions check it.
        assert encode(decode(cut)) == cut
    else:
        with pytest.raises(TruncatedMessage):
            decode(cut)


@given(messages())
def test_trailing_bytes(message: ProtocolMessage) -> None:
    raw = encode(message)
    if raw[1] not in (6, 7):
        with pytest.raises(OversizedMessage):
            decode(raw + b"\0")


@given(messages(), st.integers(0, 255))
def test_other_versions(message: ProtocolMessage, version: int) -> None:
    raw = bytes([version]) + encode(message)[1:]
    if version != VERSION:
        with pytest.raises(WrongVersion):
            decode(raw)


def test_a_message_has_a_largest_size() -> None:
    with pytest.raises(OversizedMessage):
        decode(b"\2\6" + bytes(MAX_MESSAGE_BYTES))


def test_counts_larger_than_the_message_do_not_allocate() -> None:
    raw = bytearray(encode(Confirmed(b"r" * 16, 1, 1, ())))
    raw[-4:] = b"\xff" * 4
    with pytest.raises(TruncatedMessage):
        decode(bytes(raw))


def test_lists_must_ascend() -> None:
    for ids in ((2, 1), (1, 1)):
        shares = tuple(SealedShares(sender, bytes(12), b"sealed") for sender in ids)
        raw = encode(Deliver(b"r" * 16, 1, shares))
        with pytest.raises(MalformedMessage):
            decode(raw)


def test_survivors_are_confirmed_in_the_first_sum_alone() -> None:
    for message in (Confirm(b"r" * 16, 2, 1, bytes(64)), Confirmed(b"r" * 16, 2, 1, ())):
        with pytest.raises(MalformedMessage, match="first sum"):
            decode(encode(message))


@given(messages(), st.integers(0, 2**32 - 1))
def test_only_messages_of_a_sum_have_a_round_and_it_is_one_there_can_be(
    message: ProtocolMessage, number: int
) -> None:
    for other in (number, 0, 1, 4096, 4097):
        raw = bytearray(encode(message))
        raw[18:22] = other.to_bytes(4, "big")
        most = 1 if isinstance(message, Confirm | Confirmed) else 4096
        if (1 <= other <= most) if message.of_sum else other == 0:
            assert decode(bytes(raw)).sum_number == other
        else:
            with pytest.raises(MalformedMessage):
                decode(bytes(raw))


@given(messages())
def test_only_the_announcement_is_for_everybody(message: ProtocolMessage) -> None:
    raw = bytearray(encode(message))
    raw[22:26] = (7 if isinstance(message, Announce) else 2**32 - 1).to_bytes(4, "big")
    with pytest.raises(MalformedMessage):
        decode(bytes(raw))


def test_a_decoder_knows_its_own_messages_alone() -> None:
    said = Confirm(b"r" * 16, 1, 1, bytes(64))
    assert decoder(VERSION, Confirm)(encode(said)) == said
    with pytest.raises(MalformedMessage, match="unknown kind"):
        decoder(VERSION, Announce)(encode(said))


@pytest.mark.parametrize(
    ("place", "size", "values"),
    [
        (27, 1, (2, 255)),  # kind of server
        (32, 4, (10**6 + 1,)),  # corrupt share
        (36, 4, (10**6 + 1,)),  # dropped share
        (48, 2, (0, 4097)),  # sums
        (50, 4, (0, 12, 2**22 + 8)),  # entries in a block
    ],
)
def test_announcements_that_cannot_be(place: int, size: int, values: tuple[int, ...]) -> None:
    shape = VectorShape(5, 8, 1)
    good = Announce(bytes(16), 1, VERSION, Statement.of(9, 0.1, 0.1), 3, 8, bytes(32), (shape,))
    raw = bytearray(encode(good))
    assert decode(bytes(raw)) == good
    for value in values:
        raw[place : place + size] = value.to_bytes(size, "big")
        with pytest.raises(MalformedMessage, match=r"kind of server|share of clients|sums|entries"):
            decode(bytes(raw))
