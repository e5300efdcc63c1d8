"""Test parameters: `make test` tries a few of them, `make check` all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first(count: int, parameters: Iterable[Any]) -> list[Any]:
    """Mark all but the first parameters as `check`."""
    found = list(parameters)
    rest = [
        pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.check)
        for one in found[count:]
    ]
    return found[:count] + rest
