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
    "runtime/coordinator/*.py",
    "runtime/node/*.py",
    "runtime/enrolment/*.py",
    "extra/correlated/*.py",
    "extra/lightsecagg/*.py",
)

MATH = {
    *("ceil", "floor", "isqrt", "sqrt", "ldexp", "frexp", "nextafter", "fsum", "comb", "gcd"),
    *("isfinite", "isinf", "isnan", "inf", "nan", "prod"),
}
"""Allowed of `math`: whole numbers, and operations that IEEE 754 rounds correctly."""
NUMPY = {
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "power", "float_power", "cbrt"),
    *("sin", "cos", "tan", "arctan", "hypot", "dot", "matmul", "inner", "vdot", "einsum"),
    *("tensordot", "linalg", "mean", "average", "std", "var", "sum", "nansum", "trapezoid"),
}
"""Not allowed of `numpy`: functions whose results depend on the machine, at least for floats."""
NOT_ARRAYS = ("np", "self", "runtime")
METHODS = {"sum", "mean", "std", "var", "dot"}
"""Not allowed of arrays: the order of a sum depends on the machine."""

WHOLE = "whole numbers, or powers of two: exact in any order"
SERVER = "the server's own computation: clients get its results as whole numbers"
CLIENT = "one client's own refusal: honest blocks are far from its limits"
SHOWN = "shown to people, or used by attacks: nothing is decided by it"
EXCEPTIONS = {
    "dp/sampler.py::GaussianNoise.__post_init__": WHOLE,
    "dp/sampler.py::GaussianNoise.shifts": WHOLE,
    "dp/sampler.py::GaussianNoise._variance": WHOLE,
    "dp/tables.py::gaussian_table": WHOLE,
    "federated/contributions/item_item.py::ItemItem.weighted_total": WHOLE,
    "dp/discrete_gaussian.py::DiscreteGaussian.loss": WHOLE,
    "federated/contributions/noisy_gram.py::pair_length": SHOWN,
    "federated/contributions/power_step.py::PowerStep.check": CLIENT,
    "federated/contributions/power_step.py::PowerStep.is_nearly_orthonormal": CLIENT,
    "federated/contributions/power_step.py::PowerStep.aim_of_span": CLIENT,
    "federated/contributions/power_step.py::PowerStep._squares": CLIENT,
    "federated/contributions/validation.py::ValidationMetrics._measured": WHOLE,
    "federated/contributions/validation.py::ValidationMetrics._products": WHOLE,
    "federated/kernels.py::unit_pair_scales": WHOLE,
    "federated/kernels.py::add_unit_rows": WHOLE,
    "federated/kernels_in_numpy.py::sum_rows": WHOLE,
    "federated/kernels_in_numpy.py::mean_rows": WHOLE,
    "federated/kernels_in_numpy.py::sum_scaled_rows": WHOLE,
    "federated/kernels_in_numpy.py::unit_pair_scales": WHOLE,
    "federated/kernels_in_numpy.py::add_unit_rows": WHOLE,
    "federated/programs/linkprop_multi.py::LinkPropMulti.plan": WHOLE,
    "federated/programs/linkprop_multi.py::LinkPropMulti._steps": WHOLE,
    "federated/programs/protected_ways.py::whole_weights": SERVER,
    "federated/programs/protected_ways.py::Gram.filter_entries": WHOLE,
    "federated/programs/protected_ways.py::Gram.steps": SERVER,
    "federated/programs/protected_ways.py::Power.steps": SERVER,
    "federated/programs/protected_ways.py::Power.steps.unknown": SERVER,
    "federated/programs/spectral.py::Spectral._first_block": SERVER,
    "runtime/plan.py::epsilon_in_words": SHOWN,
    "runtime/coordinator/run_state.py::ServerRun._carried_since": SHOWN,
    "extra/correlated/levels.py::NoiseRule.levels": WHOLE,
    "extra/correlated/server.py::CorrelatedServer.deviation": WHOLE,
    "secagg/local_federation.py::Traffic.mean_by_step": SHOWN,
}
"""Functions that may use other operations, and why."""


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
        and not (
            isinstance(node.func.value, ast.Name)
            and node.func.value.id in ("np", "self", "runtime")
        )
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
            if place in EXCEPTIONS:
                used.add(place)
            else:
                wrong.append(f"{name}:{line} {function}: {operation}")
    assert not wrong, "\n".join(wrong)
    assert not set(EXCEPTIONS) - used, "listed, but no longer needed"


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
    [
        "y = math.sqrt(x)",
        "from math import isqrt\ny = isqrt(x)",
        "y = 2**n",
        "y = Fraction(x) ** 2",
    ],
)
def test_an_exact_operation_is_allowed(line: str) -> None:
    assert not list(offences(ast.parse(line)))
