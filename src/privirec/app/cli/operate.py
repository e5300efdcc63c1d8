"""Commands of `privirec server` for a server that runs itself: check, log, schedule, rollback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from privirec.app.cli import options
from privirec.app.cli.groups import with_groups
from privirec.app.cli.options import Yes, agree
from privirec.app.cli.run_options import NetworkOptions
from privirec.errors import UsageError
from privirec.rows import print_table, say, warn, write_json_lines
from privirec.runtime import operator_log, schedule, serving
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.health import Level
from privirec.runtime.schedule import Every, Schedule

app = typer.Typer()

Folder = Annotated[Path, typer.Argument(help="The operator's folder.", metavar="SERVER")]


@app.command()
def check(
    folder: Folder,
    address: Annotated[
        str | None,
        typer.Option(help="What clients connect to, as https://HOST:PORT (default: this machine)."),
    ] = None,
    json_file: options.Json = None,
) -> None:
    """Connect to the server as a client does; check certificates, clock, disk, version and roster.

    Exits with 1 if something does not work. What only will not work soon is a warning.

    Examples:

      privirec server check SERVER

      privirec server check SERVER --address https://fed.example.org:9443
    """
    from privirec.app.checking import findings  # noqa: PLC0415 - not for --help

    found = findings(OperatorFolder(folder), address)
    write_json_lines(json_file, [each.as_row() for each in found])
    for each in found:
        show = say if each.level is Level.OK else warn
        show(f"{each.level.value:<5} {each.what}: {each.said}")
    if any(each.level is Level.BAD for each in found):
        raise typer.Exit(1)


@app.command()
def log(folder: Folder, json_file: options.Json = None) -> None:
    """Show what the operator did: approvals, revocations, new keys, runs, rollbacks.

    Each line of SERVER/operator.log seals those before it; a log that was changed is refused.
    """
    OperatorFolder(folder).check()
    rows = operator_log.rows(folder)
    write_json_lines(json_file, rows)
    if not rows:
        say("Nothing was done yet.")
        return
    known = ("at", "by", "did")
    shown = [
        {name: row[name] for name in known}
        | {"what": ", ".join(f"{name} {row[name]}" for name in sorted(row.keys() - {*known}))}
        for row in rows
    ]
    print_table(f"Log of {folder}", [(name, name) for name in (*known, "what")], shown)


@app.command("schedule")
@with_groups
def schedule_runs(
    folder: Folder,
    chosen: NetworkOptions,
    every: Annotated[
        Every | None, typer.Option(help="Start a run in each day, week or month (UTC).")
    ] = None,
    tries: Annotated[
        int,
        typer.Option(min=1, help="Most runs in a period; one that cannot finish is tried again."),
    ] = 5,
    stop: Annotated[bool, typer.Option("--stop", help="Schedule no more runs.")] = False,
) -> None:
    """Let the server start a run by itself in each period, or show what is scheduled.

    The first run starts when the server is up. A run that could not finish is tried again after 10
    minutes, then 20, 40 and so on, at most --tries times in a period. The options are those of
    `privirec server run`.

    Examples:

      privirec server schedule SERVER --every month --epsilon 2

      privirec server schedule SERVER

      privirec server schedule SERVER --stop
    """
    home = OperatorFolder(folder)
    home.check()
    if stop:
        schedule.remove(home)
        operator_log.note(folder, "schedule", every="never")
        say("No runs are scheduled.")
        return
    if every is not None:
        spec = chosen.spec()
        roster = len(home.members.roster())
        spec.for_roster("", len(home.catalogue.item_ids), roster)  # refuse now, not at night
        made = Schedule(every=every, spec=spec.as_chosen().decode(), tries=tries)
        schedule.write(home, made)
        operator_log.note(folder, "schedule", every=every.value, method=spec.method)
    elif chosen.given():
        raise UsageError("options of the runs go with --every")
    _show_schedule(home)


def _show_schedule(home: OperatorFolder) -> None:
    found = schedule.read(home)
    if found is None:
        say("No runs are scheduled; see --every.")
        return
    settings = json.loads(found.spec)
    method = settings.get("program", {}).get("method", "")
    say(f"A run of {method} every {found.every}, at most {found.tries} tries.")
    if found.run:
        say(f"Going on: {found.run}")
    if found.said:
        say(f"Last: {found.said}")
    if found.tried and found.tried < found.tries and not found.run:
        say(f"Next try: {found.not_before:%Y-%m-%d %H:%M} UTC")
    if serving.carrier_up(home) is None:
        warn(
            f"The server is down, and runs start only while it is up: {serving.how_to_start(home)}"
        )


@app.command()
def rollback(
    folder: Folder,
    run: Annotated[
        str | None, typer.Argument(help="Run whose model to use again (default: the one before).")
    ] = None,
    yes: Yes = False,
) -> None:
    """Take the last model back: all clients use the one before it again, until the next run.

    Clients are asked as they connect, in a message that the server signs with a larger number each
    time. Each client keeps two models, so one that has not had this model keeps its own.
    """
    from privirec.app.operating import run_to_go_back_to  # noqa: PLC0415 - not for --help
    from privirec.runtime.https import going_back  # noqa: PLC0415 - not for --help

    home = OperatorFolder(folder)
    name = run or run_to_go_back_to(home)
    going_back.model_hash(home, name)  # raises an error before asking for confirmation
    agree(f"Ask all clients to use the model of the run {name} again?", yes=yes)
    asked = going_back.ask(home, name)
    operator_log.note(folder, "rollback", run=name, model=asked.model[:16])
    say(f"Clients go back to the model of {name} ({asked.model[:16]}) as they connect.")
    if serving.carrier_up(home) is None:
        warn(f"The server is down: {serving.how_to_start(home)}")
