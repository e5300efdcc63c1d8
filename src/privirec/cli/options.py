"""Options that several commands share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_args

import click
import typer
from pydantic import BaseModel

from privirec import data
from privirec.data.columns import TableOptions
from privirec.data.datasets import names_here
from privirec.data.splits import WAYS, By
from privirec.errors import DataError, UsageError
from privirec.federated.programs import DEFAULT_ROUNDS, PROGRAMS
from privirec.federated.programs.protected import DEFAULT_DELTA, DEFAULT_EPSILON, ProtectedSettings
from privirec.federated.programs.spectral import SpectralSettings
from privirec.models import MODELS
from privirec.models.artifact import check_replaceable
from privirec.report.pictures import check_picture
from privirec.report.rows import check_writable, say
from privirec.secagg import ServerModel, protocol_names
from privirec.workflows.plan import presets


def finite(given: float | None) -> float | None:
    """A range lets through what is no number, and one without an end lets through infinity."""
    if given is not None and not math.isfinite(given):
        raise typer.BadParameter(f"{given} is not a finite number.")
    return given


def writable_file(path: Path | None) -> Path | None:
    """A file for results: refused before the work if it could not be written after it."""
    check_writable(path)
    return path


def writable_folder(path: Path | None) -> Path | None:
    """A folder for results, likewise."""
    check_writable(folder=path)
    return path


def picture_file(path: Path | None) -> Path | None:
    """A picture, likewise: both of its files."""
    check_picture(path)
    return path


Dataset = Annotated[
    str,
    typer.Option(
        "--dataset",
        help="gowalla, yelp2018, amazon-book, synthetic:NAME, or a path (see: privirec data list).",
    ),
]
Datasets = Annotated[
    str | None,
    typer.Option(
        "--datasets",
        help="Names or paths, separated by commas (default: all found in the data folders).",
        show_default=False,
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
        "--json",
        help="Also write one JSON object a line to this file.",
        callback=writable_file,
        show_default=False,
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
Split = Annotated[
    By,
    typer.Option(
        "--split",
        click_type=click.Choice(list(WAYS)),
        help="A single file: hold out a share of each user's items at random, the latest share of "
        "all interactions, or the latest (without times: a random) item of each user.",
    ),
]
TestFile = Annotated[
    Path | None,
    typer.Option(
        "--test-file",
        help="Take --dataset for a file of train and this one for test.",
        show_default=False,
    ),
]
Save = Annotated[
    Path | None,
    typer.Option(
        "--save",
        help="Save the model in this folder.",
        callback=writable_folder,
        show_default=False,
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace a saved model that is there already.")
]


def refuse_to_replace(files: Iterable[Path], *, hint: str = "") -> None:
    """Refuse to write over files that are there already."""
    for file in files:
        if file.is_file():
            raise UsageError(f"{file}: is there already, and nothing was written{hint}")


def check_save(save: Path | None, overwrite: bool) -> None:
    """Refuse, before hours of work, to replace what is there unless somebody said so."""
    if save is None:
        return
    check_replaceable(save)
    if save.is_dir() and any(save.iterdir()) and not overwrite:
        raise UsageError(f"{save} holds a saved model: choose another folder, or --overwrite it")


def datasets_named(
    names: str | None, data_dir: Path | None, table: TableOptions
) -> list[data.Dataset]:
    """Those with these names, separated by commas, or all that are here."""
    wanted = names.split(",") if names else names_here(data_dir)
    if not wanted:
        raise DataError("no data set is here; run: privirec data get gowalla")
    return [data.load_dataset(name, data_dir, table=table) for name in wanted]


def one_of(names: Iterable[str], **more: Any) -> Any:
    """An option whose choices are the names in a registry."""
    return typer.Option(click_type=click.Choice(list(names)), **more)


def given(**choices: Any) -> dict[str, Any]:
    """What somebody has chosen, without what was left open."""
    return {name: value for name, value in choices.items() if value is not None}


def choices_of(settings: type[BaseModel], field: str) -> list[str]:
    """What a field of a program's settings can be."""
    return list(get_args(settings.model_fields[field].annotation))


