"""`privirec data`: find, download, inspect and convert data sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

from privirec.app.cli import options
from privirec.app.cli.groups import with_groups
from privirec.app.cli.table_options import reads_tables
from privirec.data.columns import TableOptions
from privirec.data.datasets import (
    PUBLISHED,
    Statistics,
    find,
    load_dataset,
    load_sharded,
    sharded_statistics,
    statistics,
)
from privirec.data.download import SOURCE, download
from privirec.data.formats import SUFFIXES, read_file
from privirec.data.interactions import Interactions
from privirec.data.parts import ROWS_PER_SHARD, convert_parts
from privirec.data.shards import USERS_PER_SHARD, ShardedDataset
from privirec.data.splits import split
from privirec.data.synthetic import (
    DEFAULT_SEED,
    NAMED_SIZES,
    PREFIX,
    SHARDED_SIZES,
    make_shards,
)
from privirec.data.text import fits_text, write_csv, write_lines, write_text
from privirec.errors import DataError, UsageError
from privirec.progress import shown_progress
from privirec.rows import check_writable, print_table, say, write_json_lines

app = typer.Typer(
    help="Find, download, inspect and convert data sets.",
    no_args_is_help=True,
    add_completion=False,
)

WRITTEN = (".txt", ".csv")
"""Suffixes of single files that `data convert` writes."""
NOT_WRITTEN = {*SUFFIXES, ".json", ".jsonl", ".gz", ".zip", ".xlsx", ".feather", ".npz"} - {
    *WRITTEN
}
"""Suffixes of file types that are not written; a folder must not be given such a name."""


@app.command("list")
def list_(data_dir: options.DataDir = None, json_file: options.Json = None) -> None:
    """List the data sets that are known by name, and whether they are on this machine.

    "yes": found and equal to the published files. "other": found, but with other contents.
    Synthetic data sets are generated on demand and need no files. A folder with train.txt and
    test.txt (one user per line: user item item ...) can be given by its path.
    """
    rows: list[dict[str, object]] = []
    for name, published in PUBLISHED.items():
        here, folder = _state(name, data_dir)
        rows.append(
            {
                "dataset": name,
                "users": published.users,
                "items": published.items,
                "train": published.train,
                "test": published.test,
                "here": here,
                "folder": folder,
            }
        )
    for label, size in (NAMED_SIZES | SHARDED_SIZES).items():
        total = round(size.users * size.mean_degree)
        rows.append(
            {
                "dataset": PREFIX + label,
                "users": size.users,
                "items": size.items,
                "train": round(0.8 * total),
                "test": total - round(0.8 * total),
                "here": "in shards" if label in SHARDED_SIZES else "made up",
                "folder": "",
            }
        )
    write_json_lines(json_file, rows)
    headings = [(key, key) for key in ("dataset", "users", "items", "train", "test", "here")]
    print_table("Data sets (synthetic sizes are approximate)", headings, rows)
    say(f"{PREFIX}USERSxITEMS makes up any size, such as {PREFIX}1000x2000.")
    say("What does not fit into memory is made in shards: privirec data make NAME FOLDER")
    if any(row["here"] == "no" for row in rows):
        say("Fetch a missing one with: privirec data get NAME")


@app.command()
def get(
    names: Annotated[list[str], typer.Argument(help=f"One or more of {', '.join(PUBLISHED)}.")],
    data_dir: options.DataDir = None,
    source: Annotated[
        str, typer.Option("--from", help="Base URL of NAME/train.txt and NAME/test.txt.")
    ] = SOURCE,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files that differ from the published ones.")
    ] = False,
) -> None:
    """Download standard data sets and check them against their published checksums.

    An interrupted download resumes where it stopped. A file appears only when it is complete and
    correct. Without a network, put the two files where the error message says.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    for name in names:
        with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
            progress = _shown_on(bar, name)
            folder = download(name, data_dir, source=source, force=force, progress=progress)
        print(f"{name}: in {folder}")


@app.command()
@reads_tables
def info(
    datasets: Annotated[
        list[str],
        typer.Argument(help="Names, folders (train.txt and test.txt, or shards), or single files."),
    ],
    *,
    table: TableOptions,
    data_dir: options.DataDir = None,
    json_file: options.Json = None,
) -> None:
    """Print the statistics of data sets, as in the paper's table.

    Interactions and density count train and test together. The smallest, median and largest user
    and the rare items are those of train, the part that a model is fitted on. The drift says how
    much more the items' counts in test vary than in a random split.
    """
    found = [_statistics_of(dataset, data_dir, table) for dataset in datasets]
    write_json_lines(json_file, [each.row() for each in found])
    _print_statistics(found)


