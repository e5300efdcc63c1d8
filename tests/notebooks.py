"""Run a notebook without Jupyter: its code cells one after the other, in one namespace.

`python tests/notebooks.py docs/tutorials/notebook.ipynb` runs it and writes the output
of its cells into it.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

Notebook = dict[str, Any]


def read(path: Path) -> Notebook:
    return json.loads(path.read_text(encoding="utf-8"))


def shown_by(notebook: Notebook, folder: Path) -> list[str]:
    """Run all code cells in a folder; return the output of each, including the value of its last
    line."""
    names: dict[str, Any] = {"__name__": "__main__"}
    before = Path.cwd()
    os.chdir(folder)
    try:
        return [_run("".join(cell["source"]), names) for cell in code_cells(notebook)]
    finally:
        os.chdir(before)


def code_cells(notebook: Notebook) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def stored(cell: dict[str, Any]) -> str:
    """Return the output that is stored in a cell."""
    return "".join("".join(output["text"]) for output in cell["outputs"])


def _run(source: str, names: dict[str, Any]) -> str:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)  # noqa: S102 - our own notebook
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307
            if value is not None:
                print(repr(value))
    return printed.getvalue()


def write(path: Path) -> None:
    """Run a notebook and store the output of its cells."""
    notebook = read(path)
    with tempfile.TemporaryDirectory() as folder:
        shown = shown_by(notebook, Path(folder))
    for number, (cell, text) in enumerate(zip(code_cells(notebook), shown, strict=True), start=1):
        cell["execution_count"] = number
        stream = {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
        cell["outputs"] = [stream] if text else []
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
