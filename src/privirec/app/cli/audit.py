"""`privirec audit`: attacks on a release, and how much each of them recovers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from privirec.app.audit import (
    Audited,
    audit,
    check_release,
    is_refuted,
    read_rows,
    unmet_needs,
)
from privirec.app.audit_page import promise_of, write_page
from privirec.app.cli import options
from privirec.app.cli.groups import with_groups
from privirec.app.cli.table_options import reads_tables
from privirec.app.pictures.audit import audit_plot
from privirec.data import TableOptions, load_dataset
from privirec.errors import UsageError
from privirec.federated.programs import PROGRAMS, Privirec, preset_names
from privirec.privacy.attacks import ATTACKS
from privirec.privacy.worth import at_least
from privirec.progress import shown_progress
from privirec.rows import print_table, say, write_json_lines

COLUMNS = [
    ("attack", "attack"),
    ("users", "people"),
    ("users_recovered", "whole histories"),
    ("users_wrong", "wrong"),
    ("interaction_precision", "precision"),
    ("popularity_precision", "popularity's"),
    ("interaction_recall", "recall"),
    ("lists_share", "user lists"),
    ("auc", "AUC"),
    ("tpr_at_0.1%_fpr", "TPR at 0.1%"),
    ("empirical_epsilon", "epsilon >="),
    ("seconds", "seconds"),
]


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """Options of an audit."""

    dataset: options.Dataset
    release: Annotated[
        str,
        typer.Option(
            help=f"Release to attack: the sums of {' or '.join(PROGRAMS)}, the folder of a saved "
            "model, or the folder of a run on a server.",
            metavar="|".join([*PROGRAMS, "FOLDER"]),
        ),
    ] = Privirec.name
    attack: Annotated[
        list[str] | None,
        options.one_of(ATTACKS, help="Attack to run; may be given several times (default: all)."),
    ] = None
    preset: Annotated[
        str | None,
        options.one_of(
            preset_names(), help="Published settings of a program; paper: exactly the paper's."
        ),
    ] = None
    rank: Annotated[
        int | None,
        typer.Option(
            min=1, help="k, columns of the power method (default: 256; none for privirec)."
        ),
    ] = None
    rounds: options.Rounds = None
    head: Annotated[
        int | None,
        typer.Option(min=1, help="head-gram, protected: number of most popular items to use."),
    ] = None
    epsilon: options.Epsilon = None
    delta: options.Delta = None
    without_noise: Annotated[
        bool,
        typer.Option(
            "--without-noise",
            help="protected: leave out the noise, to check that the attacks work without it.",
        ),
    ] = False
    ring_bits: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Width in bits of the ring that the sums use."),
    ] = None
    seed: options.Seed = 0
    threads: options.Threads = None
    data_dir: options.DataDir = None
    test_file: options.TestFile = None
    by: options.Split = "random"
    json_file: options.Json = None
    report: Annotated[
        Path | None,
        typer.Option(
            help="Also write a page with pictures to this folder (index.html).",
            callback=options.writable_folder,
            show_default=False,
        ),
    ] = None
    picture: options.Picture = None
    beside: Annotated[
        Path | None,
        typer.Option(
            help="With --picture: also draw the rows of this earlier audit (--json) of the same "
            "data set, for example one without protection.",
            show_default=False,
        ),
    ] = None

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the program that were given."""
        names = ("rank", "rounds", "head", "ring_bits", "epsilon", "delta")
        return options.given(**{name: getattr(self, name) for name in names})


