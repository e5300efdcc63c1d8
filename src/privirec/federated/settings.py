"""Settings that all programs share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from privirec.errors import UsageError


class ProgramSettings(BaseModel):
    """Settings that all programs share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    former_fields: ClassVar[frozenset[str]] = frozenset()
    """Obsolete fields without effect that earlier versions wrote for this method."""

    method: str
    """Name of the program."""
    ring_bits: int = Field(32, ge=1, le=64)
    """Width of the ring for all sums except counts."""
    seed: int = Field(0, ge=0)
    """Seed of public start blocks; no secret is derived from it."""


Settings = TypeVar("Settings", bound=ProgramSettings)


def validated(kind: type[Settings], values: Mapping[str, Any]) -> Settings:
    """Return validated settings of a kind, or raise UsageError with the first fault in one line."""
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
