"""Tests of matching titles: what is equal, what is similar, and what is never taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privirec.device.matching import (
    SURE,
    UNSURE,
    How,
    Matcher,
    bare,
    normalised,
    similarity,
)

TITLES = {
    "1": "The Lighthouse",
    "2": "Night Train",
    "3": "Rocky II",
    "4": "Rocky III",
    "5": "Amélie (2001)",
    "6": "Dune (1984)",
    "7": "Dune (2021)",
    "8": "Spider-Man",
    "9": "Adele – Hello",
    "10": "Harry Potter and the Philosopher's Stone",
    "11": "Bohemian Rhapsody",
    "12": "The Garden of Words",
    "13": "Serial (Part 1)",
    "9780547773742": "A Wizard of Earthsea",
}
words = st.text("abcdefghij klmnoprstuvwyz0123", min_size=1, max_size=30)


@pytest.mark.parametrize(
    ("name", "by", "how", "item"),
    [
        ("the lighthouse", "", How.EXACT, "1"),
        ("Lighthouse, The", "", How.EXACT, "1"),
        ("NIGHT TRAIN!", "", How.EXACT, "2"),
        ("Rocky 2", "", How.EXACT, "3"),
        ("Amelie", "", How.EXACT, "5"),
        ("Dune (2021)", "", How.EXACT, "7"),
        ("Hello", "Adele", How.EXACT, "9"),
        ("Harry Potter & the Philosophers Stone", "", How.EXACT, "10"),
        ("Bohemian Rhapsody - Remastered 2011", "Queen", How.EXACT, "11"),
        ("Bohemian Rhapsody (Live Aid)", "Queen", How.EXACT, "11"),
        ("The Garden of Word", "", How.CLOSE, "12"),
        ("Nigth Train", "", How.UNSURE, "2"),
        ("Dune", "", How.UNSURE, "6"),
        ("Serial", "", How.UNSURE, "13"),
        *(
            (name, "", How.NONE, "")
            for name in ("Rocky IV", "Rocky", "Dune (2000)", "Serial (Part 2)")
        ),
        ("Spider-Man: Far from Home", "", How.NONE, ""),
        ("", "", How.NONE, ""),
        ("???", "", How.NONE, ""),
    ],
)
def test_titles_that_are_the_same_and_those_that_only_look_it(
    name: str, by: str, how: How, item: str
) -> None:
    found = Matcher(TITLES).match((name,), by)
    assert found.how is how, found
    assert found.items[:1] == ((item,) if item else ())


def test_an_id_goes_before_any_title_and_a_show_after_its_episode() -> None:
    matcher = Matcher(TITLES, ids=["bare-id"])
    assert matcher.match(("Night Train",), ids=("x", "9780547773742")).items == ("9780547773742",)
    assert matcher.match((), ids=("bare-id",)).how is How.EXACT
    assert matcher.match(("Night Train: Season 1: Pilot", "Night Train")).items == ("2",)
    assert Matcher({}).match(("Night Train",)).how is How.NONE


@given(st.dictionaries(st.integers(0, 50).map(str), words, max_size=12), words)
def test_nothing_below_the_threshold_is_ever_taken(titles: dict[str, str], name: str) -> None:
    found = Matcher(titles).match((name,))
    if found.how is How.EXACT:
        assert len(found.items) == 1
        assert bare(titles[found.items[0]]) == bare(name)
    if found.how is How.CLOSE:
        assert len(found.items) == 1
        assert similarity(bare(titles[found.items[0]]), bare(name)) == found.similarity >= SURE
    if found.how is How.UNSURE and found.similarity < 1:
        assert all(similarity(bare(titles[each]), bare(name)) >= UNSURE for each in found.items)
    if found.how is How.NONE:
        assert found.items == ()
        assert normalised(name) not in {normalised(each) for each in titles.values()} - {""}


@given(st.dictionaries(st.integers(0, 50).map(str), words, max_size=12), words)
def test_the_order_of_the_catalogue_does_not_matter(titles: dict[str, str], name: str) -> None:
    turned = dict(reversed(titles.items()))
    one, other = Matcher(titles).match((name,)), Matcher(turned).match((name,))
    assert (one.how, one.similarity) == (other.how, other.similarity)
    assert sorted(one.items) == sorted(other.items) or one.how is How.UNSURE


@given(words, words)
def test_similarity_is_symmetric_and_one_for_equal_titles(one: str, other: str) -> None:
    assert similarity(one, other) == similarity(other, one) <= 1
    assert similarity(one, one) == 1


def test_different_numbers_are_different_titles() -> None:
    assert similarity("season 1 of the long story", "season 2 of the long story") == 0
