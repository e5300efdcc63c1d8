"""Options of a run, generated from the fields of its description.

A field that is marked with `Option` becomes an option of `run`, `federate` and `server run`: a
field of `RunSpec`, of `OneProcess` (`run` alone) or of the settings of a method. Programs that
share a setting share its option.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

import click
import typer
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from privirec.app.cli import options
from privirec.app.cli.groups import PANEL
from privirec.errors import UsageError
from privirec.federated.programs import DEFAULT_PROGRAM, PROGRAMS
from privirec.federated.settings import Option, validated
from privirec.runtime.spec import (
    AUTO,
    CENTRALIZED,
    CORRUPT_SHARE,
    DROP_SHARE,
    DROP_SHARE_ON_ONE_MACHINE,
    NETWORK,
    SERVER_ON_ONE_MACHINE,
    OneProcess,
    RunSpec,
    settings_type,
)

Options = TypeVar("Options", bound="RunOptions")


def marked(settings: type[BaseModel]) -> Iterator[tuple[str, FieldInfo, Option]]:
    """Yield the fields that are options, with their names and marks."""
    for name, field in settings.model_fields.items():
        for mark in field.metadata:
            if isinstance(mark, Option):
                yield name, field, mark


@dataclass(frozen=True)
class Offered:
    """An option, and the fields that it sets: one, or one of each method that has it."""

    name: str
    mark: Option
    fields: Mapping[str, FieldInfo]
    """Fields by method; the name is empty for a field of the run itself."""
    more: tuple[str, ...] = ()
    """Further choices."""

    @property
    def help(self) -> str:
        field = next(iter(self.fields.values()))
        text = " ".join((field.description or "").partition("\n\n")[0].split())
        if self.mark.choices is not None:
            first, _, rest = text.partition(".")
            text = f"{first}: {', '.join([*self.mark.choices(), *self.more])}.{rest}"
        shown = f": {self.mark.default}" if self.mark.default else self._defaults()
        return f"{text.rstrip('.')} (default{shown})." if shown else text

    def _defaults(self) -> str:
        by_default: dict[str, list[str]] = {}
        for method, field in self.fields.items():
            if isinstance(field.default, str | int | float) and field.default is not False:
                by_default.setdefault(_shown(field.default), []).append(method)
        if not by_default:
            return ""
        first, *others = by_default
        more = (f"; {', '.join(by_default[text])}: {text}" for text in others)
        return f" {first}{''.join(more)}"

    def as_field(self, default: Any = None) -> tuple[str, Any, Any]:
        """Return the option as a field of a dataclass that a command takes as its parameter."""
        kind, more = self._type()
        text = self.help
        if default is not None:
            text = f"{text.rpartition(' (default')[0]} (default {_shown(default)})."
        names = [f"--{self.name.replace('_', '-')}"] if kind is bool else []  # no --no-NAME
        metavar = self.mark.metavar or None
        made = typer.Option(..., *names, help=text, metavar=metavar, show_default=False, **more)
        panel = {PANEL: self.mark.group or None}
        field = dataclasses.field(default=None, metadata=panel)
        return self.name, Annotated[kind | None, made], field

    def _type(self) -> tuple[Any, dict[str, Any]]:
        """Return the type of the option, and what else Typer must know to check a value."""
        if self.mark.choices is not None:
            return str, {"click_type": click.Choice([*self.mark.choices(), *self.more])}
        kinds = [_plain(field.annotation) for field in self.fields.values()]
        names = [name for kind in kinds for name in get_args(kind) if get_origin(kind) is Literal]
        if names and all(isinstance(name, str) for name in names):
            return str, {"click_type": click.Choice(list(dict.fromkeys(names)))}
        kind = int if names else kinds[0]
        if isinstance(kind, type) and issubclass(kind, StrEnum | Path | bool):
            return kind, {}
        return kind if kind in (int, float) else str, {"callback": self._check}

    def _check(self, given: Any) -> Any:
        """Return a value that one of the fields accepts, or refuse it as the last one does."""
        if given is None:
            return None
        options.finite(given if isinstance(given, float) else None)
        for field in self.fields.values():
            try:
                kind: Any = Annotated[field.annotation, *field.metadata]
                TypeAdapter(kind).validate_python(given)
            except ValidationError as error:
                fault = error.errors()[0]["msg"]
            else:
                return given
        raise typer.BadParameter(f"{given}: {fault}.")


def _shown(value: str | float) -> str:
    return str(value) if isinstance(value, str) else f"{value:g}"


def _plain(annotation: Any) -> Any:
    """Return an annotation without `None` and without what is written beside the type."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) is UnionType:
        kinds = [_plain(kind) for kind in get_args(annotation) if kind is not type(None)]
        return kinds[0] if len(kinds) == 1 else str
    return annotation


