"""Documentation of a model's settings for `help` and editors, taken from its config."""

from __future__ import annotations

import inspect

from pydantic import BaseModel
from pydantic.fields import FieldInfo


def describe(model: type, config: type[BaseModel]) -> None:
    """Give a model the signature of its config, and a section of parameters in its docstring."""
    fields = config.model_fields
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(name, keyword, default=field.default, annotation=field.annotation)
        for name, field in fields.items()
    ]
    model.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    own = inspect.cleandoc(model.__dict__.get("__doc__") or "").split(_HEADING, maxsplit=1)[0]
    lines = [own.strip(), "", *_HEADING.splitlines()] if fields else [own.strip()]
    for name, field in fields.items():
        lines.append(f"{name} : {_kind(field)}, default {field.default!r}")
        lines.extend(f"    {line}" for line in (field.description or "").splitlines())
    model.__doc__ = "\n".join(lines).strip() + "\n"


_HEADING = "Parameters\n----------"


def _kind(field: FieldInfo) -> str:
    kind = field.annotation
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
