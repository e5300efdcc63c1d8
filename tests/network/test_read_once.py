"""Tests that a client parses a run's plan and reads its histories only once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from privirec.federated.programs import program_of
from privirec.runtime import histories, run_plan
from privirec.runtime.carrier import carry
from privirec.runtime.coordinator import Coordinator, Stage
from privirec.runtime.run_plan import RunPlan

from .chaos import Federation
from .memory import MemoryCarrier


def test_plans_and_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation, counts = Federation(tmp_path), Counter[str]()
    parse, read = RunPlan.parse, histories.read_interactions

    def parsed(text: bytes) -> RunPlan:
        counts["plans"] += 1
        return parse(text)

    def derived(*more: Any) -> Any:
        counts["programs"] += 1
        return program_of(*more)

    def read_file(path: Path) -> Any:
        counts["files"] += 1
        return read(path)

    monkeypatch.setattr(RunPlan, "parse", parsed)
    monkeypatch.setattr(run_plan, "program_of", derived)
    monkeypatch.setattr(histories, "read_interactions", read_file)
    monkeypatch.setattr(histories, "COARSEST_TIME", 0)
    nodes = {}
    for client in range(6):
        part, file = federation.rows(client), tmp_path / f"{client}.csv"
        rows, columns = part.matrix.nonzero()
        lines = [
            f"{part.user_ids[row]},{part.item_ids[column]}"
            for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
        ]
        file.write_text("\n".join(["user,item", *lines]) + "\n", encoding="utf-8")
        nodes[client] = federation.node(client, histories=histories.FromFile(file))
    server = federation.server()

    def publish(done: Coordinator) -> Path:
        assert done.components is not None
        return federation.artifact(done.components)

    carry(server, MemoryCarrier({c: one.answer for c, one in nodes.items()}), publish)
    assert server.stage is Stage.DONE, server.reason
    both_sides = len(nodes) + 1
    # The server looks at the sizes of its plan before it records the plan and reads it back.
    assert counts == {"plans": both_sides, "programs": both_sides + 1, "files": len(nodes)}
