"""Tests that the privacy argument and the list of attacks name tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGES = TESTS.parent / "docs/explanation"
NAMED = re.compile(r"`([a-z_/0-9]*\.py)?::(test_[a-z_0-9]+)`")
STEPS = 12


@cache
def functions_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(
        one.name
        for one in ast.walk(tree)
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def missing(text: str) -> list[str]:
    """Return the tests that a text names and that are not there; `::name` is of the file before."""
    found, file = [], ""
    for path, name in NAMED.findall(text):
        file = path or file
        if not (TESTS / file).is_file() or name not in functions_of(TESTS / file):
            found.append(f"{file}::{name}")
    return found


@pytest.mark.parametrize("page", ["mathematics.md", "threat-model.md"])
def test_every_test_that_a_page_names_is_there(page: str) -> None:
    text = (PAGES / page).read_text(encoding="utf-8")
    assert len(NAMED.findall(text)) > 20
    assert missing(text) == []
    assert missing("`network/test_people.py::test_that_nobody_wrote`")


def test_every_step_of_the_argument_is_checked() -> None:
    """Test that each numbered step names a test, but for the one that needs none."""
    text = (PAGES / "mathematics.md").read_text(encoding="utf-8")
    section = text.split("## The promise of noise")[1].split("\n## ")[0]
    steps = re.split(r"\n\*\*([0-9]+)\. ", section)[1:]
    assert [int(number) for number in steps[::2]] == list(range(1, STEPS + 1))
    unchecked = [step[:20] for step in steps[1::2] if not NAMED.search(step)]
    assert unchecked == ["Post-processing.** A"]
