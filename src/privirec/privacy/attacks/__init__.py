"""What someone who holds a release can find out from it. One file an attack.

An attack is a function of what was released, and of nothing else; `grading` compares what it found
with the truth afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from privirec.privacy.attacks import peeling

ATTACKS: dict[str, Callable[..., Any]] = {
    "peeling": peeling.from_normalized,
}
"""By the name that reports use."""
