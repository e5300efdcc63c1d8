"""Find the place of a mutant in the syntax tree of the code, and change it there.

An anchor names a function (`in`) and an operation in it. A pattern gives the place of the
operation: Python code that must occur in the function. Names of local variables, layout, comments
and messages do not matter.

    never      the condition in which the pattern occurs, or that of the `if` whose body has the
               statement (`raise Stale(...)`), becomes False
    always     ... becomes True
    drop       the statement, or the `except` clause, in which the pattern occurs is left out; a
               pattern of several statements: all of them
    without    the operand of `and` or `or`, the argument, the element or the item of a dictionary
               in which the pattern occurs is left out; `name=_` is an argument by its keyword
    replace    the pattern, an expression or statements, becomes `by`
    text       these characters, in a string, become `by`

In a pattern

    a, b       one letter: a local variable, the same one wherever the letter stands
    A, B       one large letter: any expression, the same one wherever the letter stands
    _          any expression
    ...        any number of arguments, elements or statements; further keywords too
    **_        further items of a dictionary
    it         any expression: the part that `by` replaces, if not all of the pattern
    arg1       in `by`: the first parameter of the function that is not `self` or `cls`

In `by`, letters, `it` and `...` (in their order) stand for the code that they matched in the
pattern. Everything else is literal: functions, attributes, keywords, constants. A pattern must
match exactly one place; if it matches several, `nth = "2 of 3"` selects one.

`in` is `module:qualified name`: a function, a method, a class, or a name assigned in a module or a
class. A nested function is part of the outer one. If the module no longer exists or no longer has
the name, the anchor refers to the only module of the package that has the name and that it fits.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SRC = Path(__file__).resolve().parent.parent.parent / "src"
OPERATIONS = ("never", "always", "drop", "without", "replace", "text")
WITH_BY = ("replace", "text")

Bound = dict[str, Any]
Place = tuple[ast.AST, str, int | None]
"""A node's parent, the field that holds it, and the index in the field if that is a list."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_VARIABLES = {
    ast.Name: "id",
    ast.arg: "arg",
    ast.ExceptHandler: "name",
    ast.MatchAs: "name",
    ast.MatchStar: "name",
}
"""Fields that hold the name of a local variable as a string."""
_IGNORED = ("ctx", "kind", "type_comment", "type_ignores")
_ANNOTATIONS = ("annotation", "returns")
"""Fields that match anything if they are empty in the pattern."""
_CONDITIONS = {(ast.If, "test"), (ast.While, "test"), (ast.IfExp, "test"), (ast.Assert, "test")}
_CONDITIONS |= {(ast.comprehension, "ifs"), (ast.match_case, "guard")}
_PARTS = {(ast.BoolOp, "values"), (ast.Call, "args"), (ast.Call, "keywords"), (ast.Dict, "keys")}
_PARTS |= {(ast.Dict, "values"), (ast.Tuple, "elts"), (ast.List, "elts"), (ast.Set, "elts")}
_PARTS |= {(ast.comprehension, "ifs"), (ast.ClassDef, "bases")}
_PARTS |= {(kind, "decorator_list") for kind in (*_FUNCTIONS, ast.ClassDef)}


class Stale(Exception):
    """Error that says why there is no unique place for a change."""