@app.command()
def make(
    name: Annotated[
        str,
        typer.Argument(
            help=f"{', '.join(PREFIX + label for label in SHARDED_SIZES)}, any other synthetic "
            f"name, or {PREFIX}USERSxITEMS.",
            metavar="NAME",
        ),
    ],
    folder: Annotated[
        Path,
        typer.Argument(
            help="A new folder for the shards.",
            metavar="FOLDER",
            callback=options.writable_folder,
        ),
    ],
    users_per_shard: options.UsersPerShard = USERS_PER_SHARD,
    seed: Annotated[int, typer.Option(help="Seed of the generated data.")] = DEFAULT_SEED,
) -> None:
    """Generate a synthetic data set of any size in shards, with one block of users in memory.

    privirec run --dataset FOLDER processes it shard by shard. If the command is interrupted, run it
    again: it continues with the first missing shard. Ten million users take about 1.2 GB on disk.
    """
    if not name.startswith(PREFIX):
        raise UsageError(f"{name}: only synthetic data is made up; its names begin with {PREFIX}")
    with shown_progress() as phases:
        made = make_shards(
            name, folder, seed, users_per_shard=users_per_shard, progress=phases("shards")
        )
    _say_made(made)


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """Options of a conversion."""

    by: options.Split = "random"
    test: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            callback=options.finite,
            help="Share of the interactions to hold out for test (folders only).",
        ),
    ] = 0.2
    seed: Annotated[int, typer.Option(help="Seed for the choice of held-out items.")] = DEFAULT_SEED
    shards: Annotated[
        bool,
        typer.Option(
            "--shards",
            help="Write shards, for data larger than memory; always on for a folder of tables.",
        ),
    ] = False
    rows_per_shard: Annotated[
        int, typer.Option(min=1, help="Approximate number of table rows per shard.")
    ] = ROWS_PER_SHARD


