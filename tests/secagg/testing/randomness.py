"""Insecure, reproducible randomness for tests."""

from __future__ import annotations

import hashlib


class InsecureSeededBytes:
    """Reproducible bytes for tests and simulations; the seed reveals every secret."""

    def __init__(self, seed: int | str) -> None:
        self._seed = hashlib.sha256(str(seed).encode()).digest()
        self._calls = 0

    def __call__(self, size: int) -> bytes:
        self._calls += 1
        return hashlib.shake_256(self._seed + self._calls.to_bytes(8, "big")).digest(size)

    def __repr__(self) -> str:
        return "InsecureSeededBytes(<redacted>)"
