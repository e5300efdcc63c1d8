"""Type of a source of random bytes. Sessions are given a source and never choose one."""

from __future__ import annotations

from collections.abc import Callable

RandomBytes = Callable[[int], bytes]