@app.command()
@with_groups
@reads_tables
def convert(
    *,
    chosen: ConvertOptions,
    source: Annotated[
        Path,
        typer.Argument(
            help=f"File to read ({', '.join(SUFFIXES)}), or a folder of tables.", metavar="SOURCE"
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(
            help="A .txt or .csv file to write, or a folder for train and test or for shards.",
            metavar="TARGET",
        ),
    ],
    table: TableOptions,
) -> None:
    """Convert any readable file to a format that all commands read, and split it.

    A target that ends in .txt or .csv becomes one file; any other becomes a folder with a train and
    a test file. Integer ids without times are written as text (user item item ...); names and times
    are kept in tables of user, item, timestamp. A .txt target cannot hold names: they are numbered
    from 0, and two more files (for out.txt: out.users.txt and out.items.txt) map each name to its
    number. Existing files are never replaced.

    A folder of tables in parts (.csv, .tsv, .parquet ...) becomes shards, in bounded memory; a user
    may occur in several parts. privirec run --dataset TARGET processes them shard by shard. If the
    conversion is interrupted, run the same command again and it continues.
    """
    _refuse_target(target)
    if chosen.shards or source.is_dir():
        _convert_to_shards(source, target, chosen, table)
        return
    one_file = target.suffix.lower() in WRITTEN
    options.refuse_to_replace([target] if one_file else _parts_in(target))
    if not one_file and target.is_file():
        raise UsageError(f"{target}: is a file; give a folder or a name that ends in .txt or .csv")
    check_writable(target if one_file else None, folder=None if one_file else target)
    interactions = read_file(source, table)
    if interactions.n_interactions == 0:
        raise DataError(f"{source}: users and no items")
    if one_file:
        dataset = split(interactions, test=0.0, seed=chosen.seed, name=str(target))
        _write_one_file(target, interactions)
    else:
        dataset = split(
            interactions, test=chosen.test, seed=chosen.seed, name=str(target), by=chosen.by
        )
        numbers = fits_text(interactions.user_ids) and fits_text(interactions.item_ids)
        as_text = numbers and interactions.times is None
        write, kind = (write_text, "txt") if as_text else (write_csv, "csv")
        write(target / f"test.{kind}", dataset.test)
        # Written last, because a train file makes the folder a data set.
        write(target / f"train.{kind}", dataset.train)
    _print_statistics([statistics(dataset)])
    say(f"written to {target}")


def _convert_to_shards(
    source: Path, target: Path, chosen: ConvertOptions, table: TableOptions
) -> None:
    if chosen.by != "random":
        raise UsageError(f"shards are split at random, each by itself: not by {chosen.by}")
    check_writable(folder=target)
    with shown_progress() as phases:
        made = convert_parts(
            source,
            target,
            options=table,
            test=chosen.test,
            seed=chosen.seed,
            rows_per_shard=chosen.rows_per_shard,
            progress=phases("shards"),
        )
    _say_made(made)


def _refuse_target(target: Path) -> None:
    """Raise UsageError for a target with a suffix that is not written.

    Otherwise it would become a folder with a misleading name.
    """
    suffix = target.suffix.lower()
    if suffix in NOT_WRITTEN and not target.is_dir():
        raise UsageError(
            f"{target}: {suffix} is not written here; give a file that ends in .txt or .csv, or a "
            "folder"
        )


def _parts_in(folder: Path) -> list[Path]:
    """Return all paths that would be read as a train or test file of this folder."""
    return [folder / f"{part}{suffix}" for part in ("train", "test") for suffix in SUFFIXES]


def _write_one_file(target: Path, interactions: Interactions) -> None:
    if target.suffix.lower() == ".csv":
        write_csv(target, interactions)
        return
    if not (fits_text(interactions.user_ids) and fits_text(interactions.item_ids)):
        interactions = _numbered(interactions, target)
    write_text(target, interactions)
    if interactions.times is not None:
        say("Times are not in it: a target that ends in .csv keeps them.")


def _numbered(interactions: Interactions, target: Path) -> Interactions:
    """Replace names by numbers, and write the names to files next to the target."""
    users, items = (target.with_name(f"{target.stem}.{kind}.txt") for kind in ("users", "items"))
    options.refuse_to_replace([users, items])
    _write_names(users, interactions.user_ids)
    _write_names(items, interactions.item_ids)
    say(f"Names are numbered: {users} and {items} say which name got which number.")
    return Interactions.from_matrix(interactions.matrix, times=interactions.times)


def _say_made(made: ShardedDataset) -> None:
    say(
        f"{made.name}: {made.n_users:,} users, {made.n_items:,} items, {made.n_interactions:,} "
        f"interactions in {len(made):,} shard{'' if len(made) == 1 else 's'} in {made.folder}"
    )


def _statistics_of(dataset: str, data_dir: Path | None, table: TableOptions) -> Statistics:
    if (sharded := load_sharded(dataset)) is not None:
        return sharded_statistics(sharded)
    return statistics(load_dataset(dataset, data_dir, table=table))


def _shown_on(bar: Progress, name: str) -> Callable[[str, int, int | None], None]:
    tasks: dict[str, TaskID] = {}

    def show(file: str, done: int, total: int | None) -> None:
        if file not in tasks:
            tasks[file] = bar.add_task(f"{name}/{file}")
        bar.update(tasks[file], completed=done, total=total)

    return show


def _state(name: str, data_dir: Path | None) -> tuple[str, str]:
    try:
        folder = find(name, data_dir)
    except DataError:
        return "no", ""
    files = PUBLISHED[name].files
    right = all((folder / file).is_file() for file in files) and all(
        published.matches(folder / file) for file, published in files.items()
    )
    return ("yes" if right else "other"), str(folder)


def _print_statistics(found: Sequence[Statistics]) -> None:
    """Print one column per data set, because many figures fit a narrow terminal better as rows."""
    lines = {
        "users": [f"{each.users:,}" for each in found],
        "items": [f"{each.items:,}" for each in found],
        "interactions": [f"{each.interactions:,}" for each in found],
        "density": [f"{each.density:.3%}" for each in found],
        "train": [f"{each.train:,}" for each in found],
        "test": [f"{each.test:,}" for each in found],
        "smallest user": [f"{each.smallest_user:,}" for each in found],
        "median user": [f"{each.median_user:,.0f}" for each in found],
        "largest user": [f"{each.largest_user:,}" for each in found],
        "items with fewer than 5 users": [f"{each.items_under_5_users:,}" for each in found],
        "items without users": [f"{each.items_without_users:,}" for each in found],
        "users without test items": [f"{each.users_without_test:,}" for each in found],
        "drift of test (random: 1)": [
            "-" if each.test_drift is None else f"{each.test_drift:.1f}" for each in found
        ],
    }
    names = [each.dataset for each in found]
    rows = [{"": label} | dict(zip(names, cells, strict=True)) for label, cells in lines.items()]
    print_table("Statistics", [("", ""), *((name, name) for name in names)], rows)


def _write_names(path: Path, ids: np.ndarray) -> None:
    write_lines(path, (f"{name}\t{number}" for number, name in enumerate(ids.tolist())))