@dataclass(frozen=True)
class Anchor:
    """One change of one function."""

    scope: str
    operation: str
    pattern: str
    by: str = ""
    nth: str = ""

    @property
    def module(self) -> str:
        return self.scope.partition(":")[0]

    @property
    def name(self) -> str:
        return self.scope.partition(":")[2]

    def resolve(self) -> str:
        """Return the module that contains the change, which may differ from the named one."""
        if path_of(self.module).exists() and definitions(_parsed(self.module), self.name):
            return self.module
        holders = modules_with(self.name)
        if len(holders) > 1:
            holders = [module for module in holders if self._fits(module)]
        if len(holders) != 1:
            raise Stale(f"{self.scope} is gone, and fits {len(holders)} modules that have the name")
        return holders[0]

    def _fits(self, module: str) -> bool:
        try:
            self.apply(copy.deepcopy(_parsed(module)))
        except Stale:
            return False
        return True

    def tree(self) -> ast.Module:
        """Return the module with the change."""
        tree = ast.parse(path_of(self.resolve()).read_text(encoding="utf-8"))
        self.apply(tree)
        return tree

    def apply(self, tree: ast.Module) -> None:
        """Change this tree of the module, or raise `Stale` and leave it as it is."""
        within = definitions(tree, self.name)
        if not within:
            raise Stale(f"there is no {self.scope}")
        if self.operation == "text":
            _change_text(within, self)
        else:
            _change(within, self)
        ast.fix_missing_locations(tree)


def path_of(module: str) -> Path:
    """Return the path that a module has or would have."""
    path = SRC.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def _parsed(module: str) -> ast.Module:
    return ast.parse(path_of(module).read_text(encoding="utf-8"))


@cache
def _modules() -> tuple[str, ...]:
    paths = (path.relative_to(SRC).with_suffix("") for path in sorted(SRC.rglob("*.py")))
    return tuple(".".join(path.parts).removesuffix(".__init__") for path in paths)


@cache
def _holders() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for module in _modules():
        for name in dict.fromkeys(_qualified(_parsed(module))):
            found.setdefault(name, []).append(module)
    return found


def modules_with(name: str) -> list[str]:
    """Return all modules of the package that define this qualified name."""
    return _holders().get(name, [])


def definitions(tree: ast.Module, name: str) -> list[ast.stmt]:
    """Return the statements that define this qualified name; a property, say, has several."""
    found: list[ast.stmt] = []
    bodies: list[ast.AST] = [tree]
    for part in name.split("."):
        found = [one for body in bodies for one in _statements(body) if part in _defined(one)]
        bodies = [one for one in found if isinstance(one, ast.ClassDef)]
    return found


def _qualified(node: ast.AST) -> Iterator[str]:
    """Yield the qualified names that a module or class defines."""
    for statement in _statements(node):
        yield from _defined(statement)
        if isinstance(statement, ast.ClassDef):
            yield from (f"{statement.name}.{name}" for name in _qualified(statement))


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of a module or class, including those under an `if` or a `try`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if not isinstance(child, (*_FUNCTIONS, ast.ClassDef, ast.expr)):
            yield from _statements(child)


def _defined(statement: ast.stmt) -> set[str]:
    if isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
        return {statement.name}
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
        targets = [statement.target]
    return {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}


# --- Patterns ------------------------------------------------------------------------------------


def _is_run(node: Any) -> bool:
    if isinstance(node, ast.Expr):
        node = node.value
    return isinstance(node, ast.Constant) and node.value is ...


def _is_any(node: Any) -> bool:
    return isinstance(node, ast.Name) and (
        node.id in ("_", "it") or (len(node.id) == 1 and node.id.isupper())
    )


def _is_letter(name: Any) -> bool:
    return isinstance(name, str) and len(name) == 1 and name.islower()


def read_pattern(text: str, *, keyword: bool = False) -> list[Any]:
    """Return a pattern's nodes: one expression, keyword or clause, or one or more statements."""
    try:
        nodes = _read_pattern(text.strip("\n"), keyword)
    except SyntaxError as error:
        raise Stale(f"{text!r} is no pattern: {error}") from None
    runs = 0
    for one in nodes:
        for node in _in_order(one):
            if isinstance(node, ast.Constant) and node.value is ...:
                node.run = runs  # type: ignore[attr-defined]
                runs += 1
    return nodes


