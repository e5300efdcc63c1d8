"""Tests of the list of mutants: each entry fits the code. `make mutants` runs the mutants."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from anchors import Anchor, Stale, definitions, path_of

ROOT = Path(__file__).parent.parent.parent


def _runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants_run", Path(__file__).parent / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look the module up there
    spec.loader.exec_module(module)
    return module


RUN = _runner()
MUTANTS = RUN.read_list()


def test_there_are_enough_of_them_and_everywhere() -> None:
    modules = {mutant.anchor.module for mutant in MUTANTS}
    assert len(MUTANTS) >= 700
    for part in ("secagg", "runtime.node", "runtime.envelope", "privacy"):
        assert any(f"{module}.".startswith(f"privirec.{part}.") for module in modules), part


def test_every_mutant_has_its_place_and_its_tests() -> None:
    """Collect all errors at once: the list is long."""
    read = cache(lambda file: (ROOT / file).read_text(encoding="utf-8"))
    wrong = []
    for mutant in MUTANTS:
        try:
            tree = _module(mutant.anchor.resolve())
            before = _dumped(tree, mutant.anchor)
            mutant.anchor.apply(tree)
            compile(tree, mutant.anchor.module, "exec")
            if _dumped(tree, mutant.anchor) == before:
                wrong.append(f"{mutant.name}: it changes nothing")
        except (Stale, SyntaxError) as error:
            wrong.append(f"{mutant.name}: {error}")
        for test in mutant.tests:
            file, _, name = test.partition("::")
            if not re.search(rf"^def {name}\(" if name else "", read(file), re.MULTILINE):
                wrong.append(f"{mutant.name}: there is no {test}")
        if not mutant.tests and not mutant.equivalent:
            wrong.append(f"{mutant.name}: no test is to notice it, and it is not equivalent")
    assert not wrong


@pytest.mark.check
def test_a_mutant_does_not_depend_on_names_of_variables_nor_on_layout_nor_on_words() -> None:
    """Test that each mutant still changes the same code after local variables are renamed,
    docstrings and comments removed, messages reworded and the layout changed."""
    wrong = []
    for module, mutants in _by_module().items():
        plain = _module(module)
        other = _Rewritten(plain).visit(_module(module))
        rewritten = ast.unparse(ast.fix_missing_locations(other))
        for mutant in mutants:
            changed, expected = ast.parse(rewritten), _module(module)
            try:
                mutant.anchor.apply(changed)
                mutant.anchor.apply(expected)
            except Stale as error:
                wrong.append(f"{mutant.name}: {error}")
                continue
            # Only the changed functions: whole modules would take a minute.
            for tree in (changed, expected):
                tree.body = definitions(tree, mutant.anchor.name)
            expected = _Rewritten(plain).visit(expected)
            if _dumped(_Reworded().visit(changed)) != _dumped(expected):
                wrong.append(f"{mutant.name}: another place, with other names of variables")
    assert not wrong


def test_a_mutant_is_found_in_a_module_that_was_moved() -> None:
    wrong = []
    for mutant in MUTANTS:
        moved = replace(mutant.anchor, scope=f"privirec.moved.away:{mutant.anchor.name}")
        try:
            assert moved.resolve() == mutant.anchor.resolve()
        except Stale as error:
            wrong.append(f"{mutant.name}: {error}")
    assert not wrong


CODE = """
def check(told, limit):
    '''Check it.'''
    for one in told.all:
        if one.size > limit:
            raise ValueError(f"{one} is too large")
        if not one.name or one.odd:
            raise KeyError("no name")
        note(one, at=told.now, loud=True)
    return sum(one.size for one in told.all) + 1
