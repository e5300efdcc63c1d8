"""Failures inside the shared tests should say what was compared."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("model_tests")
