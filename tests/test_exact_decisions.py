"""Tests that numbers with consequences come from operations that are exact on all machines.

ARCHITECTURE.md, "Numbers that decide", has the rule. The tests read the source: in the
modules below, a function of `math`, `numpy` or `scipy` that is not in the lists of exact ones, a
matrix product, a sum of an array or a float power is an error, unless the function that contains it
is listed with the reason why it may differ. Names are followed through imports and their aliases.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import privirec

SOURCE = Path(privirec.__file__).parent

DECIDING = (
    "federated/dp/*.py",
    "federated/*.py",
    "federated/contributions/*.py",
    "federated/programs/*.py",
    "filters/exact.py",
    "filters/normalize.py",
    "filters/operators.py",
    "filters/parts.py",
    "filters/spectral.py",
    "secagg/**/*.py",
    "privacy/*.py",
    "runtime/*.py",
    "runtime/coordinator/*.py",
    "runtime/node/*.py",
    "runtime/enrolment/*.py",
    "extra/*.py",
    "extra/correlated/*.py",
    "extra/lightsecagg/*.py",
)
"""Modules that a client uses to compute or to check its uploads.

Not among them: the rest of `filters/` (eigenproblems, bases and scores, which the server or a
device computes for itself with BLAS; of its compiled loops clients use `gather_sum`, which adds in
order) and `evaluation.py` (displayed metrics; the contribution `validation` does its own
ranking).
"""

MATH = {
    *("ceil", "floor", "isqrt", "sqrt", "ldexp", "frexp", "nextafter", "fsum", "comb", "gcd"),
    *("isfinite", "isinf", "isnan", "inf", "nan", "prod"),
}
NUMPY = {
    # Types, and arrays from other arrays.
    *("bool_", "dtype", "float32", "float64", "floating", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64", "signedinteger", "iinfo", "inf", "ndarray", "ufunc"),
    *("arange", "array", "asarray", "ascontiguousarray", "concatenate", "empty", "empty_like"),
    *("eye", "frombuffer", "full", "hstack", "memmap", "ones", "repeat", "roll", "split", "stack"),
    *("zeros", "zeros_like", "packbits", "unpackbits", "typing.ArrayLike", "typing.NDArray"),
    # Indices, order and comparison.
    *("argmin", "argsort", "array_equal", "bincount", "count_nonzero", "diag", "diag_indices"),
    *("diagonal", "fill_diagonal", "flatnonzero", "isfinite", "isin", "ix_", "nonzero"),
    *("searchsorted", "setdiff1d", "sort", "triu", "triu_indices", "unique", "where"),
    # Operations that IEEE 754 rounds correctly, entry by entry; sums are in order.
    *(
        "abs",
        "add",
        "add.accumulate",
        "add.at",
        "bitwise_and",
        "bitwise_xor",
        "ceil",
        "clip",
        "cumsum",
        "diff",
    ),
    *("divide", "floor", "frexp", "ldexp", "maximum", "maximum.accumulate", "minimum", "multiply"),
    *("nan_to_num", "nextafter", "outer", "rint", "sqrt", "square", "subtract"),
    "polynomial.polynomial.polyval",  # Horner's rule: products and sums of entries
    # Errors of functions that are not allowed; random bits.
    *("linalg.LinAlgError", "random.Generator", "random.Philox"),
}
SCIPY = {"sparse.coo_array", "sparse.csr_array"}
ALLOWED = {"math": MATH, "numpy": NUMPY, "scipy": SCIPY, "cmath": set(), "statistics": set()}
"""Allowed names of each package that also has inexact ones."""
NOT_ARRAYS = ("self", "runtime", "ring")
"""Names of our own objects whose methods have such names."""
METHODS = {
    *("sum", "mean", "std", "var", "dot", "trace", "prod", "cumprod", "reduce", "reduceat"),
    *("nanmean", "nansum", "vecdot"),
}
"""Methods of arrays that are not allowed: the order of a sum depends on the machine."""

WHOLE = "whole numbers, or powers of two: exact in any order"
SERVER = "the server's own computation: clients get its results as whole numbers"
CLIENT = "one client's own refusal: honest blocks are far from its limits"
SHOWN = "shown to people, or used by attacks: nothing is decided by it"
SCORES = "scores of a model: clients send whole numbers that other functions compute"
EXCEPTIONS = {
    "federated/dp/sampler.py::GaussianNoise.__post_init__": WHOLE,
    "federated/dp/sampler.py::GaussianNoise.shifts": WHOLE,
    "federated/dp/sampler.py::GaussianNoise._variance": WHOLE,
    "federated/dp/tables.py::gaussian_table": WHOLE,
    "federated/contributions/item_item.py::ItemItem.weighted_total": WHOLE,
    "federated/dp/discrete_gaussian.py::DiscreteGaussian.loss": WHOLE,
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
    "extra/linkprop_multi.py::LinkPropMultiProgram.outline": WHOLE,
    "extra/linkprop_multi.py::LinkPropMultiProgram._steps": WHOLE,
    "federated/programs/protected_ways.py::_power": SERVER,
    "federated/programs/protected_ways.py::boosts": SERVER,
    "federated/programs/protected_ways.py::whole_weights": SERVER,
    "federated/programs/protected_ways.py::Gram.filter_entries": WHOLE,
    "federated/programs/protected_ways.py::Gram.steps": SERVER,
    "federated/programs/protected_ways.py::Power.steps": SERVER,
    "federated/programs/protected_ways.py::Power.steps.unknown": SERVER,
    "federated/programs/protected_ways.py::similar_pairs": SERVER,
    "federated/contributions/noisy_pairs.py::NoisyPairs._present": WHOLE,
    "federated/programs/spectral.py::SpectralProgram._first_block": SERVER,
    "filters/normalize.py::degree_power": SERVER,  # of numbers that are not whole
    "filters/operators.py::SparseOperator.power": SCORES,
    "filters/operators.py::FactoredOperator._pays_in_factors": WHOLE,
    "filters/operators.py::FactoredOperator._products": WHOLE,
    "filters/operators.py::WeightedOperator._product": SCORES,
    "filters/operators.py::WeightedOperator._written_out": SCORES,
    "filters/operators.py::LowRankOperator.rows": SCORES,
    "filters/operators.py::LowRankOperator.times": SCORES,
    "filters/operators.py::LowRankOperator.among": SCORES,
    "filters/parts.py::ItemVectors.best": WHOLE,
    "filters/parts.py::_lengths_from": SCORES,
    "runtime/coordinator/run_state.py::ServerRun._carried_since": SHOWN,
    "extra/correlated/levels.py::NoiseRule.levels": WHOLE,
    "extra/correlated/server.py::CorrelatedServer.deviation": WHOLE,
    "secagg/local_federation.py::Traffic.mean_by_step": SHOWN,
}
"""Functions that may use other operations, with the reason."""


def modules() -> list[Path]:
    found = {path for pattern in DECIDING for path in SOURCE.glob(pattern)}
    return sorted(path for path in found if "testing" not in path.parts)


def offences(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    """Yield (function, line, operation) for each operation that is not allowed."""
    names = _imported(tree)

    def visit(node: ast.AST, function: str) -> Iterator[tuple[str, int, str]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}".lstrip(".")
        found = _operation(node, names)
        if found:
            yield function, getattr(node, "lineno", 0), found
        if isinstance(node, ast.Attribute) and _dotted(node, names):
            return  # np.linalg is part of np.linalg.norm
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function)

    yield from visit(tree, "")


def _imported(tree: ast.Module) -> dict[str, str]:
    """Return the full name that each imported name stands for."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                names[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _dotted(node: ast.AST, names: dict[str, str]) -> str | None:
    """Return the full name of something imported, as numpy.linalg.norm, or None."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value, names)
        return f"{owner}.{node.attr}" if owner else None
    return None


def _operation(node: ast.AST, names: dict[str, str]) -> str | None:
    if isinstance(node, ast.BinOp | ast.AugAssign):
        if isinstance(node.op, ast.MatMult):
            return "@"
        if isinstance(node.op, ast.Pow) and not _whole(
            node.left if isinstance(node, ast.BinOp) else node.target
        ):
            return "**"
    if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
        return f"from {node.module} import *"
    if isinstance(node, ast.Name | ast.Attribute) and (name := _dotted(node, names)):
        package, _, rest = name.partition(".")
        # A package by itself is not an operation: np in `np.sqrt`, or passed to a function.
        return name if rest and package in ALLOWED and rest not in ALLOWED[package] else None
    if not isinstance(node, ast.Call):
        return None
    called = node.func
    # With a modulus, pow is for whole numbers.
    if isinstance(called, ast.Name) and called.id == "pow" and len(node.args) == 2:
        return None if _whole(node.args[0]) else "pow"
    if (
        isinstance(called, ast.Attribute)
        and called.attr in METHODS
        and not _dotted(called, names)
        and getattr(called.value, "id", getattr(called.value, "attr", None)) not in NOT_ARRAYS
    ):
        return f".{called.attr}()"
    return None


def _whole(base: ast.AST) -> bool:
    """Return True if the base of a power is clearly a whole number, a rational or a decimal."""
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
        "import math\ny = math.exp(x)",
        "import math as m\ny = m.exp(x)",
        "from math import log2\ny = log2(x)",
        "from math import log2 as bits\ny = bits(x)",
        "import cmath\ny = cmath.sqrt(x)",
        "import statistics\ny = statistics.fmean(x)",
        "from statistics import mean\ny = mean(x)",
        "y = x**0.5",
        "y = x**2",
        "y = 2.0**n",
        "x **= 2",
        "y = pow(x, 0.5)",
        "y = pow(2.0, n)",
        "y = a @ b",
        "a @= b",
        "from numpy import *",
        "from numpy import exp\ny = exp(x)",
        "from numpy import exp as e\ny = e(x)",
        "import numpy\ny = numpy.exp(x)",
        "import numpy as xp\ny = xp.exp(x)",
        "from numpy import linalg\ny = linalg.norm(x)",
        "from numpy.linalg import norm\ny = norm(x)",
        "import numpy.linalg as la\ny = la.norm(x)",
        "def f():\n    import numpy as xp\n    return xp.exp(1)",
        "from numpy import add\ny = add.reduce(x)",
        "f = np.add\ny = f.reduce(x)",
        "import scipy.linalg as sl\ny = sl.eigh(x)",
        "from scipy import linalg as algebra\ny = algebra.eigh(x)",
        "from scipy.linalg import eigh\ny = eigh(x)",
        "from scipy.special import ndtr\ny = ndtr(x)",
        "import scipy.special\ny = scipy.special.erf(x)",
        "from scipy import stats\ny = stats.norm.cdf(x)",
        "import scipy.fft\ny = scipy.fft.fft(x)",
        "from scipy.sparse.linalg import svds\ny = svds(x)",
        "y = x.sum(axis=0)",
        "y = x.trace()",
        "y = x.prod()",
        "y = x.cumprod()",
        "y = (a * b).mean()",
        "key = np.exp",
        *(
            f"y = np.{name}(x)"
            for name in (
                *("power", "float_power", "linalg.norm", "tanh", "sinh", "arccos", "arctan2"),
                *("logaddexp", "add.reduce", "multiply.reduce", "prod", "cumprod", "nanmean"),
                *("vecdot", "convolve", "correlate", "fft.fft", "trace", "interp", "einsum"),
                *("polyval", "sum", "mean", "median", "cov", "cross", "kron", "hypot", "cbrt"),
            )
        ),
    ],
)
def test_an_operation_that_depends_on_the_machine_is_found(line: str) -> None:
    if "np." in line:
        line = f"import numpy as np\n{line}"
    assert len(list(offences(ast.parse(line)))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "import math\ny = math.sqrt(x)",
        "from math import isqrt\ny = isqrt(x)",
        "import numpy as np\ny = np.add.accumulate(np.sqrt(x))",
        "import scipy.sparse as sp\ny = sp.csr_array(x)",
        "from functools import reduce\ny = reduce(f, x)",
        "import functools\ny = functools.reduce(f, x)",
        "y = 2**n",
        "y = pow(2, n)",
        "y = pow(x, -1, modulus)",
        "y = Fraction(x) ** 2",
    ],
)
def test_an_exact_operation_is_allowed(line: str) -> None:
    assert not list(offences(ast.parse(line)))
