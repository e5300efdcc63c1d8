"""Where random bytes come from. Sessions are handed a source and never look for one themselves."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

RandomBytes = Callable[[int], bytes]


class InsecureSeededBytes:
    """Reproducible bytes for tests and simulations: whoever knows the seed knows every secret."""

    def __init__(self, seed: int | str) -> None:
        self._seed = hashlib.sha256(str(seed).encode()).digest()
        self._calls = 0

    def __call__(self, size: int) -> bytes:
        self._calls += 1
        return hashlib.shake_256(self._seed + self._calls.to_bytes(8, "big")).digest(size)

    def __repr__(self) -> str:
        return "InsecureSeededBytes(<redacted>)"
