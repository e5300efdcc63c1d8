"""Tests of ARCHITECTURE.md: its picture shows the real imports, and all names in it exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from test_layering import MODULES, ROOT, part_of, parts_used, tree_of

REPOSITORY = Path(__file__).parent.parent
TEXT = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
MOST_LINES = 200
ROOMS = {path.parent.name for path in ROOT.glob("*/__init__.py")}
ADDITIONS = "extra"
"""Room that the others find by entry points; all arrows to it are dotted."""

ELSEWHERE = {
    *(
        "Fraction",
        "Decimal",
        "math.isqrt",
        "math.comb",
        "np.power",
    ),
    *(f"privirec.{group}" for group in ("protocols", "carriers", "models", "programs")),
    *(f"privirec.{group}" for group in ("contributions", "mechanisms")),
    *("decimal", "math", "exp", "log", "erf", "cos", "sqrt", "ldexp", "frexp", "rint", "fsum"),
    *("pow", "none", "secagg"),
}
"""Names from Python, NumPy, an entry point and protocols."""

Arrows = set[tuple[str, str]]


def drawn(text: str, arrow: str) -> Arrows:
    """Return the arrows of the picture of rooms."""
    found = re.search(r"```mermaid\ngraph TD\n(.*?)```", text, flags=re.DOTALL)
    assert found
    return set(re.findall(rf"^  (\w+) {re.escape(arrow)} (\w+)$", found[1], flags=re.MULTILINE))


@cache
def imports() -> frozenset[tuple[str, str]]:
    """Return all imports between rooms, also those inside functions or by name."""
    return frozenset(
        (part_of(path), used)
        for path in MODULES
        for used in parts_used(path)
        if {part_of(path), used} <= ROOMS and part_of(path) != used
    )


def reduced(arrows: Arrows) -> Arrows:
    """Return the transitive reduction: an arrow goes if a longer path leads to the same room."""
    return {
        (start, end)
        for start, end in arrows
        if not any(leads_to(arrows, way, end) for from_, way in arrows if from_ == start != end)
    }


def leads_to(arrows: Arrows, start: str, end: str) -> bool:
    """Return True if at least one arrow leads from start to end."""
    return any(way == end or leads_to(arrows, way, end) for from_, way in arrows if from_ == start)


def test_the_picture_shows_the_imports() -> None:
    to_additions = {(start, end) for start, end in imports() if end == ADDITIONS}
    assert drawn(TEXT, "-.->") == to_additions
    assert drawn(TEXT, "-->") == reduced(set(imports()) - to_additions)


def test_a_reduction_keeps_what_does_not_follow() -> None:
    assert reduced({("a", "b"), ("b", "c"), ("a", "c")}) == {("a", "b"), ("b", "c")}
    assert reduced({("a", "c"), ("b", "c")}) == {("a", "c"), ("b", "c")}


def test_every_room_is_in_the_picture_and_in_the_table() -> None:
    assert {room for arrow in drawn(TEXT, "-->") for room in arrow} == ROOMS
    table = re.findall(r"^\| `(\w+)` \|.*\| `([\w/]+\.py)` \|$", TEXT, flags=re.MULTILINE)
    assert {room for room, _ in table} == ROOMS
    assert all(path.startswith(f"{room}/") for room, path in table)


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= MOST_LINES


def test_every_name_exists() -> None:
    running = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
    unknown = [name for name in re.findall(r"`([^`]+)`", running) if not exists(name)]
    assert not unknown


@pytest.mark.parametrize("name", ["RunSpecs", "runtime.nodes", "runtime/no.py", "nothing_like_it"])
def test_a_name_that_does_not_exist_is_noticed(name: str) -> None:
    assert not exists(name)


def exists(name: str) -> bool:
    """Return True for a file, module, class or constant of the repository, and for no name."""
    if name in ELSEWHERE or not re.fullmatch(r"[\w./]+", name) or name.startswith("."):
        return True
    if "/" in name or name.endswith((".toml", ".md")):
        places = (REPOSITORY / name, ROOT / name, *ROOT.rglob(name))
        return name == "policy.toml" or any(place.exists() for place in places)
    if name[0].isupper():
        return name in definitions()
    dotted = "/".join(name.split("."))
    return any(ROOT.rglob(f"{dotted}.py")) or any(ROOT.rglob(f"{dotted}/__init__.py"))


@cache
def definitions() -> set[str]:
    """Return the names of all classes and of all constants of modules."""
    return {name for path in MODULES for name in _defined(tree_of(path))}


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
