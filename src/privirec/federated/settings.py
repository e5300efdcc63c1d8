"""Settings that all methods share, and the mark that makes a setting an option of commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from privirec.errors import UsageError


@dataclass(frozen=True)
class Option:
    """Mark of a setting that commands offer as an option.

    The option takes its name, type and bounds from the field, and its help from the first paragraph
    of the field's docstring.
    """

    metavar: str
    group: str = ""
    """Heading of the option in the help; options without one come first."""
    default: str = ""
    """Default in words, where it is not the one of the field."""
    choices: Callable[[], Iterable[str]] | None = None
    """Function that returns the possible values of a name."""


class MethodSettings(BaseModel):
    """Settings of a method, with clients or without."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    method: str
    """Name of the method."""
    seed: Annotated[int, Option("N")] = Field(0, ge=0)
    """Seed of start blocks and drop-outs, not of data.

    No secret is derived from it.
    """

    def given(self) -> dict[str, Any]:
        """Return the settings that were chosen, without the method; the others have defaults."""
        fields = [name for name in type(self).model_fields if name != "method"]
        return {name: getattr(self, name) for name in fields if name in self.model_fields_set}


class ProgramSettings(MethodSettings):
    """Settings that all programs share."""

    ring_bits: Annotated[int, Option("BITS", "Secure aggregation")] = Field(32, ge=1, le=64)
    """Width of the ring for all sums except counts."""


Settings = TypeVar("Settings", bound=ProgramSettings)
Validated = TypeVar("Validated", bound=BaseModel)


def validated(kind: type[Validated], values: Mapping[str, Any]) -> Validated:
    """Return validated settings of a kind, or raise UsageError with the first fault in one line."""
    try:
        return kind(**values)
    except ValidationError as error:
        raise UsageError(first_fault(error)) from None


def first_fault(error: ValidationError) -> str:
    """Return the first fault in one line."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
