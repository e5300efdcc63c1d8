"""Tests of two ways to begin, each from an empty folder: only the lines of its page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import documented

PAGES = documented.ROOT / "docs" / "tutorials"
SECONDS = 600
"""Time limit; the pages promise ten minutes."""

pytestmark = pytest.mark.check


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    empty = tmp_path / "empty"
    empty.mkdir()
    return empty


def test_who_knows_implicit_and_pandas(folder: Path) -> None:
    pytest.importorskip("pandas")
    said = documented.run_script(documented.script_of(PAGES / "library.md"), folder, SECONDS)
    measured = {line.split()[0]: float(line.split()[1]) for line in said.splitlines() if _two(line)}
    assert measured["GFCF"] > measured["Popularity"] > 0
    assert "True" in said  # the loaded model recommends the same
    assert (folder / "my-model" / "model.safetensors").is_file()
    assert "read 200 of 200 whole histories" in said


def test_a_person(folder: Path) -> None:
    said = documented.run_script(documented.script_of(PAGES / "person.md"), folder, SECONDS)
    assert "because of" in said
    assert "http://127.0.0.1:" in said
    assert "This device takes part in nothing" in said
    exported = (folder / "mine.csv").read_text(encoding="utf-8")
    assert "118" in exported
    assert "0 interactions" in said
    assert b"Lighthouse" not in (folder / "me.db").read_bytes()


def test_a_person_with_an_export(folder: Path) -> None:
    page = PAGES.parent / "how-to" / "import.md"
    said = " ".join(documented.run_script(documented.script_of(page), folder, SECONDS).split())
    (shown,) = re.findall(r"```\n(An export.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert " ".join(shown.split()) in said
    assert "1 interaction of user me in mine.csv, 0 of them new" in said


def _two(line: str) -> bool:
    return line.startswith(("GFCF ", "Popularity "))
