"""Groups of options: a dataclass whose fields are options, as one parameter of a command."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Annotated, Any, get_args, get_type_hints

PANEL = "panel"
"""Key in a field's metadata: the title under which the help shows the option."""


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the fields of its groups as options.

    A group is a dataclass; each field has the annotation and the default of an option.
    """
    own = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for each in own.parameters.values():
        if dataclasses.is_dataclass(each.annotation):
            group: Any = each.annotation
            groups[each.name] = group
            parameters += _options_of(group)
        else:
            parameters.append(each.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def with_options(**given: Any) -> None:
        for name, group in groups.items():
            fields = dataclasses.fields(group)
            given[name] = group(**{field.name: given.pop(field.name) for field in fields})
        command(**given)

    # Typer reads both attributes.
    with_options.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_options


def _options_of(group: type) -> Iterator[inspect.Parameter]:
    annotations = get_type_hints(group, include_extras=True)
    for field in dataclasses.fields(group):
        annotation = annotations[field.name]
        kind, option = get_args(annotation)
        option = copy.copy(option)
        option.rich_help_panel = field.metadata.get(PANEL)
        required = field.default is dataclasses.MISSING
        is_value = isinstance(field.default, str | int | float)
        if option.show_default and is_value and not isinstance(field.default, bool):
            # Typer would show the default in a line of its own.
            option.help = f"{option.help.rstrip('.')} (default {field.default})."
            option.show_default = False
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if required else field.default,
            annotation=Annotated[kind, option],
        )
