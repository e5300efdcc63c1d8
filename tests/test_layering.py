"""Tests of imports between parts of the package: one direction, no unpickling, no connections."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import privirec

ROOT = Path(privirec.__file__).parent

# Parts that a part may use besides itself, `version` and `compiled`. A new part needs a line here.
ALLOWED = {
    "errors": set(),
    "compiled": set(),
    "version": set(),
    "codec": set(),
    "durable": {"errors", "codec"},
    "threads": {"errors"},
    "registry": {"errors"},
    "progress": set(),
    "data": {"errors", "durable", "progress"},
    "rows": {"data", "errors", "durable"},
    "filters": {"data", "errors"},
    "models": {"filters", "data", "errors", "durable", "registry"},
    "device": {"models", "filters", "data", "errors", "durable"},
    "evaluation": {"filters", "data", "errors", "threads"},
    "federated": {"evaluation", "filters", "data", "errors", "codec", "registry"},
    "secagg": {"errors"},
    "privacy": {"federated", "secagg", "filters", "data", "errors"},
}
ALLOWED["runtime"] = {*ALLOWED}
ALLOWED["private"] = {"runtime", "federated", "privacy", "models", "filters", "data", "errors"}
ALLOWED["auto"] = {"evaluation", "models", "filters", "data", "errors"}
LIBRARY = set(ALLOWED)
ALLOWED |= {
    "__init__": LIBRARY - {"runtime"},
    "experiments": LIBRARY - {"private"},
    "app": LIBRARY | {"experiments"},
    "__main__": {"app"},
    # Additions; the other parts find them by the entry points of the installed package.
    "extra": LIBRARY - {"private"},
}

# Parts that compute: only data/download, the runtime and the app talk to a network.
SILENT = {
    *("filters", "models", "device", "evaluation", "federated", "secagg", "privacy"),
    *("experiments", "rows", "progress", "private", "auto"),
}
NETWORK = {
    "socket",
    "ssl",
    "http",
    "urllib",
    "requests",
    "grpc",
    "flwr",
    "asyncio",
    "multiprocessing",
}
RUNS_WHAT_IT_READS = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
}

MODULES = sorted(ROOT.rglob("*.py"))


def part_of(path: Path) -> str:
    """Return the part of the package that a module belongs to: its folder, or its own name."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> Iterator[str]:
    """Yield the dotted names of all imports, also of those inside functions.

    A string that is the dotted name of a module counts too: code may import it by that name.
    """
    package = ["privirec", *path.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and names_a_module(node.value):
            yield node.value


def names_a_module(value: object) -> bool:
    """Return True for a string that may name a module of a part; loggers have other names."""
    if not isinstance(value, str) or not re.fullmatch(r"privirec(\.[a-z_0-9]+)+", value):
        return False
    return value.split(".")[1] in ALLOWED


def parts_used(path: Path) -> set[str]:
    own = [name.split(".") for name in imported(path)]
    return {name[1] for name in own if name[0] == "privirec" and len(name) > 1} - {"__version__"}


def wrong_arrows(path: Path) -> str:
    part = part_of(path)
    if part not in ALLOWED:
        return f"{part} has no place in the layering: give it one here"
    wrong = parts_used(path) - ALLOWED[part] - {part, "version", "compiled"}
    return f"{part} must not import {sorted(wrong)}" if wrong else ""


def what_it_runs(path: Path) -> str:
    found = {name.split(".")[0] for name in imported(path)} & RUNS_WHAT_IT_READS
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found |= {node.func.id} & {"eval", "exec", "compile", "__import__"}
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            given = node.value
            if not isinstance(given, ast.Constant) or given.value is not False:
                found.add("allow_pickle")
    return f"uses {sorted(found)}" if found else ""


def network_it_knows(path: Path) -> str:
    if part_of(path) not in SILENT:
        return ""
    # urllib.parse only splits addresses.
    names = {name for name in imported(path) if not name.startswith("urllib.parse.")}
    found = {name.split(".")[0] for name in names} & NETWORK
    return f"{part_of(path)} must not import {sorted(found)}" if found else ""


def name_of(path: Path) -> str:
    """Return the dotted name of a module; a package is its `__init__`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(["privirec", *parts]).removesuffix(".__init__")


def modules_used() -> dict[str, set[str]]:
    """Return the modules that each module imports at any time, packages on the way included.

    A module's own packages are left out: they are imported before it.
    """
    known = {name_of(path) for path in MODULES}
    found: dict[str, set[str]] = {}
    for path in MODULES:
        own = name_of(path)
        used = set()
        for name in imported(path):
            parts = name.split(".")
            chain = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
            reached = [one for one in chain if one in known]
            used |= {one for one in reached[:-1] if not f"{own}.".startswith(f"{one}.")}
            used |= {*reached[-1:]}
        found[own] = used - {own}
    return found


def circles(uses: dict[str, set[str]]) -> list[tuple[str, ...]]:
    """Return the sets of modules that all reach each other by imports."""

    @cache
    def reached_from(start: str) -> frozenset[str]:
        seen: set[str] = set()
        ahead = [*uses[start]]
        while ahead:
            if (name := ahead.pop()) not in seen:
                seen.add(name)
                ahead += uses[name]
        return frozenset(seen)

    own = {name: {one for one in reached_from(name) if name in reached_from(one)} for name in uses}
    return sorted({tuple(sorted(circle)) for circle in own.values() if circle})


def complaints(rule: Callable[[Path], str]) -> list[str]:
    """Return a message for every module that breaks a rule."""
    return [f"{path.relative_to(ROOT)}: {said}" for path in MODULES if (said := rule(path))]


def test_arrows_point_one_way() -> None:
    assert not complaints(wrong_arrows)


def test_nothing_runs_what_it_reads() -> None:
    assert not complaints(what_it_runs)


def test_only_carriers_know_the_network() -> None:
    assert not complaints(network_it_knows)


def test_the_allowed_arrows_have_no_circle() -> None:
    done: set[str] = set()
    while len(done) < len(ALLOWED):
        ready = {part for part, uses in ALLOWED.items() if part not in done and uses <= done}
        assert ready, f"a circle among {sorted(set(ALLOWED) - done)}"
        done |= ready


def test_modules_import_each_other_in_no_circle() -> None:
    assert not circles(modules_used())


def test_circles_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test late imports, strings, and packages on the way to a module."""
    folder = tmp_path / "data"
    folder.mkdir()
    files = {
        "__init__.py": "",
        "late.py": "def f():\n    from privirec.data import named\n",
        "named.py": "import_module('privirec.data.late')\n",
        "inside.py": "from privirec.filters import eigen\n",
        "apart.py": "from privirec.data import late\n",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    (tmp_path / "filters").mkdir()
    (tmp_path / "filters" / "__init__.py").write_text("from privirec.data import inside\n")
    (tmp_path / "filters" / "eigen.py").write_text("")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    monkeypatch.setattr(sys.modules[__name__], "MODULES", sorted(tmp_path.rglob("*.py")))
    assert circles(modules_used()) == [
        ("privirec.data.inside", "privirec.filters"),
        ("privirec.data.late", "privirec.data.named"),
    ]


def test_the_reader_of_imports_sees_all_forms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test that the tests above can fail."""
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    path = tmp_path / "data" / "spy.py"
    path.parent.mkdir()
    path.write_text(
        "import privirec.app.cli.main\n"
        "from privirec import runtime as r\n"
        "from ..models import base\n"
        "from .. import secagg\n"
        "from . import text\n"
        "def f():\n    from privirec.filters.eigen import power_method\n"
        "import numpy, pickle as p\n"
        "import_module('privirec.extra.flower')\n"
    )
    assert parts_used(path) == {"app", "runtime", "models", "secagg", "data", "filters", "extra"}
    assert "pickle" in set(imported(path))
    assert wrong_arrows(path).startswith("data must not import")
    assert what_it_runs(path) == "uses ['pickle']"
    monkeypatch.setattr(sys.modules[__name__], "MODULES", [path])
    assert len(complaints(wrong_arrows)) == len(complaints(what_it_runs)) == 1
    assert not complaints(network_it_knows)
    for text, said in (
        ("f(allow_pickle=x)", "allow_pickle"),
        ("f(allow_pickle=True)", "allow_pickle"),
        ("eval('1')", "eval"),
    ):
        path = tmp_path / f"{len(text)}.py"
        path.write_text(text)
        assert what_it_runs(path) == f"uses ['{said}']"
    speaks = tmp_path / "filters" / "speaks.py"
    speaks.parent.mkdir()
    speaks.write_text("import socket\nfrom urllib.parse import quote\n")
    assert network_it_knows(speaks) == "filters must not import ['socket']"


def test_importing_everything_opens_no_connection() -> None:
    names = [name_of(path) for path in MODULES if path.name != "__main__.py"]
    script = f"""
import importlib, sys

def watch(event, arguments):
    if event.startswith("socket."):
        sys.stderr.write(f"{{event}} {{arguments}}\\n")
        raise SystemExit(9)

sys.addaudithook(watch)
for name in {names!r}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "flwr":  # an extra that need not be here
            raise
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
