"""Tests of the tutorial: it runs, and its stored output is what it prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import notebooks

TUTORIAL = Path(__file__).parent.parent / "docs" / "tutorials" / "notebook.ipynb"


def test_the_tutorial_runs(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    notebook = notebooks.read(TUTORIAL)
    shown = notebooks.shown_by(notebook, tmp_path)
    assert len(shown) > 10
    for cell, now in zip(notebooks.code_cells(notebook), shown, strict=True):
        # Figures may differ in their last digits between machines; words may not.
        assert _words(now) == _words(notebooks.stored(cell)), "".join(cell["source"])


def _words(text: str) -> list[str]:
    return re.sub(r"[-+]?\d[\d.,e%-]*", "", text).split()