# Of runs on a network.
Model = Annotated[
    str | None,
    one_of(MODELS, help="Which recommender (default: what the method is made for, or gf-cf)."),
]
Program = Annotated[str, one_of(PROGRAMS, help="What the clients compute together.")]
Preset = Annotated[str, one_of(presets(), help="See: privirec run --help.")]
Rank = Annotated[int | None, typer.Option(min=1, help="k: columns of the power method.")]
Rounds = Annotated[
    int | None,
    typer.Option(min=1, help=f"L: secure sums of the power method (default {DEFAULT_ROUNDS})."),
]


class CarrierName(StrEnum):
    """Who moves messages between the server and its clients."""

    FLOWER = "flower"
    HTTPS = "https"


Carrier = Annotated[
    CarrierName,
    typer.Option("--carrier", help="flower for a few silos, https for devices, however many."),
]
Picture = Annotated[
    Path | None,
    typer.Option(
        "--picture",
        help="Draw it too: PNG and SVG, whichever is named here.",
        callback=picture_file,
        show_default=False,
    ),
]
Head = Annotated[
    int | None,
    typer.Option(min=1, help="ease, denoised: only so many of the most popular items."),
]
Epsilon = Annotated[
    float | None,
    typer.Option(
        min=0.01,
        max=50,
        callback=finite,
        help=f"protected: the promise to every person (default {DEFAULT_EPSILON:g}).",
    ),
]
Way = Annotated[
    str | None,
    one_of(
        choices_of(ProtectedSettings, "way"),
        help="protected: pairs of items, or a power method; auto: by people for each item.",
    ),
]
Delta = Annotated[
    float | None,
    typer.Option(
        min=1e-15,
        max=0.01,
        callback=finite,
        help=f"protected: the chance that it fails (default {DEFAULT_DELTA:g}).",
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        help="spectral: columns of each round, as 8x128 or 256,128,128 (default: 1.5 times the "
        "rank, in eight rounds). More rounds converge better, more columns hold more; bytes go by "
        "their product.",
        show_default=False,
    ),
]
BlockBits = Annotated[
    int | None,
    typer.Option(
        help="spectral: bits of an entry that clients are sent: 4, 8 or 16 (default 4).",
        show_default=False,
    ),
]
Pairs = Annotated[
    str | None,
    one_of(
        choices_of(SpectralSettings, "pairs"),
        help="spectral: eigenpairs from products alone (nystrom, the default: half a step more), "
        "or from blocks and products.",
    ),
]
Settle = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        callback=finite,
        help="spectral: end before the last round once a round has changed the sum of the Ritz "
        "values by this share or less, as 0.01. Clients agree to all rounds; the rest is not sent.",
        show_default=False,
    ),
]
Aggregator = Annotated[
    str, one_of(protocol_names(), help="How to sum; none: the server sees each contribution.")
]


CorruptShare = Annotated[
    float,
    typer.Option(
        min=0, max=0.5, callback=finite, help="Share of clients that may work for the server."
    ),
]
ServerModelName = Annotated[
    ServerModel,
    typer.Option(
        "--server-model",
        help="What secagg+ and secagg take the server for: active, it may tell each client what it "
        "likes (clients compare what they heard: more neighbours, one more exchange); semi-honest, "
        "it keeps to the protocol and only looks (cheaper, and no protection if it lies).",
    ),
]
DropShare = Annotated[
    float,
    typer.Option(
        min=0,
        max=0.5,
        callback=finite,
        help="Share of the roster that may stay away or drop out.",
    ),
]
UsersPerShard = Annotated[
    int, typer.Option(min=1, help="Users in a shard: as many are in memory at a time.")
]


def say_drawn(files: Iterable[Path]) -> None:
    """Where a picture is."""
    say(f"Drawn in {' and '.join(map(str, files))}")
