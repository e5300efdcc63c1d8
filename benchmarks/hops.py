"""Count the functions that one line of a person's history passes on its way to recommendations.

    python benchmarks/hops.py
    python benchmarks/hops.py --import-command "store import"    # before commands were renamed

Two commands run in this process: `privirec device import` of a file, and `privirec recommend` with
`--include-seen`, so that the item of the line is in the list. A function of PriviRec counts once if
an argument, its result or a value it yields holds the item: as text, or as its column in the model.
Methods do not count for what their object holds; modules, command-line parsing and validation of
settings do not count.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import runpy
import sys
import tempfile
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import scipy.sparse as sp

NEEDLE, COLUMN, ITEMS = "the-item-of-this-line", 1777, 2000
SKIPPED = ("<module>", "<lambda>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")
MACHINERY = ("groups.py", "every.py", "main.py", "narrow_help.py", "ending.py", "light.py")
"""Modules that parse the command line and end commands."""


def holds(value: Any, depth: int = 4) -> bool:
    """Return True if a value is, or contains, the item or its column."""
    if isinstance(value, str):
        return NEEDLE in value
    if isinstance(value, bytes):
        return NEEDLE.encode() in value
    if isinstance(value, bool) or value is None or isinstance(value, type) or not depth:
        return False
    if isinstance(value, int | np.integer):
        return int(value) == COLUMN
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "iu":
            return value.size <= ITEMS // 2 and COLUMN in value  # not the whole catalogue
        return value.dtype.kind in "UO" and value.size <= ITEMS // 2 and NEEDLE in value
    if sp.issparse(value):
        return value.nnz <= ITEMS // 2 and COLUMN in value.indices
    if isinstance(value, dict):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = list(value)
    elif hasattr(value, "__dict__"):
        parts = list(vars(value).values())
    else:
        return False
    return len(parts) <= ITEMS // 2 and any(holds(part, depth - 1) for part in parts)


class Hops:
    """Functions that held the item, in the order in which they first did."""

    def __init__(self, package: str) -> None:
        self.found: dict[CodeType, str] = {}
        self._package = package

    def __call__(self, frame: FrameType, event: str, given: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or code in self.found:
            return
        path = Path(code.co_filename)
        if not code.co_filename.startswith(self._package) or code.co_name in SKIPPED:
            return
        if path.name in MACHINERY or "pydantic" in code.co_name:
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        values = [frame.f_locals.get(name) for name in names if name not in ("self", "cls")]
        if any(holds(value) for value in (values if event == "call" else [given])):
            inside = path.relative_to(self._package).with_suffix("")
            self.found[code] = f"{'.'.join(inside.parts)}:{code.co_qualname}"


def run(arguments: list[str], hops: Hops | None) -> None:
    sys.argv = ["privirec", *arguments]
    sys.setprofile(hops)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_module("privirec", run_name="__main__")
    except SystemExit as ended:
        if ended.code:
            raise
    finally:
        sys.setprofile(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--import-command", default="device import", help="the command's words")
    parser.add_argument("--list", action="store_true", help="name the functions")
    asked = parser.parse_args()

    import privirec
    from privirec import GFCF
    from privirec.data.interactions import Interactions

    rng = np.random.default_rng(0)
    rows = np.repeat(np.arange(300), 20)
    columns = rng.integers(0, ITEMS, rows.size)
    names = np.array([NEEDLE if item == COLUMN else f"item-{item}" for item in range(ITEMS)])
    train = Interactions.from_indices(rows, columns, np.arange(300).astype(str), names)
    hops = Hops(str(Path(privirec.__file__).parent))
    with tempfile.TemporaryDirectory() as inside:
        folder = Path(inside)
        GFCF(rank=8).fit(train).save(folder / "model")
        (folder / "me.csv").write_text(f"item\nitem-1\n{NEEDLE}\nitem-3\n")
        importing = [*asked.import_command.split(), str(folder / "me.csv"), "--store"]
        recommending = ["recommend", "--include-seen", "-n", str(ITEMS // 4), "--artifact"]
        recommending += [str(folder / "model"), "--store"]
        for command in (importing, recommending):  # kernels are compiled before they are watched
            run([*command, str(folder / "first.db")], None)
        run([*importing, str(folder / "me.db")], hops)
        imported = len(hops.found)
        run([*recommending, str(folder / "me.db")], hops)
    if asked.list:
        for name in hops.found.values():
            print(name)
    total = len(hops.found)
    print(f"{total} functions: {imported} to import the line, {total - imported} to recommend")


if __name__ == "__main__":
    main()
