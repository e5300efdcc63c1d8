"""`privirec explain-privacy` and `privirec doctor`: facts of a model and of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privirec.app.cli import options
from privirec.app.doctor import facts
from privirec.models.artifact import read_manifest
from privirec.privacy.explain import explained
from privirec.rows import say, write_json_lines


def explain_privacy(
    artifact: Annotated[Path, typer.Argument(help="Folder of a saved model.", metavar="ARTIFACT")],
) -> None:
    """Explain in plain words how a saved model was made, who saw what, and what is promised."""
    for sentence in explained(read_manifest(artifact)[1]):
        say(sentence)


def doctor(json_file: options.Json = None) -> None:
    """Print versions, threads, BLAS, AES support, free memory and the data sets found."""
    found = facts()
    write_json_lines(json_file, [found])
    width = max(map(len, found))
    for name, value in found.items():
        say(f"{name:<{width}}  {value}")
