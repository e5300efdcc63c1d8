"""Modules whose numbers decide something use only operations that all machines agree on.

ARCHITECTURE.md, "Numbers that decide", has the rule. Here it is held by reading the source: in the
modules below, a call of exp, log or pow, a matrix product, a mean or a float power is an error,
unless the function that contains it is listed with the reason why it may differ.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import privirec

SOURCE = Path(privirec.__file__).parent

DECIDING = (
    "dp/*.py",
    "federated/*.py",
    "federated/contributions/*.py",
    "federated/programs/*.py",
    "secagg/**/*.py",
    "privacy/*.py",
    "runtime/*.py",
    "runtime/network/**/*.py",
)

MATH = {
    *("ceil", "floor", "isqrt", "sqrt", "ldexp", "frexp", "nextafter", "fsum", "comb", "gcd"),
    *("isfinite", "isinf", "isnan", "inf", "nan", "prod"),
}
"""Of `math`: whole numbers, and operations that IEEE 754 rounds correctly."""
NUMPY = {
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "power", "float_power", "cbrt"),
    *("sin", "cos", "tan", "arctan", "hypot", "dot", "matmul", "inner", "vdot", "einsum"),
    *("tensordot", "linalg", "mean", "average", "std", "var", "sum", "nansum", "trapezoid"),
}
"""Of `numpy`: functions whose results depend on the machine, at least for floats."""
METHODS = {"sum", "mean", "std", "var", "dot"}
"""Of arrays: the order of a sum depends on the machine. Sums of integers are listed below."""

MAY_DIFFER: dict[str, str] = {}
"""Functions whose result is not a decision that two machines share."""


def modules() -> list[Path]:
    found = {path for pattern in DECIDING for path in SOURCE.glob(pattern)}
    return sorted(path for path in found if "testing" not in path.parts)


def offences(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    """Yield (function, line, operation) for each operation that is not allowed."""
    names = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "math"
        for alias in node.names
    }

    def visit(node: ast.AST, function: str) -> Iterator[tuple[str, int, str]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}".lstrip(".")
        found = _operation(node, names)
        if found:
            yield function, getattr(node, "lineno", 0), found
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function)

    yield from visit(tree, "")


def _operation(node: ast.AST, names: dict[str, str]) -> str | None:
    if isinstance(node, ast.BinOp | ast.AugAssign):
        if isinstance(node.op, ast.MatMult):
            return "@"
        if isinstance(node.op, ast.Pow) and not _whole(
            node.left if isinstance(node, ast.BinOp) else node.target
        ):
            return "**"
    if isinstance(node, ast.Name) and names.get(node.id, "sqrt") not in MATH:
        return node.id
    if isinstance(node, ast.Attribute):
        owner = node.value.id if isinstance(node.value, ast.Name) else None
        if owner == "math" and node.attr not in MATH:
            return f"math.{node.attr}"
        if owner == "np" and node.attr in NUMPY:
            return f"np.{node.attr}"
        if owner in ("sl", "linalg"):
            return f"{owner}.{node.attr}"
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in METHODS
        and not (isinstance(node.func.value, ast.Name) and node.func.value.id in ("np", "self"))
    ):
        return f".{node.func.attr}()"
    return None


def _whole(base: ast.AST) -> bool:
    """Whether the base of a power is a whole number, a rational or a decimal on sight."""
    if isinstance(base, ast.Constant):
        return type(base.value) is int
    called = base.func if isinstance(base, ast.Call) else None
    return isinstance(called, ast.Name) and called.id in ("Fraction", "Decimal", "int", "len")


def test_only_exact_operations_decide() -> None:
    wrong, used = [], set()
    for path in modules():
        name = path.relative_to(SOURCE).as_posix()
        for function, line, operation in offences(ast.parse(path.read_text("utf-8"))):
            place = f"{name}::{function}"
            if place in MAY_DIFFER:
                used.add(place)
            else:
                wrong.append(f"{name}:{line} {function}: {operation}")
    assert not wrong, "\n".join(wrong)
    assert not set(MAY_DIFFER) - used, "listed, but no longer needed"


@pytest.mark.parametrize(
    "line",
    [
        "y = math.exp(x)",
        "from math import log2\ny = log2(x)",
        "y = x**0.5",
        "y = x**2",
        "y = 2.0**n",
        "x **= 2",
        "y = a @ b",
        "y = np.power(x, 2)",
        "y = np.linalg.norm(x)",
        "y = x.sum(axis=0)",
    ],
)
def test_an_operation_that_depends_on_the_machine_is_found(line: str) -> None:
    assert len(list(offences(ast.parse(line)))) == 1


@pytest.mark.parametrize(
    "line",
    ["y = math.sqrt(x)", "from math import isqrt\ny = isqrt(x)", "y = 2**n", "y = Fraction(x) ** 2"],
)
def test_an_exact_operation_is_allowed(line: str) -> None:
    assert not list(offences(ast.parse(line)))
