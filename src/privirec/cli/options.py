"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Dataset = Annotated[
    str,
    typer.Option(
        "--dataset",
        help="gowalla, yelp2018, amazon-book, synthetic:NAME, or a path (see: privirec data list).",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="Folder of data sets; without it $PRIVIREC_DATA, then the user's cache folder.",
        show_default=False,
    ),
]
Json = Annotated[
    Path | None,
    typer.Option(
        "--json", help="Also write one JSON object a line to this file.", show_default=False
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads", min=1, help="Threads to use (default: all cores).", show_default=False
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        "--seed",
        min=0,
        help="Seed of start blocks and drop-outs; data have their own.",
    ),
]