def _read_pattern(text: str, keyword: bool) -> list[Any]:
    if keyword and re.match(r"\w+=[^=]", text):
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        return list(call.keywords)
    if text.startswith("except"):
        clause = ast.parse(f"try: ...\n{text}").body[0]
        assert isinstance(clause, ast.Try)
        return list(clause.handlers)
    if text.startswith("case "):
        match = ast.parse(f"match _:\n {text}: ...").body[0]
        assert isinstance(match, ast.Match)
        return [match.cases[0].pattern]
    body = ast.parse(text).body
    return [body[0].value] if len(body) == 1 and isinstance(body[0], ast.Expr) else body


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)


def matches(pattern: Any, node: Any, bound: Bound) -> Iterator[Bound]:
    """Yield what the letters of a pattern stand for, for each way in which it fits a node."""
    if _is_any(pattern):
        if isinstance(node, ast.expr):
            yield from _bind(pattern.id, node, bound)
    elif isinstance(pattern, list):
        if isinstance(node, list):
            yield from _match_lists(pattern, node, bound)
    elif isinstance(pattern, ast.AST):
        if type(pattern) is type(node):
            yield from _match_fields(pattern, node, list(pattern._fields), bound)
    elif type(pattern) is type(node) and pattern == node:
        yield bound


def _bind(name: str, node: Any, bound: Bound) -> Iterator[Bound]:
    if name == "_":
        yield bound
    elif name not in bound:
        yield bound | {name: node}
    elif _same(bound[name], node):
        yield bound


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, ast.AST) and isinstance(other, ast.AST):
        return bool(ast.dump(one) == ast.dump(other))
    return bool(one == other)


def _match_fields(pattern: ast.AST, node: ast.AST, fields: list[str], bound: Bound) -> Any:
    if not fields:
        yield bound
        return
    field, *others = fields
    asked: Any = getattr(pattern, field, None)
    found: Any = getattr(node, field, None)
    ways: Iterator[Bound]
    if field in _IGNORED or (field in _ANNOTATIONS and asked is None):
        ways = iter((bound,))
    elif _VARIABLES.get(type(pattern)) == field and _is_letter(asked):
        ways = _bind(asked, found, bound) if isinstance(found, str) else iter(())
    elif isinstance(pattern, ast.Dict) and None in pattern.keys:
        if field == "keys" and isinstance(node, ast.Dict):
            yield from _match_items(pattern, node, bound)
        return
    elif isinstance(pattern, ast.Call) and field == "keywords":
        runs = [one for one in pattern.args if _is_run(one)]
        ways = _match_keywords(asked, found, runs, bound)
    else:
        ways = matches(asked, found, bound)
    for way in ways:
        yield from _match_fields(pattern, node, others, way)


def _match_lists(pattern: list[Any], nodes: list[Any], bound: Bound) -> Iterator[Bound]:
    if not pattern:
        if not nodes:
            yield bound
    elif _is_run(pattern[0]):
        for length in range(len(nodes) + 1):
            ways = {_run_name(pattern[0]): nodes[:length]}
            yield from _match_lists(pattern[1:], nodes[length:], bound | ways)
    elif nodes:
        for way in matches(pattern[0], nodes[0], bound):
            yield from _match_lists(pattern[1:], nodes[1:], way)


def _run_name(node: Any) -> str:
    run: Any = node.value if isinstance(node, ast.Expr) else node
    return f"...{run.run}"


def _match_keywords(asked: list[Any], found: list[Any], runs: list[Any], bound: Bound) -> Any:
    if not asked:
        if runs:
            yield bound | {_run_name(runs[-1]) + "=": found}
        elif not found:
            yield bound
        return
    for place, keyword in enumerate(found):
        for way in matches(asked[0], keyword, bound):
            yield from _match_keywords(asked[1:], found[:place] + found[place + 1 :], runs, way)


def _match_items(pattern: ast.Dict, node: ast.Dict, bound: Bound) -> Iterator[Bound]:
    """Yield the ways in which a dictionary has these items, and others (`**_`)."""
    ways = [bound]
    for key, value in zip(pattern.keys, pattern.values, strict=True):
        if key is not None:
            items = list(zip(node.keys, node.values, strict=True))
            ways = [
                way for old in ways for item in items for way in matches([key, value], [*item], old)
            ]
    yield from ways


