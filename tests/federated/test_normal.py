"""Tests of the normal distribution in decimals, against mpmath."""

from __future__ import annotations

import math
from decimal import Context, Decimal, localcontext

import mpmath
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from privirec.federated.dp.normal import DIGITS, cdf, exp, least, log, root, upward


def as_exact(value: Decimal) -> mpmath.mpf:
    return mpmath.mpf(str(value))


@given(st.floats(-1e5, 40))
@example(0.0)
@example(5.0)
@example(-2.5)
@example(-15.999)
@example(-16.0)
@example(16.0)
def test_the_distribution_is_mpmaths(x: float) -> None:
    with mpmath.workdps(DIGITS + 30):
        exact = mpmath.ncdf(mpmath.mpf(x))
        assert abs(as_exact(cdf(Decimal(x))) / exact - 1) <= mpmath.mpf(10) ** -DIGITS


def test_results_do_not_depend_on_the_callers_context() -> None:
    x = Decimal("-1.2345678901234567890123456789")
    with localcontext(Context(prec=50)):
        expected = cdf(x), exp(0.3), log(0.3), upward(cdf(x)), root(lambda t: Decimal(t - 1), 0, 7)
    with localcontext(Context(prec=5)):
        found = cdf(x), exp(0.3), log(0.3), upward(cdf(x)), root(lambda t: Decimal(t - 1), 0, 7)
    assert found == expected


@given(st.decimals(min_value="-1e30", max_value="1e30", allow_nan=False))
def test_upward_is_no_less_and_next_to_it(value: Decimal) -> None:
    found = upward(value)
    assert Decimal(found) >= value
    with localcontext(Context(prec=60)):
        assert Decimal(math.nextafter(found, -math.inf)) < value + abs(value) * Decimal("1e-39")


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300))
@example(2.0)
def test_upward_covers_the_error_of_its_argument(double: float) -> None:
    """Test an exact value that is larger than the double that approximates it."""
    value = Decimal(double)
    with localcontext(Context(prec=1200)):
        largest = value + abs(value) * Decimal(10) ** -DIGITS
        assert Decimal(upward(value)) >= largest


@given(st.floats(0.5, 5))
def test_searches_find_what_is_there(x: float) -> None:
    for falls in (True, False):
        found = root(lambda t, falls=falls: Decimal(x - t if falls else t - x), 0.0, 10.0)
        assert found == pytest.approx(x, rel=1e-13)
        assert found >= x if falls else found <= x
    lowest = least(lambda t: Decimal((t - x) * (t - x) + 3), -10, 10, 1e-6)
    assert float(lowest) == pytest.approx(3, abs=1e-9)
    with pytest.raises(ValueError, match="sign"):
        root(lambda t: Decimal(1), 0.0, 1.0)


def test_a_root_among_the_smallest_doubles_ends_the_search() -> None:
    assert 0 < root(lambda t: Decimal(2.0**-1074) - Decimal(t), 0.0, 1.0) < 1e-300
