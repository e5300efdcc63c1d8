"""Choices of options come from the registries."""

from __future__ import annotations

import click
import pytest
import typer

from privirec.app.cli.every import app
from privirec.models import MODELS
from privirec.runtime.spec import AUTO


@pytest.mark.parametrize("names", [["run"], ["federate"], ["server", "run"]], ids=" ".join)
def test_every_registered_model_can_be_chosen(names: list[str]) -> None:
    command = typer.main.get_command(app)
    for name in names:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    (option,) = (each for each in command.params if each.name == "model")
    assert isinstance(option.type, click.Choice)
    more = [AUTO] if names == ["run"] else []
    assert list(option.type.choices) == [*MODELS, *more]
