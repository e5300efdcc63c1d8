"""`privirec server`: the server of a federation, and its runs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from privirec.app.cli import operate, options, roster
from privirec.app.cli.groups import with_groups
from privirec.app.cli.options import Yes, agree
from privirec.app.cli.run_options import NetworkOptions
from privirec.errors import FederationError, UsageError
from privirec.federated.programs import Program, program_of
from privirec.federated.settings import MethodSettings
from privirec.rows import print_table, say, shown_federation, warn, write_json_lines
from privirec.runtime import serving
from privirec.runtime.carriers import DEFAULT_CARRIER, Listening, installed_carrier
from privirec.runtime.coordinator import Stage
from privirec.runtime.earlier import last_run, run_to_go_on_from
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.health import Level, disk
from privirec.runtime.reveals import outlook, server_sees
from privirec.runtime.spec import RunSpec

if TYPE_CHECKING:
    from privirec.runtime.runs import Watch

app = typer.Typer(
    help="Operate the server of a federation, and run programs on it.",
    no_args_is_help=True,
    add_completion=False,
)
app.add_typer(roster.app)
app.add_typer(operate.app)

_CLIENT_COLUMNS = [
    (name, name)
    for name in ("client", "name", "state", "users", "bytes_up", "bytes_down", "last_seen", "why")
]
_SEEN_COLUMNS = [(name, name) for name in ("client", "name", "state", "last_seen")]
_RUN_COLUMNS = [
    (name, name)
    for name in (
        *("name", "begun", "stage", "method", "in_the_run", "clients", "dropped", "bytes_up"),
        *("epsilon", "epsilon_replacing"),
    )
]

Folder = Annotated[Path, typer.Argument(help="The operator's folder.", metavar="SERVER")]
LargestReply = Annotated[int, typer.Option(min=1, help="Largest reply of a client, in megabytes.")]
WatchedPort = Annotated[
    int,
    typer.Option(min=0, max=65535, help="https: port for /metrics and /health; 0 for none."),
]
WatchedHost = Annotated[
    str, typer.Option(help="https: address for /metrics and /health; 0.0.0.0 in a container.")
]
BehindProxy = Annotated[
    bool,
    typer.Option(
        "--behind-proxy",
        help="https: a reverse proxy on this machine terminates TLS; listen on 127.0.0.1 only.",
    ),
]


@app.command()
def up(
    context: typer.Context,
    folder: Folder,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",  # noqa: S104
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port for clients.")] = 9443,
    largest_reply: LargestReply = Listening.largest_reply >> 20,
    carrier: options.Carrier = DEFAULT_CARRIER,
    watched_port: WatchedPort = 9464,
    watched_host: WatchedHost = "127.0.0.1",
    behind_proxy: BehindProxy = False,
) -> None:
    """Serve approved clients until interrupted; other clients cannot connect.

    Runs can be started on this machine only.

    Examples:

      privirec server up SERVER

      privirec server up SERVER --port 9543
    """
    listening = Listening(
        "127.0.0.1" if behind_proxy else host,
        port,
        watched_port,
        watched_host,
        behind_proxy,
        largest_reply << 20,
    )
    home = OperatorFolder(folder)
    installed_carrier(carrier).serve(home, listening, _given_to(context), say)


def _given_to(context: typer.Context) -> list[str]:
    """Return the options that differ from their defaults, as words of a command line."""
    words: list[str] = []
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if not isinstance(option, click.Option) or value == option.get_default(context):
            continue
        words += [option.opts[0]] if option.is_flag else [option.opts[0], str(value)]
    return words


@app.command()
@with_groups
def run(
    folder: Folder,
    name: Annotated[
        str, typer.Argument(help="Name of the run; an existing name resumes that run.")
    ],
    chosen: NetworkOptions,
    after: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Earlier run to whose released sums protected adds; none: begin anew.",
            show_default="the last one",
        ),
    ] = None,
) -> None:
    """Run a program on a running server, and follow it to its end.

    The same command follows the run again, or shows its result if it has ended.
    """
    home = OperatorFolder(folder)
    has_ended = (home.run(name) / "result.json").exists()
    spec = chosen.spec()
    n_items = len(home.catalogue.item_ids)
    if not (approved := len(home.members.roster())):
        where = shlex.quote(str(folder))
        raise UsageError(f"nobody is in the roster yet: privirec server approve {where} CARD")
    spec = _after(home, name, spec, after)
    spec = (spec.resolved if has_ended else spec.for_roster)("", n_items, approved)
    carrier = installed_carrier(serving.last_carrier(home) if has_ended else serving.check_up(home))
    if not has_ended:  # warn before any client is asked
        (say if spec.protected else warn)(spec.notes["gives_away"])
        if seen := server_sees(spec.aggregator):
            warn(seen)
        _propose_epsilon(home, program_of(spec.program, approved, n_items))
    carrier.start_run(home, name, spec)
    if has_ended:
        say(f"The run {name} has ended, and this came of it; a new one needs another name.")
    try:
        with shown_federation() as shown:
            expecting = _saying_what_to_expect(shown, spec.program, n_items)
            expecting = _saying_that_the_disk_is_full(expecting, folder)
            result = carrier.follow_run(home, name, shown if has_ended else expecting)
    except BaseException as stop:
        if not isinstance(stop, Exception):
            warn("The run goes on in the server; the same command follows it again.")
        raise
    _show_result(result, chosen.json_file)
    say(f"Model signed and handed out: {home.run(name) / 'model'}")


def _after(home: OperatorFolder, name: str, spec: RunSpec, after: str | None) -> RunSpec:
    """Return the spec of a run that adds to the released sums of an earlier one, if there is one.

    A run that was begun before goes on from the sums that it began with.
    """
    if not spec.protected:
        if after is not None:
            raise UsageError(f"{spec.method} does not go on from an earlier run")
        return spec
    begun = home.run(name) / "run.json"
    if begun.exists():
        digest = RunSpec.read(begun).program.given().get("after")
        return spec if digest is None else spec.changed(after=digest)
    earlier = run_to_go_on_from(home, after)
    if earlier is None:
        return spec
    earlier.over(home.catalogue.item_ids)  # refuses a model of other items
    say(
        f"It adds to what {len(earlier.runs)} earlier runs released, the last one {last_run(home)}."
    )
    return spec.changed(after=earlier.digest)


def _propose_epsilon(home: OperatorFolder, program: Program[Any]) -> None:
    """Say which epsilon everybody can still pay, if the default policy does not admit this run."""
    from privirec.app.operating import room_of_all  # noqa: PLC0415 - not for --help

    if not program.level:
        return
    room = room_of_all(home, program.level)
    if room.level >= program.level:
        return
    epsilon = room.epsilon(program.delta)
    now = f"--epsilon {epsilon:g} now" if epsilon else "nothing now"
    later = f"and this run from {room.day} on" if room.day else "and this run never"
    warn(
        "This run costs more than the default policy leaves to a client that was in all runs of "
        f"this server. It can pay {now}, {later}."
    )


def _show_result(result: dict[str, Any], json_file: Path | None) -> None:
    """Print and write the result of a run; raise FederationError if it has failed."""
    if result["reason"]:
        _show(result["status"] | {"reason": ""})  # with the reason of each client
        raise FederationError(result["reason"])
    row = {key: value for key, value in result.items() if key not in ("status", "reason")}
    write_json_lines(json_file, [row])
    _show(result["status"])


def _saying_what_to_expect(watch: Watch, settings: MethodSettings, n_items: int) -> Watch:
    """Return a watch that prints once how useful the model can be under this noise.

    It does so as soon as the number of people is known: when all clients are gathered, and before
    any client sends a vector.
    """
    is_said = False

    def see(status: dict[str, Any]) -> None:
        nonlocal is_said
        people = sum(each["users"] for each in status.get("clients", {}).values())
        is_gathered = status.get("stage") != Stage.GATHERING.value
        if people and is_gathered and not is_said:
            is_said = True
            if expected := outlook(settings, people, n_items):
                say(expected)
        watch(status)

    return see


def _saying_that_the_disk_is_full(watch: Watch, folder: Path) -> Watch:
    """Return a watch that warns each time the disk gets full."""
    was_full = False

    def see(status: dict[str, Any]) -> None:
        nonlocal was_full
        found = disk(folder)
        is_full = found.level is Level.BAD
        if is_full and not was_full:
            warn(found.said)
        was_full = is_full
        watch(status)

    return see


@app.command()
def status(
    folder: Folder,
    name: Annotated[str | None, typer.Argument(help="Name of a run (default: all runs).")] = None,
    json_file: options.Json = None,
) -> None:
    """Show the status of a run, or list all runs.

    Examples:

      privirec server status SERVER

      privirec server status SERVER monday --json status.jsonl
    """
    from privirec.app.operating import (  # noqa: PLC0415 - not for --help
        everybody,
        overview,
        overviews,
        spent_by_all,
    )

    home = OperatorFolder(folder)
    if name is not None:
        each = overview(home, name)
        write_json_lines(json_file, [each.row | {"by_client": each.clients}])
        row = each.row
        where = f" {row['sum_number']} of {row['sums']}: {row['step']}" if row["sum_number"] else ""
        reason = f": {row['reason']}" if row["reason"] else ""
        print_table(f"{row['stage']}{where}{reason}", _CLIENT_COLUMNS, each.clients)
        return
    runs = overviews(home)
    if serving.carrier_up(home) is None:
        warn(f"The server is down: {serving.how_to_start(home)}")
    if (found := disk(folder)).level is Level.BAD:
        warn(found.said)
    write_json_lines(json_file, [each.row for each in runs])
    _, clients = everybody(home)
    if clients:
        print_table(f"Clients of {folder}", _SEEN_COLUMNS, clients)
    if not runs:
        say("No run was started yet.")
        return
    print_table(f"Runs of {folder}", _RUN_COLUMNS, [each.row for each in runs])
    first, second = spent_by_all(runs).values()
    say(
        f"Epsilon for somebody who was in all of them: {first}, and {second} for replacing one "
        "history by another."
    )


@app.command()
def stop(
    folder: Folder,
    name: Annotated[str, typer.Argument(help="Name of the run.")],
    yes: Yes = False,
) -> None:
    """Stop a run in progress and notify its clients. A stopped run cannot be resumed."""
    from privirec.app.operating import check_can_stop, stop  # noqa: PLC0415

    home = OperatorFolder(folder)
    check_can_stop(home, name)  # before asking for confirmation
    agree(f"End the run {name}? It cannot go on again.", yes=yes)
    stop(home, name)
    look = shlex.join(["privirec", "server", "status", str(folder), name])
    say(f"The server ends the run {name} within seconds: {look}")


@app.command()
def page(
    folder: Folder,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on this machine; 0 for any free one.")
    ] = 0,
) -> None:
    """Serve the operator's page on this machine until interrupted.

    The page shows the clients, the run in progress and all runs, and can start and stop runs. Open
    the first printed address: it contains a token that gives access to you alone. The second one is
    for those who only look: it changes nothing. From another machine:
    ssh -L PORT:127.0.0.1:PORT, with the same port on both ends.
    """
    from privirec.app.pages.operator import OperatorSite  # noqa: PLC0415 - not needed for --help
    from privirec.app.pages.web import serve  # noqa: PLC0415

    serve(OperatorSite(OperatorFolder(folder)), port)


def _show(found: dict[str, Any]) -> None:
    rows = [{"client": int(client), **line} for client, line in found["clients"].items()]
    names = ("client", "state", "users", "bytes_up", "bytes_down", "why")
    reason = f": {found['reason']}" if found["reason"] else ""
    print_table(f"{found['stage']}{reason}", [(name, name) for name in names], rows)
