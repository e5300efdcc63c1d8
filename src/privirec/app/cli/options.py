"""Options shared by several commands."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import click
import typer

from privirec import data
from privirec.app.pictures import check_picture
from privirec.data.columns import TableOptions
from privirec.data.datasets import names_here
from privirec.data.splits import WAYS, By
from privirec.errors import DataError, UsageError
from privirec.federated.programs import DEFAULT_ROUNDS
from privirec.federated.programs.protected import DEFAULT_EPSILON
from privirec.models import MODELS
from privirec.models.artifact import check_replaceable
from privirec.rows import check_writable, say
from privirec.runtime.carriers import carrier_names
from privirec.runtime.spec import AUTO
from privirec.secagg import ServerModel


def finite(given: float | None) -> float | None:
    """Refuse NaN and infinity, which Click's ranges can let through."""
    if given is not None and not math.isfinite(given):
        raise typer.BadParameter(f"{given} is not a finite number.")
    return given


def writable_file(path: Path | None) -> Path | None:
    """Check before any work that a file for results can be written."""
    check_writable(path)
    return path


def writable_folder(path: Path | None) -> Path | None:
    """Check before any work that a folder for results can be written."""
    check_writable(folder=path)
    return path


def picture_file(path: Path | None) -> Path | None:
    """Check before any work that both files of a picture can be written."""
    check_picture(path)
    return path


Dataset = Annotated[
    str,
    typer.Option(
        "--dataset",
        metavar="DATA",
        help="Name, synthetic:NAME, or a path; see: privirec data list.",
    ),
]
Datasets = Annotated[
    str | None,
    typer.Option(
        "--datasets",
        help="Data sets, by name or path, separated by commas (default: all in the data folders).",
        show_default=False,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="FOLDER",
        help="Folder of data sets (default: $PRIVIREC_DATA, then the cache).",
        show_default=False,
    ),
]
Json = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Also write the results here, one JSON object per line.",
        callback=writable_file,
        show_default=False,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        metavar="N",
        help="Number of threads (default: all cores).",
        show_default=False,
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        "--seed",
        min=0,
        metavar="N",
        help="Seed of start blocks and drop-outs, not of data.",
    ),
]
Split = Annotated[
    By,
    typer.Option(
        "--split",
        click_type=click.Choice(list(WAYS)),
        metavar="WAY",
        help="Test items of one file. random: a share of each user's; time: the latest; "
        "leave-one-out: each user's latest.",
    ),
]
TestFile = Annotated[
    Path | None,
    typer.Option(
        "--test-file",
        metavar="FILE",
        help="Test interactions; --dataset is then the train file.",
        show_default=False,
    ),
]
Save = Annotated[
    Path | None,
    typer.Option(
        "--save",
        metavar="FOLDER",
        help="Folder to save the model in.",
        callback=writable_folder,
        show_default=False,
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing saved model.")]


def refuse_to_replace(files: Iterable[Path], *, hint: str = "") -> None:
    """Raise UsageError if one of these files exists."""
    for file in files:
        if file.is_file():
            raise UsageError(f"{file}: is there already, and nothing was written{hint}")


def check_save(save: Path | None, overwrite: bool) -> None:
    """Raise UsageError, before any work, if `save` is in use and may not be overwritten."""
    if save is None:
        return
    check_replaceable(save)
    if save.is_dir() and any(save.iterdir()) and not overwrite:
        raise UsageError(f"{save} holds a saved model: choose another folder, or --overwrite it")


def datasets_named(
    names: str | None, data_dir: Path | None, table: TableOptions
) -> list[data.Dataset]:
    """Load the data sets with these names, separated by commas, or all that are found."""
    wanted = names.split(",") if names else names_here(data_dir)
    if not wanted:
        raise DataError("no data set is here; run: privirec data get gowalla")
    return [data.load_dataset(name, data_dir, table=table) for name in wanted]


def one_of(names: Iterable[str], **more: Any) -> Any:
    """Return an option whose choices are these names."""
    return typer.Option(click_type=click.Choice(list(names)), **more)


def given(**choices: Any) -> dict[str, Any]:
    """Return the options that were given, without those that are None."""
    return {name: value for name, value in choices.items() if value is not None}


# Options of runs on a network.
Model = Annotated[
    str | None,
    one_of(
        MODELS,
        metavar="NAME",
        help=f"Model: {', '.join(MODELS)} (default: the one of the method, or gf-cf).",
    ),
]
ModelOrAuto = Annotated[
    str | None,
    one_of(
        (*MODELS, AUTO),
        metavar="NAME",
        help=f"Model: {', '.join(MODELS)}; {AUTO}: the best on a validation split "
        "(default: the method's, or gf-cf).",
    ),
]
Rounds = Annotated[
    int | None,
    typer.Option(min=1, help=f"L, the secure sums of the power method (default {DEFAULT_ROUNDS})."),
]


Carrier = Annotated[
    str,
    one_of(
        carrier_names(), help="Transport: https, or flower if you already run a Flower network."
    ),
]
Picture = Annotated[
    Path | None,
    typer.Option(
        "--picture",
        help="Also draw the result, as PNG and SVG; name either of the two files.",
        callback=picture_file,
        show_default=False,
    ),
]
Epsilon = Annotated[
    float | None,
    typer.Option(
        min=0.01,
        max=50,
        metavar="X",
        callback=finite,
        help=f"protected: epsilon promised to every person (default {DEFAULT_EPSILON:g}).",
    ),
]
Delta = Annotated[
    float | None,
    typer.Option(
        min=1e-15,
        max=0.01,
        metavar="X",
        callback=finite,
        help="protected: probability that the promise fails (default: at most 1e-6 and "
        "1 / (10 people)).",
    ),
]
Settle = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        metavar="X",
        callback=finite,
        help="spectral: stop once a round changes the sum of the Ritz values by at most this "
        "share, for example 0.01.",
        show_default=False,
    ),
]
CorruptShare = Annotated[
    float,
    typer.Option(
        min=0,
        max=0.5,
        metavar="X",
        callback=finite,
        help="Share of clients that may collude with the server.",
    ),
]
ServerModelName = Annotated[
    ServerModel,
    typer.Option(
        "--server-model",
        metavar="NAME",
        help="Server to protect against. active: it may lie to clients (one more exchange); "
        "semi-honest: it only observes.",
    ),
]
DropShare = Annotated[
    float,
    typer.Option(
        min=0,
        max=0.5,
        callback=finite,
        help="Share of the roster that may be absent or drop out.",
    ),
]
UsersPerShard = Annotated[
    int, typer.Option(min=1, help="Users per shard, and in memory at a time.")
]


def say_drawn(files: Iterable[Path]) -> None:
    """Print the files of a picture."""
    say(f"Drawn in {' and '.join(map(str, files))}")


Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation, for scripts.")]


def agree(question: str, *, yes: bool) -> None:
    """Raise UsageError unless the user confirms, on the terminal or by --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} There is no terminal to ask on: check it and give --yes")
    if not typer.confirm(question):
        raise UsageError("nothing was changed")
