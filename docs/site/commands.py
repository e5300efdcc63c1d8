"""The reference of the command line, a page for each command, from the commands themselves."""

from __future__ import annotations

import inspect
import re
from typing import Any

import click
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from privirec.app.cli.every import app

FOLDER = "reference/commands"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages where the navigation names their folder."""
    pages = [f"{FOLDER}/index.md", *(f"{FOLDER}/{name}.md" for name in _commands())]
    config.nav = _filled(config.nav, pages)
    return config


def _filled(nav: Any, pages: list[str]) -> Any:
    if nav == FOLDER:
        return pages
    if isinstance(nav, list):
        return [_filled(each, pages) for each in nav]
    return (
        {key: _filled(each, pages) for key, each in nav.items()} if isinstance(nav, dict) else nav
    )


def on_files(files: Files, config: MkDocsConfig) -> Files:
    commands = _commands()
    files.append(File.generated(config, f"{FOLDER}/index.md", content=_overview(commands)))
    for name, command in commands.items():
        files.append(File.generated(config, f"{FOLDER}/{name}.md", content=_page(name, command)))
    return files


def _commands() -> dict[str, click.Command]:
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)  # noqa: S101 - narrows what Typer returns
    return dict(group.commands)


def _overview(commands: dict[str, click.Command]) -> str:
    rows = [
        f"| [`privirec {name}`]({name}.md) | {_cell(_paragraphs(command)[0])} |"
        for name, command in commands.items()
    ]
    head = ["# Command line", "", "Every command has `--help`; these pages are made from it.", ""]
    return "\n".join([*head, "| command | what it does |", "|---|---|", *rows]) + "\n"


def _page(name: str, command: click.Command) -> str:
    lines = [f"# privirec {name}", *_section(f"privirec {name}", command)]
    if isinstance(command, click.Group):
        for part, inner in command.commands.items():
            lines += ["", f"## privirec {name} {part}", *_section(f"privirec {name} {part}", inner)]
    return "\n".join(lines) + "\n"


def _section(path: str, command: click.Command) -> list[str]:
    context = click.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    lines = ["", *_body(command), "", "```text", usage, "```"]
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    options = [each for each in command.get_params(context) if isinstance(each, click.Option)]
    if arguments:
        lines += ["", "| argument | |", "|---|---|"]
        lines += [
            f"| `{each.make_metavar(context)}` | {_cell(_help(each))} |" for each in arguments
        ]
    options = [each for each in options if not each.hidden and each.name != "help"]
    if options:
        lines += ["", "| option | | default |", "|---|---|---|"]
        lines += [_option(each, context) for each in options]
    return lines


def _option(option: click.Option, context: click.Context) -> str:
    names = " ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    text = _cell(_help(option))
    if isinstance(option.type, click.Choice):
        text += "<br>" + " ".join(f"`{_cell(str(each))}`" for each in option.type.choices)
    elif isinstance(option.type, click.types._NumberRangeBase):
        text += f"<br>`{_cell(option.type._describe_range())}`"
    if option.required:
        return f"| {names} | {text} | *required* |"
    default = option.default
    shown = bool(option.show_default) and default is not None and not option.is_flag
    value = f"`{_cell(str(getattr(default, 'value', default)))}`" if shown else ""
    return f"| {names} | {text} | {value} |"


def _help(parameter: click.Parameter) -> str:
    return " ".join((getattr(parameter, "help", None) or "").split())


def _body(command: click.Command) -> list[str]:
    """The paragraphs of the help text; its examples as code."""
    lines: list[str] = []
    for paragraph in _paragraphs(command):
        is_code = paragraph.startswith("privirec ")
        lines += ["```sh", paragraph, "```", ""] if is_code else [paragraph, ""]
    return lines


def _paragraphs(command: click.Command) -> list[str]:
    text = re.sub(r"\[/?bold\]", "**", inspect.cleandoc(command.help or ""))
    return [" ".join(each.split()) for each in re.split(r"\n\s*\n", text) if each.strip()]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
