"""Tests of bit maps of participants against sets of clients, byte by byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privirec.secagg.errors import MalformedMessage
from privirec.secagg.keys import Roster
from privirec.secagg.participants import (
    check_map,
    is_in,
    is_subset,
    mapped,
    one_copy,
    read_participants,
    write_participants,
)

ids = st.sets(st.integers(0, 2**32 - 2), min_size=1, max_size=40)


@given(ids, st.data())
def test_maps_are_sets(everybody: set[int], data: st.DataObject) -> None:
    roster = Roster(dict.fromkeys(everybody, bytes(32)))
    some = st.sets(st.sampled_from(sorted(everybody)))
    first, second = data.draw(some), data.draw(some)
    one, other = (write_participants(each, roster) for each in (first, second))
    check_map(one, roster)
    assert read_participants(one, roster).tolist() == sorted(first)
    assert mapped(one) == len(first)
    assert is_subset(one, other) == (first <= second)
    assert {client for client in everybody if is_in(one, client, roster)} == first
    assert one_copy(bytes(bytearray(one))) is one_copy(bytes(bytearray(one)))


def test_maps_that_do_not_fit_are_refused() -> None:
    roster = Roster(dict.fromkeys(range(10), bytes(32)))
    for bad in (b"", b"\x01", b"\x01\x00\x00", b"\x00\x04", b"\x00\x80"):
        with pytest.raises(MalformedMessage, match="does not fit the roster"):
            check_map(bad, roster)
    check_map(b"\xff\x03", roster)
    check_map(b"\xff", Roster(dict.fromkeys(range(8), bytes(32))))
