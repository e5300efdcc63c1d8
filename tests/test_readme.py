"""What the README shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import documented

ROOT = Path(__file__).parent.parent


def test_python_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [text for _, text in documented.blocks(ROOT / "README.md")]
    assert len(blocks) >= 2
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)  # noqa: S102 - our own README
    assert len(names["ids"]) == 10  # type: ignore[arg-type]
    assert (tmp_path / "my-model" / "model.safetensors").is_file()


def test_the_two_commands_are_targets_and_ci_calls_the_second() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert {"demo", "test"} <= set(targets)
    assert "make test" in (ROOT / ".ci" / "run").read_text()
