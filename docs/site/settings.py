"""Settings of models in the library's reference: as `help` has them, from their configs."""

from __future__ import annotations

import inspect
from typing import Any

import griffe

import privirec


class Settings(griffe.Extension):
    """Models get the docstring and the signature that `privirec.models.base` gives them."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        model = getattr(privirec, cls.name, None)
        signature = getattr(model, "__signature__", None)
        if signature is None or cls.path != f"{model.__module__}.{model.__qualname__}":
            return
        settings = [
            griffe.Parameter(
                each.name,
                annotation=inspect.formatannotation(each.annotation).replace("typing.", ""),
                kind=griffe.ParameterKind.keyword_only,
                default=repr(each.default),
            )
            for each in signature.parameters.values()
        ]
        receiver = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
        parameters = griffe.Parameters(receiver, *settings)
        cls.set_member("__init__", griffe.Function("__init__", parameters=parameters))
        first = cls.docstring.lineno if cls.docstring else None
        cls.docstring = griffe.Docstring(model.__doc__, lineno=first, parent=cls)
