"""Enable pytest's assertion messages in the shared tests."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("model_tests")