def fill(template: Any, bound: Bound) -> Any:
    """Return a copy of a template with what its letters stand for."""
    if isinstance(template, list):
        filled: list[Any] = []
        for one in template:
            if _is_run(one) and _run_name(one) in bound:
                filled += copy.deepcopy(bound[_run_name(one)])
            else:
                filled.append(fill(one, bound))
        return filled
    if not isinstance(template, ast.AST):
        return template
    if isinstance(template, ast.Name) and isinstance(bound.get(template.id), ast.expr):
        found = copy.deepcopy(bound[template.id])
        if hasattr(found, "ctx"):
            found.ctx = template.ctx
        return found
    values = {field: fill(getattr(template, field, None), bound) for field in template._fields}
    variable = _VARIABLES.get(type(template), "")
    if isinstance(bound.get(values.get(variable, "")), str):
        values[variable] = bound[values[variable]]
    if isinstance(template, ast.Call):
        for run in (one for one in template.args if _is_run(one)):
            values["keywords"] += copy.deepcopy(bound.get(_run_name(run) + "=", []))
    return type(template)(**values)


# --- Operations ----------------------------------------------------------------------------------


class _Region:
    """Map of every node in some statements to its parent."""

    def __init__(self, statements: list[ast.stmt]) -> None:
        self.statements = statements
        self.parents: dict[ast.AST, Place] = {}
        self.nodes: list[ast.AST] = []
        for statement in statements:
            for node in _in_order(statement):
                self.nodes.append(node)
                for field, value in ast.iter_fields(node):
                    for place, child in enumerate(value) if isinstance(value, list) else ():
                        self.parents[child] = (node, field, place)
                    if isinstance(value, ast.AST):
                        self.parents[value] = (node, field, None)

    def up(self, node: ast.AST) -> Iterator[tuple[ast.AST, Place]]:
        """Yield a node and everything around it, each with its place."""
        while node in self.parents:
            place = self.parents[node]
            yield node, place
            node = place[0]

    def around(self, node: ast.AST, kinds: set[Any]) -> tuple[ast.AST, Place] | None:
        """Return the nearest enclosing node that is in one of these fields."""
        return next(
            ((one, place) for one, place in self.up(node) if (type(place[0]), place[1]) in kinds),
            None,
        )


def _change(within: list[ast.stmt], anchor: Anchor) -> None:
    region = _Region(within)
    pattern = read_pattern(anchor.pattern, keyword=anchor.operation == "without")
    by = read_pattern(anchor.by) if anchor.operation == "replace" else []
    in_statements = isinstance(pattern[0], ast.stmt)
    if anchor.operation == "replace" and not in_statements and isinstance(by[0], ast.stmt):
        # The expression must be a statement, like a call for its effect.
        pattern, in_statements = [ast.Expr(pattern[0])], True
    found: dict[Any, tuple[Any, Bound]] = {}
    given = _parameters(within[0])
    for node in region.nodes:
        if in_statements:
            for place, bound in _match_run(pattern, region, node, given):
                _note(found, place, bound, region, anchor.operation)
        else:
            for bound in matches(pattern[0], node, given):
                _note(found, node, bound, region, anchor.operation)
                break
    target, bound = _the_one(list(found.values()), anchor)
    if anchor.operation in ("never", "always"):
        _put(target, ast.Constant(anchor.operation == "always"))
    elif anchor.operation == "drop":
        parent, field, place = target
        kept = getattr(parent, field)
        del kept[place : place + bound.get("length", 1)]
        if not kept and field == "body":
            kept.append(ast.Pass())
    elif anchor.operation == "without":
        _leave_out(target, region)
    elif in_statements and "it" not in bound:
        parent, field, place = target
        filled = fill([ast.Expr(one) if isinstance(one, ast.expr) else one for one in by], bound)
        holder = getattr(parent, field)
        for one in filled:
            ast.copy_location(one, holder[place])
        holder[place : place + bound["length"]] = filled
    else:
        _put(target, fill(by[0], bound))


