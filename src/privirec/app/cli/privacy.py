"""`privirec explain-privacy`: how a saved model was made, and what is promised."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privirec.models.artifact import read_manifest
from privirec.privacy.explain import explained
from privirec.rows import say


def explain_privacy(
    artifact: Annotated[Path, typer.Argument(help="Folder of a saved model.", metavar="ARTIFACT")],
) -> None:
    """Explain in plain words how a saved model was made, who saw what, and what is promised."""
    for sentence in explained(read_manifest(artifact)[1]):
        say(sentence)