"""


@pytest.mark.parametrize(
    ("operation", "pattern", "by", "expected"),
    [
        ("never", "_.size", "", "one.size > limit -> False"),
        ("never", "raise ValueError(...)", "", "one.size > limit -> False"),
        ("always", "_.odd", "", "not one.name or one.odd -> True"),
        ("never", "if a.size > b: ...", "", "one.size > limit -> False"),
        ("without", "_.odd", "", "not one.name or one.odd -> not one.name"),
        ("without", "loud=_", "", ", loud=True -> "),
        ("without", "_.now", "", "at=told.now, -> "),
        ("replace", "a.size > b", "a.size >= b", "one.size > limit -> one.size >= limit"),
        ("replace", "_ > it", "it + 1", "> limit -> > limit + 1"),
        ("replace", "note(..., at=it)", "0", "told.now -> 0"),
        ("replace", "note(a, ...)", "note(0, ...)", "note(one, -> note(0, "),
        ("replace", "sum(...)", "arg2", "sum(one.size for one in told.all) -> limit"),
        ("replace", "A + 1", "A", " + 1 -> "),
        ("replace", "note(...)", "break", "note(one, at=told.now, loud=True) -> break"),
        ("text", "too large", "small", "is too large -> is small"),
    ],
)
def test_each_operation(operation: str, pattern: str, by: str, expected: str) -> None:
    tree = ast.parse(CODE)
    Anchor("m:check", operation, pattern, by).apply(tree)
    old, _, new = expected.partition(" -> ")
    assert CODE.count(old) == 1
    assert _dumped(tree) == _dumped(ast.parse(CODE.replace(old, new)))


@pytest.mark.parametrize("pattern", ["note(...)", "note(a, ...)", "for a in _.all: ..."])
def test_a_statement_is_left_out(pattern: str) -> None:
    tree = ast.parse(CODE)
    Anchor("m:check", "drop", pattern).apply(tree)
    assert len(list(ast.walk(tree))) < len(list(ast.walk(ast.parse(CODE))))
    assert "note" not in ast.unparse(tree)
    compile(tree, "m", "exec")


@pytest.mark.parametrize(
    ("operation", "pattern", "nth"),
    [
        ("never", "_.gone", ""),  # nowhere
        ("replace", "_.size", ""),  # twice
        ("replace", "_.size", "1 of 3"),
        ("replace", "_.size", "3 of 2"),
        ("never", "_.odd", "1 of 1"),  # nothing to choose
        ("never", "_.now", ""),  # not in a condition
        ("never", "if", ""),  # no Python
    ],
)
def test_a_pattern_that_does_not_lead_to_one_place_is_stale(
    operation: str, pattern: str, nth: str
) -> None:
    tree = ast.parse(CODE)
    with pytest.raises(Stale):
        Anchor("m:check", operation, pattern, "0", nth).apply(tree)
    assert _dumped(tree) == _dumped(ast.parse(CODE))


def _by_module() -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = defaultdict(list)
    for mutant in MUTANTS:
        found[mutant.anchor.resolve()].append(mutant)
    return found


def _module(module: str) -> ast.Module:
    return ast.parse(path_of(module).read_text(encoding="utf-8"))


def _dumped(tree: ast.Module, anchor: Anchor | None = None) -> str:
    """Return a dump that is equal for equal trees, of one function if one is given."""
    nodes = definitions(tree, anchor.name) if anchor else tree.body
    return "\n".join(ast.dump(node) for node in nodes)


class _Reworded(ast.NodeTransformer):
    """Reword all messages of raised errors."""

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str) and " " in part.value:
                part.value = "other words"
        return node


class _Rewritten(_Reworded):
    """Rename local variables too, and remove docstrings."""

    SCOPES = (
        *(ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda),
        *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
    )

    def __init__(self, plain: ast.Module) -> None:
        # By the place in the original code: names that a mutation adds are not its local variables.
        self._known = {
            self._place(node): self._bound(node)
            for node in ast.walk(plain)
            if isinstance(node, self.SCOPES)
        }
        self._local: set[str] = set()

    @staticmethod
    def _place(node: Any) -> tuple[Any, ...]:
        return type(node), node.lineno, node.col_offset

    @staticmethod
    def _bound(scope: ast.AST) -> set[str]:
        found: set[str | None] = set()
        for node in ast.walk(scope):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                found.add(node.id)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
            elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
                found.add(node.name)
        shared = [node.names for node in ast.walk(scope) if isinstance(node, ast.Global)]
        kept = {"self", "cls", "_", *(name for names in shared for name in names)}
        return {name for name in found if name and name not in kept}

    def visit(self, node: ast.AST) -> Any:
        before = self._local
        if isinstance(node, self.SCOPES):
            self._local = before | self._known.get(self._place(node), set())
        for field in ("id", "arg", "name"):
            variables = (ast.Name, ast.arg, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
            if isinstance(node, variables) and getattr(node, field, None) in self._local:
                setattr(node, field, f"{getattr(node, field)}_renamed")
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_docstring(one)]  # type: ignore[attr-defined]
            if not node.body and not isinstance(node, ast.Module):  # type: ignore[attr-defined]
                node.body.append(ast.Pass())  # type: ignore[attr-defined]
        found = super().visit(node)
        self._local = before
        return found

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        super().visit_Raise(node)
        return self.generic_visit(node)


def _is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
