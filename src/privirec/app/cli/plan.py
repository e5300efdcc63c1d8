"""`privirec plan`: a method for a budget of bytes, and its costs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from privirec.app.cli import options
from privirec.app.cli.groups import with_groups
from privirec.app.cli.table_options import reads_tables, words_for
from privirec.app.planner import Links, Pilot, Population, Proposal, choose, planned_rows
from privirec.app.planner.losses import loss_rows
from privirec.app.planner.pilot import MOST_BYTES
from privirec.app.planner.rows import DATA
from privirec.app.planner.schedule import lifetime_rows, run_rows, shortened
from privirec.data import Dataset, TableOptions, load_dataset
from privirec.data.datasets import load_sharded
from privirec.errors import UsageError
from privirec.federated.programs import DEFAULT_PROGRAM
from privirec.privacy.worth import promise
from privirec.progress import Phases, shown_progress
from privirec.rows import (
    as_bytes,
    as_duration,
    check_writable,
    parse_bytes,
    parse_rate,
    print_table,
    say,
    warn,
    write_json_lines,
)
from privirec.runtime.reveals import gives_away
from privirec.runtime.spec import (
    CORRUPT_SHARE,
    DEFAULT_AGGREGATOR,
    DROP_SHARE,
    SMALLEST_COHORT,
    Assumptions,
    RunSpec,
)
from privirec.secagg import ProtocolError, ServerModel

AGGREGATORS = ("secagg+", "secagg", "none")
"""Protocols whose CPU seconds can be estimated."""
COLUMNS = [
    ("mark", ""),
    ("method", "method"),
    ("model", "model"),
    ("size", "size"),
    ("ring_bits", "bits"),
    ("validation_ndcg@20", "NDCG@20"),
    ("bytes_up_per_client", "up"),
    ("down", "down"),
    ("added", "+ up, down"),
    ("client_cpu", "CPU"),
    ("client_time", "time"),
    ("bytes_server_receives", "server gets"),
    ("bytes_server_sends", "sends"),
    ("server_cpu", "CPU"),
    ("server_time", "time"),
]

RUN_COLUMNS = [
    ("run", "run"),
    ("epsilon", "epsilon"),
    ("epsilon_together", "together"),
    ("right_guesses", "right guesses"),
    ("expected", "expect after it"),
]
LIFETIME_COLUMNS = [
    ("epsilon", "epsilon"),
    ("right_guesses", "right guesses"),
    ("runs_a_month", "runs a month"),
    ("runs_a_year", "a year"),
    ("runs_in_a_life", "in a life"),
    ("years", "years"),
]
LOSS_COLUMNS = [
    ("mark", ""),
    ("colluding", "may collude"),
    ("missing", "may be missing"),
    ("least", "begin a run"),
    ("honest", "honest in a sum"),
    ("corrupt_share", "--corrupt-share"),
    ("drop_share", "--drop-share"),
]


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of a plan."""

    clients: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of silos: show how many may be missing, and how many may collude with "
            "the server.",
            show_default=False,
        ),
    ] = None

    users: Annotated[
        int | None, typer.Option(help="Number of people, each with one client.", show_default=False)
    ] = None
    items: Annotated[
        int | None, typer.Option(help="Number of items in the catalogue.", show_default=False)
    ] = None
    interactions: Annotated[
        int | None, typer.Option(help="Total number of interactions, if known.", show_default=False)
    ] = None
    largest_degree: Annotated[
        int | None,
        typer.Option(
            help="Number of people with the most popular item, if known; it allows narrower rings "
            "(default: an item that everyone has).",
            show_default=False,
        ),
    ] = None
    top_fifth: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            callback=options.finite,
            help="Share of all interactions on the most popular fifth of the items, if known; it "
            "decides between the most popular items and all items. Gowalla has 0.53, Globo 0.91.",
            show_default=False,
        ),
    ] = None
    dataset: Annotated[
        str | None,
        typer.Option(
            help="Data set, by name or path, to take all these numbers from.", show_default=False
        ),
    ] = None
    budget: Annotated[
        str | None,
        typer.Option(
            help="Upload budget per client, as 50MB (B, kB, MB, GB or TB), without the overhead of "
            "secure aggregation.",
            show_default=False,
        ),
    ] = None
    target: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            callback=options.finite,
            help="NDCG@20 to reach on a validation split of --dataset: a pilot tries budgets up to "
            f"--budget (default {as_bytes(MOST_BYTES)}) and takes the least that reaches it.",
            show_default=False,
        ),
    ] = None
    epsilon: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=50,
            callback=options.finite,
            help="Epsilon of differential privacy for every person; the method is then protected.",
            show_default=False,
        ),
    ] = None
    delta: Annotated[
        float | None,
        typer.Option(
            min=1e-15,
            max=0.01,
            callback=options.finite,
            help="Probability that the promise fails (default: at most 1e-6 and 1 / (10 people)).",
            show_default=False,
        ),
    ] = None
    runs: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            help="Number of runs that share --epsilon-in-total; shows what each may cost.",
            show_default=False,
        ),
    ] = None
    epsilon_in_total: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=50,
            callback=options.finite,
            help="Epsilon of all --runs together, for every person.",
            show_default=False,
        ),
    ] = None
    lifetime: Annotated[
        bool,
        typer.Option(
            "--lifetime", help="Show how many runs of each epsilon the default policy admits."
        ),
    ] = False
    settle: options.Settle = None
    up: Annotated[str, typer.Option(help="Upload speed of a client.")] = "10Mbit/s"
    down: Annotated[str, typer.Option(help="Download speed of a client.")] = "50Mbit/s"
    server_link: Annotated[
        str, typer.Option(help="Speed of the server's link in each direction.")
    ] = "1Gbit/s"
    aggregator: Annotated[
        str, options.one_of(AGGREGATORS, help="Protocol that protects sums; none: no protection.")
    ] = DEFAULT_AGGREGATOR
    corrupt_share: options.CorruptShare = CORRUPT_SHARE
    drop_share: options.DropShare = DROP_SHARE
    server_model: options.ServerModelName = ServerModel.ACTIVE
    out: Annotated[
        Path, typer.Option(help="Folder for a pilot's measurements and chosen settings.")
    ] = Path("privirec-out")
    threads: options.Threads = None
    seed: options.Seed = 0
    data_dir: options.DataDir = None
    json_file: options.Json = None

    @property
    def promised(self) -> dict[str, Any]:
        """Promise of privacy, and the share of clients that it holds against."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "corrupt_share": self.corrupt_share,
        }

    @property
    def links(self) -> Links:
        return Links(
            parse_rate(self.up, "--up"),
            parse_rate(self.down, "--down"),
            parse_rate(self.server_link, "--server-link"),
        )

    @property
    def assumptions(self) -> Assumptions:
        return Assumptions(
            corrupt_share=self.corrupt_share,
            drop_share=self.drop_share,
            server_model=self.server_model,
        )


@with_groups
@reads_tables
def command(*, chosen: PlanOptions, table: TableOptions) -> None:
    """Propose method, size and bits for a budget of bytes, and estimate the costs of a run.

    Bytes up and down equal, to the byte, those that a run of the printed command counts; with
    --epsilon they are what to expect, since noisy popularity decides the sizes during the run. The
    overhead of secure aggregation is shown separately: encoded messages, if no client drops out,
    without the overhead of the carrier. CPU seconds are estimates: the real kernels, timed here for
    a fraction of a second each, times the number of calls. Time is transfer plus CPU of the client
    or the server itself, without waiting for others.

    The proposed method follows from measurements (docs/results/plan.md): EASE on the most popular
    items if they have most of the interactions, spectral otherwise, and protected with --epsilon,
    whose size follows from the promise.

    Examples:

      privirec plan --users 30000 --items 41000 --budget 50MB

      privirec plan --users 30000 --items 41000 --largest-degree 1400 --top-fifth 0.5 --budget 50MB

      privirec plan --users 1000000 --items 100000 --budget 10MB --epsilon 4

      privirec plan --dataset gowalla --budget 60MB --up 2Mbit/s --down 20Mbit/s

      privirec plan --dataset gowalla --target 0.12 --budget 80MB

      privirec plan --users 30000 --items 41000 --runs 12 --epsilon-in-total 8

      privirec plan --lifetime

      privirec plan --clients 4
    """
    if chosen.clients is not None:
        _show_losses(chosen, chosen.clients)
        return
    if chosen.lifetime or chosen.runs is not None or chosen.epsilon_in_total is not None:
        _show_budgets(chosen, table)
        return
    check_writable(folder=None if chosen.target is None else chosen.out)
    links = chosen.links
    _check(chosen)
    most = MOST_BYTES if chosen.budget is None else parse_bytes(chosen.budget)
    population, data = _population(chosen, table)
    pilot = _pilot(chosen, data, population, most)
    if population.users < SMALLEST_COHORT and chosen.aggregator != "none":
        raise UsageError(f"secure aggregation needs at least {SMALLEST_COHORT} users")
    try:
        with shown_progress() as phases:
            if pilot is not None:
                choice = pilot.run(phases)
            else:
                choice = choose(population, most, settle=chosen.settle, **chosen.promised)
            rows = _rows(chosen, choice, links, table, phases)
    except ProtocolError as error:
        raise UsageError(f"{chosen.aggregator} refuses these numbers: {error}") from None
    write_json_lines(chosen.json_file, rows)
    _show(choice, rows, most if chosen.budget is not None else None)


def _rows(
    chosen: PlanOptions, choice: Proposal, links: Links, table: TableOptions, phases: Phases
) -> list[dict[str, Any]]:
    return planned_rows(
        *(choice, links),
        aggregator=chosen.aggregator,
        assumptions=chosen.assumptions,
        dataset=words_for(chosen.dataset or DATA, chosen.data_dir, table),
        phases=phases,
    )


def _show_budgets(chosen: PlanOptions, table: TableOptions) -> None:
    """Print what several runs may cost, or how many runs the default policy admits."""
    if chosen.lifetime:
        rows = lifetime_rows()
        print_table(
            "Runs that the default policy of a client admits", LIFETIME_COLUMNS, shortened(rows)
        )
        say("Right guesses: of 100, about whether a person's history was used; a coin has 50.")
    else:
        if chosen.runs is None or chosen.epsilon_in_total is None:
            raise UsageError("--runs and --epsilon-in-total go together")
        people, _ = _population(chosen, table)
        rows = run_rows(
            *(chosen.runs, chosen.epsilon_in_total, people.users, people.items),
            delta=chosen.delta,
            assumptions=chosen.assumptions,
        )
        title = f"{people.users:,} users, {people.items:,} items, {chosen.runs} runs"
        print_table(title, RUN_COLUMNS, shortened(rows))
        say(f"A run by itself: expect {rows[0]['expected']}. The table is for all sums together.")
        last = rows[-1]
        say(f"All runs: {promise(last['epsilon_together'], last['delta'])}")
    write_json_lines(chosen.json_file, rows)


def _show_losses(chosen: PlanOptions, clients: int) -> None:
    """Print how many clients may be missing, and how many may collude, at what shares."""
    given: dict[str, Any] = {"corrupt_share": chosen.corrupt_share}
    if chosen.drop_share != DROP_SHARE:
        given["drop_share"] = chosen.drop_share
    spec = RunSpec.of(
        DEFAULT_PROGRAM, aggregator=chosen.aggregator, server_model=chosen.server_model, **given
    )
    rows = loss_rows(spec, clients)
    write_json_lines(chosen.json_file, rows)
    shown = [row | {"mark": "->" if row["chosen"] else ""} for row in rows]
    print_table(f"{clients:,} clients, server {chosen.server_model}", LOSS_COLUMNS, shown)
    first = rows[0]
    say(
        f"->: these shares. {first['missing']:,} may be missing until the first sum is opened; "
        "a client that is lost later ends the run. With noise, fewer honest clients mean more "
        "noise of each."
    )


def _check(chosen: PlanOptions) -> None:
    """Raise UsageError for options that do not go together."""
    if chosen.budget is None and chosen.target is None:
        raise UsageError("give a --budget, as 50MB, or a --target to reach on a --dataset")
    if chosen.epsilon is None and chosen.delta is not None:
        raise UsageError("--delta goes with --epsilon")
    if chosen.settle is not None and (chosen.epsilon is not None or chosen.target is not None):
        raise UsageError("--settle goes with neither --epsilon nor --target")
    if chosen.epsilon is not None and chosen.drop_share > DROP_SHARE:
        raise UsageError(
            f"with --epsilon noise is planned for {DROP_SHARE:g} of the clients dropping out, "
            "as in privirec run: give no larger --drop-share"
        )


def _pilot(
    chosen: PlanOptions, data: Dataset | None, population: Population, most: int
) -> Pilot | None:
    """Return the pilot that reaches the target, or None without a target."""
    if chosen.target is None:
        return None
    if data is None:
        raise UsageError("a --target is reached on data in memory: give such a --dataset")
    return Pilot(
        *(data, population, chosen.target, chosen.out, most),
        **chosen.promised,
        seed=chosen.seed,
        threads=chosen.threads,
    )


def _population(chosen: PlanOptions, table: TableOptions) -> tuple[Population, Dataset | None]:
    """Return the population to plan for, and its data set if that is in memory."""
    dataset = chosen.dataset
    numbers: dict[str, Any] = {
        "--users": chosen.users,
        "--items": chosen.items,
        "--interactions": chosen.interactions,
        "--largest-degree": chosen.largest_degree,
        "--top-fifth": chosen.top_fifth,
    }
    if dataset is None:
        if numbers["--users"] is None or numbers["--items"] is None:
            raise UsageError("give --users and --items, or a --dataset")
        return Population(*numbers.values()), None
    known = [name for name, value in numbers.items() if value is not None]
    if known:
        raise UsageError(f"{known[0]} comes from the data set: give that or numbers, not both")
    sharded = load_sharded(dataset)
    if sharded is not None:
        return Population.of_shards(sharded), None
    data = load_dataset(dataset, chosen.data_dir, table=table)
    return Population.of(data), data


def _show(choice: Proposal, rows: list[dict[str, Any]], budget: int | None) -> None:
    people = choice.proposed.population
    where = f"{people.users:,} users, {people.items:,} items"
    limit = f", at most {as_bytes(budget)} up per client" if budget is not None else ""
    cells = [_cells(row) for row in rows]
    columns = [one for one in COLUMNS if any(cell[one[0]] is not None for cell in cells)]
    print_table(f"{where}{limit}", columns, cells)
    first = rows[0]
    say(f"Proposed: {first['method']}, {_size(first)}: {choice.why}.")
    if any(row["may_end_early"] for row in rows):
        say(
            "Bytes, CPU and time of spectral are the most there can be: it ends earlier if it has "
            "settled."
        )
    exact = first["epsilon"] is None
    if exact and people.largest_degree is None:
        say(
            "The largest degree is not known: rings are wide enough for an item that everybody "
            "has, and --largest-degree may make them narrower."
        )
    if exact and not people.knows_popularity:
        say("How popularity is spread is not known: --top-fifth tells.")
    say(
        f"+ up, down: {_protection(first)}. CPU: estimated from kernels timed on this machine, one "
        "thread. Time: transfer and CPU."
    )
    if not exact:
        say("Items, k and bytes are what to expect: noisy popularity decides them during the run.")
    if not all(row["down_is_exact"] for row in rows):
        say("~: privirec hands out what is not zero in P~, which only a data set tells.")
    both = (first["epsilon"], first["delta"], first["epsilon_replacing"])
    promised = None if exact else promise(*both)
    warning = gives_away(first["method"], promised=promised)
    if warning:
        warn(warning)
    say(f"To run it: {first['command']}")


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its cells formatted for display."""
    inexact = "" if row["down_is_exact"] else "~"
    return row | {
        "mark": "->" if row["proposed"] else "" if row["fits"] else "too large",
        "size": _size(row),
        "down": inexact + as_bytes(row["bytes_down_per_client"]),
        "added": ", ".join(
            as_bytes(row[f"aggregation_bytes_{way}_per_client"]) for way in ("up", "down")
        ),
        "client_cpu": as_duration(row["client_cpu_seconds"]),
        "client_time": as_duration(row["client_seconds"]),
        "server_cpu": as_duration(row["server_cpu_seconds"]),
        "server_time": as_duration(row["server_seconds"]),
    }


def _size(row: dict[str, Any]) -> str:
    parts = []
    if row["columns"]:
        parts.append(f"{'at most ' * row['may_end_early']}{row['columns']} columns")
    if row["head"]:
        parts.append(f"{row['head']:,} items")
    if row["rank"]:
        parts.append(f"k = {row['rank']:,}")
    if row["rounds"] and not row["columns"]:
        parts.append(f"L = {row['rounds']}")
    if row["epsilon"]:
        parts.append(f"epsilon {row['epsilon']:.3g}")
    return ", ".join(parts)


def _protection(row: dict[str, Any]) -> str:
    if row["aggregator"] == "none":
        return "nothing is added without secure aggregation, and the server sees every vector"
    return (
        f"what {row['aggregator']} adds against a server that is {row['server_model']}, "
        f"{row['corrupt']:,} corrupt clients and {row['dropped']:,} missing ones, in "
        f"{row['exchanges']} exchanges"
    )