@with_groups
@reads_tables
def command(*, chosen: AuditOptions, table: TableOptions) -> None:
    """Attack a release, and report how much of people's histories is recovered.

    A run of a program releases its sums to the server; every client holds the saved model; the
    server's folder of a run has the sums that the server saw. Every attack that applies is run. The
    true histories are used to grade the result, and as the prior knowledge that an attack assumes.

    peeling: an item with few users has a row of the item-item matrix that is a sum of few
    histories. The attack reads these histories and subtracts them, which leaves further items with
    few users. likelihood-peeling: the same for rounded or noisy entries. cliques: the best guesses
    under noise.

    matching-pursuit: recovers such rows from their products with public vectors. start-block:
    recovers the users of items from the paper's first sum.

    differencing: compares two runs that differ by one person or one item. aimed-server: a server
    that asks about single items.

    membership, last-item: whether a person took part, and which single unknown item is in a
    history, for an attacker who knows the rest of the history, and for one who knows all other
    histories as well. canaries: a lower bound on epsilon from artificial people in one run of real
    clients under a hostile server. If it exceeds the promise, the command exits with 1.

    Examples:

      privirec audit --dataset gowalla --release protected --epsilon 1 --report audit

      privirec audit --dataset gowalla --release privirec-k --preset paper --rank 512

      privirec audit --dataset DATA --json exact.jsonl

      privirec audit --dataset DATA --release protected --beside exact.jsonl --picture a.png
    """
    if chosen.beside is not None and chosen.picture is None:
        raise UsageError("--beside is drawn: name a --picture")
    noise = not chosen.without_noise
    check_release(chosen.release, chosen.settings, preset=chosen.preset, noise=noise)
    data = load_dataset(
        chosen.dataset, chosen.data_dir, test_file=chosen.test_file, by=chosen.by, table=table
    )
    earlier = [] if chosen.beside is None else read_rows(chosen.beside, data.name)
    say("This takes seconds to many minutes; longest where an attack reads most (peeling).")
    with shown_progress() as phases:
        audited = audit(
            data,
            chosen.release,
            chosen.settings,
            attacks=chosen.attack,
            preset=chosen.preset,
            seed=chosen.seed,
            noise=noise,
            threads=chosen.threads,
            phases=phases,
        )
    _show(audited, earlier, data.name, chosen)


def _show(
    audited: list[Audited], earlier: list[dict[str, Any]], name: str, chosen: AuditOptions
) -> None:
    """Print, write and draw the results of all attacks."""
    rows = [one.row for one in audited]
    write_json_lines(chosen.json_file, rows)
    release = chosen.release
    if not rows:
        say(f"No attack here applies to {release}, which does not make it safe: {unmet_needs()}.")
        return
    title = f"{name}: what {release} gives away"
    print_table(title, COLUMNS, [_as_shown(row) for row in rows])
    say(promise_of(rows[0]))
    for row in rows:
        say(in_words(row))
    if chosen.picture is not None:
        options.say_drawn(audit_plot(name, [earlier, rows], chosen.picture))
    if chosen.report is not None:
        path = write_page(chosen.report, title, [(one.row, one.found) for one in audited])
        say(f"Pictures in {path}")
    if not chosen.without_noise and any(map(is_refuted, rows)):
        raise typer.Exit(1)


def _as_shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row for display: an attack that claimed nothing shows no precision."""
    missing = row.get("interaction_recall") is not None and row["interaction_precision"] is None
    return {**row, "interaction_precision": "-"} if missing else dict(row)


def _of_canaries(row: Mapping[str, Any]) -> str:
    promised, second = row.get("promised_epsilon"), row.get("promised_epsilon_replacing")
    beside = "nothing was promised" if promised is None else f"promised was {at_least(promised)}"
    other = "" if second is None else f"; promised was {at_least(second)}"
    said = (
        f"Canaries, through real clients: with {row['confidence']:.0%} confidence epsilon is at "
        f"least {row['empirical_epsilon']:.2f} ({row['guesses_right']:,} of {row['guesses']:,} "
        f"guesses were right), and at least {row['empirical_epsilon_gaussian']:.2f} if noise is "
        f"Gaussian; {beside}. For replacing one history by another it is at least "
        f"{row['empirical_epsilon_replacing']:.2f}{other}."
    )
    return f"{said} THE PROMISE IS REFUTED." if is_refuted(row) else said


def in_words(row: Mapping[str, Any]) -> str:
    """Return one sentence about the result of an attack."""
    name = row["attack"].capitalize()
    if row.get("empirical_epsilon") is not None:
        return _of_canaries(row)
    if row.get("auc") is not None:
        return (
            f"{name} tells a participant from an outsider with AUC {row['auc']:.3f}, and finds "
            f"{row['tpr_at_0.1%_fpr']:.1%} of them at 0.1 % false alarms."
        )
    if row["users_recovered"] is None:
        outside = row.get("precision_on_outsiders")
        beside = "" if outside is None else f", and {outside:.1%} of outsiders'"
        return (
            f"{name} guessed {row['interaction_precision'] or 0:.1%} of {row['users']:,} single "
            f"items; popularity {row['popularity_precision']:.1%}{beside}."
        )
    whole = row["users_recovered"] / max(row["users"], 1)
    found = (
        f"{name} read {row['users_recovered']:,} of {row['users']:,} whole histories ({whole:.1%})"
    )
    if row.get("parts"):
        found += f", and of {row['parts_recovered']:,} the part on the released items"
    if row.get("lists_tried"):
        found += (
            f", and the exact users of {row['lists_recovered']:,} of {row['lists_tried']:,} items "
            f"({row['lists_share']:.1%})"
        )
    return f"{found}."