def _parameters(statement: ast.stmt) -> Bound:
    if not isinstance(statement, _FUNCTIONS):
        return {}
    names = [one.arg for one in (*statement.args.posonlyargs, *statement.args.args)]
    names += [one.arg for one in statement.args.kwonlyargs]
    names = [name for name in names if name not in ("self", "cls")]
    return {f"arg{place}": name for place, name in enumerate(names, 1)}


def _match_run(
    pattern: list[Any], region: _Region, node: ast.AST, given: Bound
) -> Iterator[tuple[ast.AST, Bound]]:
    """Yield each place where these statements begin with `node`."""
    if not isinstance(node, ast.stmt) or node not in region.parents:
        return
    parent, field, place = region.parents[node]
    follow = getattr(parent, field)[place:]
    for length in range(1, len(follow) + 1):
        for bound in _match_lists(pattern, follow[:length], given):
            yield node, bound | {"length": length}
            return


def _note(
    found: dict[Any, tuple[Any, Bound]],
    node: ast.AST,
    bound: Bound,
    region: _Region,
    operation: str,
) -> None:
    """Record the change if the pattern occurs at this node."""
    target: Place | None = None
    if operation in ("never", "always"):
        if isinstance(node, ast.stmt) and not isinstance(node, ast.If):
            body = region.around(node, {(ast.If, "body")})
            target = (body[1][0], "test", None) if body else None
        elif isinstance(node, ast.If):
            target = (node, "test", None)
        else:
            around = region.around(node, _CONDITIONS)
            target = around[1] if around else None
    elif operation == "drop":
        kinds = ast.stmt | ast.ExceptHandler
        target = next((place for one, place in region.up(node) if isinstance(one, kinds)), None)
    elif operation == "without":
        around = region.around(node, _PARTS)
        if around:
            parent, field, place = around[1]
            target = (parent, "keys" if isinstance(parent, ast.Dict) else field, place)
    elif "it" in bound:
        target = region.parents[bound["it"]]
    else:
        target = region.parents.get(node)
    if target is not None:
        found.setdefault((id(target[0]), *target[1:]), (target, bound))


def _the_one(found: list[tuple[Any, Bound]], anchor: Anchor) -> tuple[Any, Bound]:
    """Return the only place, or the one that the anchor chooses."""
    where = f"{anchor.pattern!r} leads to {len(found)} places in {anchor.scope}"
    if not anchor.nth:
        if len(found) != 1:
            raise Stale(where)
        return found[0]
    nth, _, count = anchor.nth.partition(" of ")
    if len(found) != int(count) or not 1 <= int(nth) <= len(found) or len(found) == 1:
        raise Stale(f"{where}, not {anchor.nth}")
    return found[int(nth) - 1]


def _put(target: Place, node: Any) -> None:
    parent, field, place = target
    if place is None:
        setattr(parent, field, ast.copy_location(node, getattr(parent, field)))
    else:
        getattr(parent, field)[place] = ast.copy_location(node, getattr(parent, field)[place])


def _leave_out(target: Place, region: _Region) -> None:
    parent, field, place = target
    assert place is not None
    if isinstance(parent, ast.Dict):
        del parent.values[place]
    kept = getattr(parent, field)
    del kept[place]
    if isinstance(parent, ast.BoolOp) and len(kept) == 1:
        _put(region.parents[parent], kept[0])


def _change_text(within: list[ast.stmt], anchor: Anchor) -> None:
    nodes = [node for statement in within for node in _in_order(statement)]
    strings = [one for one in nodes if isinstance(one, ast.Constant) and type(one.value) is str]
    found: list[Any] = [(one, {}) for one in strings if anchor.pattern in str(one.value)]
    node, _ = _the_one(found, anchor)
    node.value = node.value.replace(anchor.pattern, anchor.by, 1)
