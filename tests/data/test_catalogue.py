"""Tests of item lookup by id, without a dictionary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privirec.data.catalogue import Catalogue, read_catalogue, write_catalogue
from privirec.data.ids import AT_ONCE

NUMBERS = st.lists(st.integers(0, 50), unique=True)
NAMES = st.lists(st.text("ab7", min_size=1, max_size=3), unique=True)


@given(NUMBERS | NAMES | NUMBERS.map(sorted) | NAMES.map(sorted))
def test_columns_are_those_of_a_dictionary(ids: list[object]) -> None:
    found = Catalogue(np.array(ids, None if ids else str))
    wanted = [str(item) for item in ids] + ["99", "b", "a7a", "-1", "07"]
    places = {str(item): column for column, item in enumerate(ids)}
    assert found.columns(wanted).tolist() == [places.get(name, -1) for name in wanted]
    assert not found.repeats


@given(st.lists(st.integers(0, 5), min_size=1))
def test_an_id_that_is_there_twice_is_noticed(ids: list[int]) -> None:
    assert Catalogue(ids).repeats == (len(set(ids)) < len(ids))


@pytest.mark.parametrize("name", ["-1", "-0", "+1", "07", "1_0", "\u0663", " 1", "9" * 19, "1.0"])
def test_what_is_not_written_as_a_number_is_a_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "c").write_text(f"1\n{name}\n", encoding="utf-8")
    found = read_catalogue(tmp_path / "c")
    assert found.item_ids.tolist() == ["1", name]
    assert found.columns(["1", name, "2"]).tolist() == [0, 1, -1]
    assert Catalogue([1, 2]).columns([name]).tolist() == [-1]


@pytest.mark.parametrize("last", [["x"], []])
def test_long_catalogues_are_read_in_blocks(tmp_path: Path, last: list[str]) -> None:
    """Test that a single name at the end turns all earlier numbers into names."""
    ids: list[object] = [*range(2 * AT_ONCE + 5), *last]
    write_catalogue(tmp_path / "c", Catalogue([str(each) for each in ids]))
    found = read_catalogue(tmp_path / "c")
    assert found.item_ids.dtype.kind == ("U" if last else "i")
    assert list(map(str, found.item_ids.tolist())) == list(map(str, ids))
    assert found.fingerprint == Catalogue(list(map(str, ids))).fingerprint
