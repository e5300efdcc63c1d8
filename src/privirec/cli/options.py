"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import click
import typer

from privirec.models import MODELS
from privirec.privacy.policy import Aggregator

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

# Of files with columns.
UserColumn = Annotated[
    str | None, typer.Option(help="Column of user ids, if it has an unusual name.")
]
ItemColumn = Annotated[
    str | None, typer.Option(help="Column of item ids, if it has an unusual name.")
]

# Of runs on a network.
Model = Annotated[
    str, typer.Option(help="Which recommender.", click_type=click.Choice(list(MODELS)))
]
Together = Annotated[
    Literal["privirec", "privirec-k"], typer.Option(help="What the clients compute together.")
]
Rank = Annotated[int | None, typer.Option(min=1, help="k: columns of the power method.")]
Rounds = Annotated[
    int | None, typer.Option(min=1, help="L: secure sums of the power method (default 5).")
]
Summing = Annotated[
    Aggregator, typer.Option(help="How to sum; none: the server sees each contribution.")
]
CorruptShare = Annotated[
    float, typer.Option(min=0, max=0.5, help="Share of clients that may work for the server.")
]
DropShare = Annotated[
    float, typer.Option(min=0, max=0.5, help="Share of the roster that may stay away or drop out.")
]