def offered(
    methods: Iterable[str], models: Iterable[type[BaseModel]], without: Collection[str] = ()
) -> list[Offered]:
    """Return the options of these methods and models, common ones first, then by group."""
    found: dict[str, Offered] = {}
    sources = [("", model) for model in models]
    sources += [(method, settings_type(method)) for method in methods]
    for method, settings in sources:
        for name, field, mark in marked(settings):
            if mark.group not in without:
                before = found.get(name)
                fields = {**(before.fields if before else {}), method: field}
                found[name] = Offered(name, before.mark if before else mark, fields)
    groups = list(dict.fromkeys(["", *(one.mark.group for one in found.values())]))
    return sorted(found.values(), key=lambda one: groups.index(one.mark.group))


def methods_in_short(names: Iterable[str]) -> str:
    """Return a short description of each of these methods, for help texts."""
    named: dict[str, list[str]] = {}
    for name in names:
        text = "all histories on this machine, without clients"
        named.setdefault(PROGRAMS[name].in_short if name in PROGRAMS else text, []).append(name)
    return "; ".join(f"{', '.join(same)}: {text}" for text, same in named.items()) + "."


SettingsFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Settings of privirec paper tune, or run.json of an earlier run.",
        show_default=False,
    ),
]


def generated(
    *models: type[BaseModel],
    methods: Collection[str] = tuple(PROGRAMS),
    without: Collection[str] = (),
) -> Callable[[type[Options]], type[Options]]:
    """Return a decorator that gives a class the options of these models and methods.

    `without` holds groups that are left out.
    """

    def decorated(group: type[Options]) -> type[Options]:
        usual = group.defaults
        text = f"Method. {methods_in_short(methods)[:-1]} (default {usual['method']})."
        choice = options.one_of(methods, metavar="NAME", help=text, show_default=False)
        of_run = [
            dataclasses.replace(each, more=group.more_choices.get(each.name, ())).as_field(
                usual.get(each.name)
            )
            for each in offered(methods, models, without)
        ]
        fields: list[tuple[str, Any, Any]] = [
            ("method", Annotated[str | None, choice], None),
            *of_run,
            ("settings", SettingsFile, None),
            ("json_file", options.Json, None),
        ]
        made = dataclasses.make_dataclass(
            group.__name__, fields, bases=(group,), frozen=True, kw_only=True
        )
        made.__doc__ = group.__doc__
        return made

    return decorated


class RunOptions:
    """Options of a run as they were given; None stands for the default."""

    defaults: ClassVar[Mapping[str, Any]] = {"method": DEFAULT_PROGRAM}
    """Defaults of the command where they are not those of the fields."""
    more_choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Names that the command takes beside the choices of the fields."""
    method: str | None
    settings: Path | None
    json_file: Path | None

    def given(self, names: Collection[str] | None = None) -> dict[str, Any]:
        """Return the settings that were given, or those with these names alone."""
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {
            name: value
            for name, value in values.items()
            if value is not None and (names is None or name in names)
        }

    def spec(self) -> RunSpec:
        """Return the description of the run."""
        given = self.given()
        for name in ("method", "settings", "json_file", *_PROCESS):
            given.pop(name, None)
        usual = dict(self.defaults)
        method = usual.pop("method")
        if self.settings is None:
            return RunSpec.of(self.method or method, **(usual | given))
        found = RunSpec.read(self.settings)
        if self.method not in (None, found.method):
            raise UsageError(f"{self.settings} has the method {found.method}, not {self.method}")
        missing = {name: usual[name] for name in usual.keys() - found.model_fields_set}
        return found.changed(**(missing | given))


_PROCESS = [name for name, _, _ in marked(OneProcess)]


@generated(RunSpec)
class NetworkOptions(RunOptions):
    """Options of a run with clients on a network."""


@generated(RunSpec, OneProcess, methods=(*PROGRAMS, CENTRALIZED), without={NETWORK})
class OneMachineOptions(RunOptions):
    """Options of `privirec run`: also without clients, and with clients in this process."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "method": CENTRALIZED,
        "aggregator": "none",
        "drop_share": 0.0,
        "server_model": SERVER_ON_ONE_MACHINE,
    }
    more_choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"model": (AUTO,)}
    drop_share: float | None

    def spec(self) -> RunSpec:
        """Return the description of the run; raise UsageError for options without effect.

        A noisy method tolerates the drop-outs of a network, so that its results are those of a
        network.
        """
        spec = super().spec()
        if spec.aggregator == "none":
            # Without masks there are no secret shares; only noise depends on the corrupt share.
            if spec.corrupt_share != CORRUPT_SHARE and not spec.protected:
                raise UsageError(
                    "--corrupt-share goes with an --aggregator, or with noise (protected)"
                )
            if spec.server_model != SERVER_ON_ONE_MACHINE:
                raise UsageError("--server-model goes with an --aggregator: secagg+ or secagg")
        usual = DROP_SHARE if spec.protected else DROP_SHARE_ON_ONE_MACHINE
        return spec.changed(drop_share=max(usual, self.drop_share or 0.0))

    def process(self) -> OneProcess:
        """Return the way to run it in this process."""
        return validated(OneProcess, self.given([*_PROCESS, "drop_share"]))
