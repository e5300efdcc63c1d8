"""`privirec explain-privacy` and `privirec doctor`: facts of a model and of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privirec.app.cli import options
from privirec.app.doctor import facts
from privirec.device import Installed
from privirec.models.artifact import read_manifest
from privirec.privacy.explain import explained, in_everyday_words
from privirec.rows import say, write_json_lines


def explain_privacy(
    artifact: Annotated[
        Path, typer.Argument(help="Folder of a saved model, or of a device.", metavar="ARTIFACT")
    ],
    details: Annotated[
        bool, typer.Option("--details", help="Show every sum, with its noise and epsilon.")
    ] = False,
) -> None:
    """Explain in plain words how a saved model was made, who saw what, and what is promised."""
    folder = Installed(artifact).current() if Installed.at(artifact) else artifact
    manifest = read_manifest(folder)[1]
    for sentence in explained(manifest) if details else in_everyday_words(manifest):
        say(sentence)
    if not details:
        say("Every sum, with noise and epsilon: --details.")


def doctor(json_file: options.Json = None) -> None:
    """Print versions, threads, BLAS, AES support, free memory and the data sets found."""
    found = facts()
    write_json_lines(json_file, [found])
    width = max(map(len, found))
    for name, value in found.items():
        say(f"{name:<{width}}  {value}")
