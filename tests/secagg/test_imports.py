"""Tests of imports: secure aggregation uses only errors, noise and itself."""

from __future__ import annotations

import ast
from pathlib import Path

import privirec.secagg

ALLOWED = ("privirec.compiled", "privirec.errors", "privirec.federated.dp", "privirec.secagg")


def test_secagg_imports_nothing_else_of_the_package() -> None:
    files = sorted(Path(privirec.secagg.__file__).parent.glob("**/*.py"))
    assert len(files) > 10
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, file
                names = [node.module or ""]
            else:
                continue
            for name in names:
                if name.split(".")[0] == "privirec":
                    assert name.startswith(ALLOWED), f"{file.name} imports {name}"
