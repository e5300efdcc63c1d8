"""The operator's page: clients by name, the run in progress, all runs, starting and stopping.

It shows what `privirec server status` prints. Runs are started by `privirec server run` and stopped
as by `privirec server stop`. One script of ours keeps the changing part up to date.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping
from urllib.parse import urlencode

from privirec.app.operating import (
    RunOverview,
    Start,
    everybody,
    first_steps,
    overview,
    overviews,
    run_names,
    spent_by_all,
    stop,
)
from privirec.app.pages.frame import FramedSite, Html
from privirec.app.pages.web import PageRequest, Response, see
from privirec.errors import UsageError
from privirec.federated.dp.gaussian import DEFAULT_DELTA
from privirec.federated.programs import DEFAULT_PROGRAM, PROGRAMS
from privirec.privacy.worth import loss_of, worth
from privirec.rows import as_bytes
from privirec.runtime import serving
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.enrolment.invitations import DAYS, Invitations
from privirec.runtime.spec import DEFAULT_AGGREGATOR
from privirec.secagg import protocol, protocol_names

_CLIENTS = [
    ("name", "client"),
    ("client", "number"),
    ("state", "state"),
    ("users", "people"),
    ("bytes_up", "sent"),
    ("bytes_down", "received"),
    ("last_seen", "last seen"),
    ("why", "what it said"),
]
_RUNS = [
    ("link", "run"),
    ("begun", "started (UTC)"),
    ("stage", "stage"),
    ("method", "method"),
    ("aggregator", "summed by"),
    ("in_the_run", "clients in it"),
    ("dropped", "dropped out"),
    ("bytes_up", "sent by all"),
    ("epsilon", "epsilon"),
    ("epsilon_replacing", "epsilon for replacing"),
    ("reason", "why it stopped"),
]


class OperatorSite(FramedSite):
    links = (
        ("", "Now"),
        ("clients", "Clients"),
        ("runs", "Runs"),
        ("start", "Start a run"),
    )
    to_change = ("start",)
    has_viewers = True
    footer = (
        "This page is served by the server's own machine, to this machine only. It shows what the "
        "server knows: sums, sizes and states; nobody's history."
    )
    script = "live.js"

    def __init__(self, home: OperatorFolder) -> None:
        home.check()
        super().__init__("operator.html", f"on {home.folder.name}")
        self._home = home
        self._starts: list[Start] = []
        self.pages |= {
            "": self._now,
            "live": self._live_now,
            "run": self._run,
            "live-run": self._live_run,
            "clients": self._clients,
            "runs": self._runs,
            "start": self._start_form,
        }
        self.changes |= {
            "start": self._start,
            "stop": self._stop,
            "invite": self._invite,
            "approve": self._approve,
        }

    # --- now --------------------------------------------------------------------------------------

    def _now(self, request: PageRequest) -> Response:
        content = self.fill("live", source="live", content=self._at_present())
        return self.page(request, "Now", content)

    def _live_now(self, request: PageRequest) -> Response:
        return Response(Html("".join(self._at_present())).encode())

    def _at_present(self) -> list[Html]:
        """Return the runs in progress, or else the last one."""
        names = run_names(self._home)
        found = [overview(self._home, name) for name in names]
        shown = [each for each in found if each.is_going_on] or found[:1]
        told = [each.outcome for each in self._starts[-3:]]
        if serving.carrier_up(self._home) is None:
            told.append(f"The server is down: {serving.how_to_start(self._home)}")
        return [
            *self.sentences(told),
            *(part for each in shown for part in self._standing(each)),
            *([] if shown else self._first_steps()),
        ]

    def _first_steps(self) -> list[Html]:
        """Return what is done and what is left on the way to the first run."""
        steps = first_steps(self._home)
        ready = all(each.done for each in steps[:-1])
        links = self.fill("start_link" if ready else "clients_link")
        told = [f"{'Done' if each.done else 'To do'}: {each.told}" for each in steps]
        content = [self.points(told), self.fill("sentence", text=links)]
        return [self.fill("section", id="first", heading="The first run", content=content)]

    def _standing(self, each: RunOverview) -> list[Html]:
        """Return the progress of one run, and its clients."""
        row = each.row
        where = str(row["stage"])
        if row["going_on"] and row["sum_number"]:
            where = f"Sum {row['sum_number']} of {row['sums']} ({row['sum']}): {row['step']}"
            where += f" for {row['waited_seconds']} s" if row["waited_seconds"] else ""
        left = row["seconds_left"]
        where += f"; about {_duration(left)} left" if left is not None else ""
        figures = (
            f"{row['in_the_run']} of {row['clients']} clients in it, {row['dropped']} dropped out; "
            f"{as_bytes(row['bytes_up'])} sent by all, {as_bytes(row['bytes_down'])} received; "
            f"{_duration(row['seconds'])} {'so far' if row['going_on'] else 'in all'}."
        )
        done = row["sum_number"] - 1 if row["going_on"] else row["sums"]
        progress = None
        if row["going_on"] and row["sums"]:
            progress = self.fill("progress", most=row["sums"], done=max(done, 0), name=each.name)
        return [
            self.fill(
                "run_now",
                query=urlencode({"name": each.name}),
                name=each.name,
                method=row["method"],
                where=where,
                progress=progress,
                figures=figures,
                reason=self.sentences([row["reason"]] if row["reason"] else []),
            ),
            self.table(f"Clients in {each.name}", _CLIENTS, each.clients),
        ]

    # --- runs -------------------------------------------------------------------------------------

    def _runs(self, request: PageRequest) -> Response:
        found = overviews(self._home)
        rows = [
            each.row
            | {"link": self.fill("run_link", query=urlencode({"name": each.name}), name=each.name)}
            for each in found
        ]
        spent = spent_by_all(found)
        told = (
            "One of them was exact: nothing bounds what all of them reveal together."
            if spent["epsilon"] == "none"
            else f"A person who was in all of them has spent epsilon {spent['epsilon']}, and "
            f"{spent['epsilon_replacing']} for replacing one history by another (at delta "
            f"{DEFAULT_DELTA:g}, unless a run says otherwise). What counts is each client's own "
            f"record. {worth(loss_of(float(spent['epsilon']), DEFAULT_DELTA))}"
        )
        if not found:
            return self.page(request, "Runs", self.sentences(["No run was started yet."]))
        return self.page(
            request, "Runs", self.table("All runs", _RUNS, rows), self.sentences([told])
        )

    def _run(self, request: PageRequest) -> Response:
        each = overview(self._home, request.asked("name"))
        source = f"live-run?{urlencode({'name': each.name})}"
        parts: list[object] = [
            self.fill("live", source=source, content=self._standing(each)),
        ]
        if each.model is not None:
            command = (
                f"To try attacks on its sums, with data that you may look at: privirec audit "
                f"--dataset DATA --release {shlex.quote(str(each.model.parent))}"
            )
            content = [
                self.sentences([f"Signed, in {each.model}."]),
                self.points(told.strip() for told in each.told),
                self.sentences([command]),
            ]
            parts.append(
                self.fill("section", id="model", heading="Its model", content=content),
            )
        if each.is_going_on and request.session.may_change:
            parts.append(self.fill("stop", csrf=request.session.csrf, name=each.name))
        return self.page(request, f"Run {each.name}", *parts)

    def _live_run(self, request: PageRequest) -> Response:
        each = overview(self._home, request.asked("name"))
        return Response(Html("".join(self._standing(each))).encode())

    def _clients(self, request: PageRequest) -> Response:
        name, rows = everybody(self._home)
        told = f"As the run {name} saw them." if name else "No run has asked them yet."
        return self.page(
            request,
            "Clients",
            self.sentences(
                [told if rows else "No client is approved yet: privirec server approve."]
            ),
            self.table("Clients of the roster", _CLIENTS, rows) if rows else None,
            *self._invitations(request),
        )

    # --- invitations ------------------------------------------------------------------------------

    def _invitations(self, request: PageRequest) -> list[Html]:
        """Return the open invitations, those who wait, and the forms for both."""
        invitations = Invitations(self._home)
        still_open, waiting = invitations.open(), invitations.waiting()
        rows = [
            {"name": each.name, "until": f"{each.expires:%Y-%m-%d %H:%M}"} for each in still_open
        ]
        columns = [("name", "client"), ("until", "until (UTC)")]
        found = [self.table("Invited, not here yet", columns, rows)] if rows else []
        if not request.session.may_change:
            return found
        csrf = request.session.csrf
        if waiting:
            names = ", ".join(each.name for each in waiting)
            found.append(self.fill("approve", csrf=csrf, names=names))
        return [*found, self.fill("invite", csrf=csrf, address=_address(self._home))]

    def _invite(self, request: PageRequest) -> Response:
        names = [name.strip() for name in request.given("names").splitlines() if name.strip()]
        if not names:
            raise UsageError("no name was given")
        made = Invitations(self._home).make(names, request.given("address").strip(), days=DAYS)
        rows = [{"name": each.name, "link": f"privirec client join {each.link}"} for each in made]
        told = "Send each client its line, by a way that others do not read. It is shown once."
        columns = [("name", "client"), ("link", "command for this client")]
        table = self.table("Invitations", columns, rows)
        return self.page(request, "Invitations", self.sentences([told]), table)

    def _approve(self, request: PageRequest) -> Response:
        approved = Invitations(self._home).approve_waiting()
        request.session.notice = f"Approved: {', '.join(approved) or 'nobody waits'}."
        return see("clients")

    # --- starting and stopping --------------------------------------------------------------------

    def _start_form(self, request: PageRequest) -> Response:
        methods = {name: _method_in_words(name) for name in PROGRAMS}
        ways = {name: protocol(name).guarantee.value for name in protocol_names()}
        content = self.fill(
            "start",
            csrf=request.session.csrf,
            methods=self._options(methods, DEFAULT_PROGRAM),
            aggregators=self._options(ways, DEFAULT_AGGREGATOR),
        )
        return self.page(request, "Start a run", content)

    def _options(self, choices: Mapping[str, str], chosen: str) -> list[Html]:
        return [
            self.fill(
                "option",
                name=name,
                meaning=meaning,
                chosen=Html(" selected" if name == chosen else ""),
            )
            for name, meaning in choices.items()
        ]

    def _start(self, request: PageRequest) -> Response:
        name = request.given("name")
        options = [
            *("--method", _one_of(request.given("method"), PROGRAMS)),
            *("--aggregator", _one_of(request.given("aggregator"), protocol_names())),
        ]
        if request.given("epsilon"):
            options += ["--epsilon", repr(_positive(request.given("epsilon"), "epsilon"))]
        for setting in ("rank", "rounds"):
            if text := request.given(setting):
                options += [f"--{setting}", f"{int(_positive(text, setting))}"]
        self._starts.append(Start.of(self._home, name, options))
        return see("")

    def _stop(self, request: PageRequest) -> Response:
        name = request.given("name")
        if request.given("confirm") != "yes":
            raise UsageError("nothing was stopped: tick “Yes, end the run” first")
        stop(self._home, name)
        request.session.notice = f"The server ends the run {name} within seconds."
        return see(f"run?{urlencode({'name': name})}")


def _address(home: OperatorFolder) -> str:
    """Return the server's address, as far as it is known."""
    try:
        return serving.address(home)
    except UsageError:
        return ""


def _method_in_words(name: str) -> str:
    if PROGRAMS[name].protects:
        return "sums with noise"
    return "exact sums; clients take part only if their policy names them"


def _one_of(text: str, choices: Iterable[str]) -> str:
    if text not in choices:
        raise UsageError(f"{text[:40]!r}: there are {', '.join(choices)}")
    return text


def _positive(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise UsageError(f"{what}: {text[:40]!r} is not a number above zero")
    return value


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
