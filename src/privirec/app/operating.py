"""Operator's view of runs: clients and status of each run, and how to start and stop one.

`privirec server status`, `privirec server stop` and the operator's page use it.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from privirec.durable import private_folder
from privirec.errors import FederationError, UsageError
from privirec.federated.dp.loss import Loss
from privirec.models.artifact import read_manifest
from privirec.privacy.accountant import Account, Room, Spent
from privirec.privacy.explain import delta_of, explained, losses
from privirec.privacy.policy import Policy
from privirec.privacy.worth import at_least
from privirec.runtime import serving
from privirec.runtime.coordinator import Stage
from privirec.runtime.coordinator.clients import ClientState
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.enrolment.invitations import Invitations
from privirec.runtime.health import Level, disk
from privirec.runtime.https import going_back
from privirec.runtime.https.gate import read_seen
from privirec.runtime.runs import RunFolder

OVER = (Stage.DONE.value, Stage.STOPPED.value)
"""Final stages. A run in another stage that is not in progress can be started again by name."""

_FIGURES = ("epsilon", "epsilon_replacing")


@dataclass(frozen=True)
class RunOverview:
    """State of a run, as read from its folder."""

    name: str
    row: dict[str, Any]
    """Flat row for a table or a JSON line."""
    clients: list[dict[str, Any]]
    """Rows with the state of each client of the roster."""
    model: Path | None
    """Folder of the run's artifact, if there is one."""
    told: list[str]
    """Sentences on the artifact's privacy."""

    @property
    def is_going_on(self) -> bool:
        return bool(self.row["going_on"])


@dataclass(frozen=True)
class FirstStep:
    """One step on the way to the first run."""

    told: str
    done: bool


def first_steps(home: OperatorFolder) -> list[FirstStep]:
    """Return the steps to a first run in a new operator's folder: what is done, what is left."""
    here, invitations = len(home.members.roster()), Invitations(home)
    invited, waiting = len(invitations.open()), len(invitations.waiting())
    least = Policy().smallest_cohort
    tls, items = home.folder / "tls" / "server.crt", home.folder / "catalogue.txt"
    up = serving.carrier_up(home) is not None
    return [
        FirstStep(f"the catalogue, one item id per line: {items}", items.is_file()),
        FirstStep(f"the server's certificate: {tls} (privirec server certificates)", tls.is_file()),
        FirstStep(f"the server is up: {serving.how_to_start(home)}", up),
        FirstStep(
            f"{here} clients have enrolled, {waiting} wait for approval, {invited} more are "
            f"invited; a run needs {least}",
            here >= least,
        ),
        FirstStep("start the first run", False),
    ]


def run_names(home: OperatorFolder) -> list[str]:
    """Return the names of all runs, the latest first."""
    home.check()
    runs = home.folder / "runs"
    found = [path for path in runs.iterdir() if path.is_dir()] if runs.is_dir() else []
    return [path.name for path in sorted(found, key=_begun, reverse=True)]


def overview(home: OperatorFolder, name: str) -> RunOverview:
    """Return the state of a run."""
    folder = home.run(name)
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such run")
    file, status = _read(folder / "run.json"), _read(folder / "status.json")
    result, failure = _read(folder / "result.json"), _read(folder / "failure.json")
    run, server_up = RunFolder(home, name), serving.carrier_up(home) is not None
    going_on = run.is_going_on and (server_up or run.is_served)
    stage = status.get("stage", "") or "starting"
    reason = status.get("reason") or str(failure.get("reason", ""))
    if not (going_on or server_up or reason or stage in OVER) and file:
        reason = _without_server(home, name)
    if not reason and stage not in OVER and (found := disk(folder)).level is Level.BAD:
        reason = found.said
    if not going_on and stage not in OVER:
        stage = "failed" if failure else "not going on"
    clients = list(client_rows(home, status))
    model = folder / "model" if (folder / "model" / "manifest.json").is_file() else None
    manifest = read_manifest(model)[1] if model else {}
    until = time.time() if going_on else _last_sign(folder)
    if result:
        until = (folder / "result.json").stat().st_mtime
    seconds = max(until - _begun(folder), 0.0)
    row = {
        "name": name,
        "run": str(status.get("run", ""))[:8],
        "begun": f"{datetime.fromtimestamp(_begun(folder), UTC):%Y-%m-%d %H:%M}",
        "stage": stage,
        "going_on": going_on,
        "method": file.get("program", {}).get("method", ""),
        "model": file.get("model", ""),
        "aggregator": file.get("aggregator", ""),
        "sum_number": status.get("sum_number", 0),
        "sums": status.get("sums", 0),
        "sum": status.get("sum", ""),
        "step": status.get("step", ""),
        "waited_seconds": status.get("waited", 0),
        "clients": len(clients) if status.get("clients") else len(home.members.roster()),
        "in_the_run": sum(each["takes_part"] for each in clients),
        "dropped": sum(each["state"] == ClientState.DROPPED for each in clients),
        "bytes_up": sum(each["bytes_up"] for each in clients),
        "bytes_down": sum(each["bytes_down"] for each in clients),
        **(_epsilons([manifest]) if model else dict.fromkeys(_FIGURES)),
        "delta": delta_of(manifest),
        "seconds": round(seconds, 1),
        "seconds_left": _estimate(status, seconds) if going_on else None,
        "reason": reason,
        "server_up": server_up,
    }
    return RunOverview(name, row, clients, model, explained(manifest) if model else [])


def everybody(home: OperatorFolder) -> tuple[str, list[dict[str, Any]]]:
    """Return the name of the last run, if any, and its state of each client of the roster."""
    name = next(iter(run_names(home)), "")
    status = _read(home.run(name) / "status.json") if name else {}
    return name, list(client_rows(home, status, everybody=True))


def overviews(home: OperatorFolder) -> list[RunOverview]:
    """Return the states of all runs, the latest first."""
    return [overview(home, name) for name in run_names(home)]


def client_rows(
    home: OperatorFolder, status: dict[str, Any], *, everybody: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the state of each client in a run, for the roster of that run.

    If the run has no roster yet (an empty status), or for `everybody`, yield all clients of the
    present one: also those that were approved after the run, or revoked before it.
    """
    of_the_run = status.get("clients", {})
    seen = read_seen(home)
    for member in home.members.members:
        if of_the_run and str(member.client) not in of_the_run and not everybody:
            continue
        line = of_the_run.get(str(member.client), {})
        state = line.get("state", "")
        since = "revoked since" if member.revoked and state else ""
        yield {
            "client": member.client,
            "name": member.name,
            "state": state or ("revoked" if member.revoked else "approved"),
            "revoked": member.revoked,
            "takes_part": bool(state) and not ClientState(state).is_missing,
            "users": line.get("users", 0),
            "bytes_up": line.get("bytes_up", 0),
            "bytes_down": line.get("bytes_down", 0),
            "why": line.get("why", "") or since,
            "last_seen": ago(time.time() - seen[member.client]) if member.client in seen else "",
        }


def ago(seconds: float) -> str:
    """Return a time in the past in words, as "3 h ago"."""
    for unit, size in (("days", 172_800), ("h", 7200), ("min", 120)):
        if seconds >= size:
            return f"{seconds / {'days': 86_400, 'h': 3600, 'min': 60}[unit]:.0f} {unit} ago"
    return "now"


def spent_by_all(found: Iterable[RunOverview]) -> dict[str, float | str]:
    """Return both figures of epsilon for a person who was in all runs that ended with a model.

    They are "none" if one of the runs was exact.
    """
    return _epsilons([read_manifest(each.model)[1] for each in found if each.model])


def room_of_all(home: OperatorFolder, level: float) -> Room:
    """Return the room for a run of this level that the default policy leaves.

    It is that of a client that was in all runs of this server that ended with a model, and in none
    of another server.
    """
    account = Account.of(
        Spent(datetime.fromtimestamp(_begun(home.run(name)), UTC), name, 1, "", "", loss)
        for name in run_names(home)
        if (home.run(name) / "model" / "manifest.json").is_file()
        for loss in losses(read_manifest(home.run(name) / "model")[1]) or ()
    )
    return Room.of(Policy().limits, account, Loss(level), datetime.now(UTC))


def run_to_go_back_to(home: OperatorFolder) -> str:
    """Return the run before the one whose model is in use."""
    with_model = [
        name for name in run_names(home) if (home.run(name) / "model" / "manifest.json").is_file()
    ]
    asked = going_back.request(home)
    now = with_model.index(asked.run) if asked and asked.run in with_model else 0
    if now + 1 >= len(with_model):
        raise UsageError("there is no model before the one in use: nothing to go back to")
    return with_model[now + 1]


def check_can_stop(home: OperatorFolder, name: str) -> None:
    """Raise an error if the run is not in progress, or if no server is up that could stop it."""
    row = overview(home, name).row
    if row["going_on"]:
        return
    if not row["server_up"] and row["stage"] not in OVER:
        raise FederationError(f"nothing was stopped: {_without_server(home, name)}")
    raise UsageError(f"the run {name} is not going on")


def stop(home: OperatorFolder, name: str) -> None:
    """Ask the server to stop a run that is in progress; the server informs the clients."""
    check_can_stop(home, name)
    RunFolder(home, name).ask_to_stop()


@dataclass(frozen=True)
class Start:
    """A `privirec server run` process started from the page, which outlives the page."""

    name: str
    process: subprocess.Popen[bytes]
    said: Path
    """File with the output of the process."""

    @classmethod
    def of(cls, home: OperatorFolder, name: str, options: Sequence[str]) -> Start:
        """Start the process; `options` are the command's options, without its arguments."""
        home.run(name)  # Raises an error for an invalid name.
        said = private_folder(home.folder / "page") / f"{name}.log"
        # -P keeps Python from importing modules from the page's working directory.
        command = [sys.executable, "-P", "-m", "privirec", "server", "run", *options, "--"]
        with open(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as words:
            process = subprocess.Popen(
                [*command, str(home.folder), name],
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(name, process, said)

    @property
    def outcome(self) -> str:
        """Sentence on the state of the process."""
        code = self.process.poll()
        if code is None:
            return f"{self.name}: started."
        if code == 0:
            return f"{self.name}: ended as it should."
        lines = self.said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"{self.name}: {lines[-1] if lines else f'ended with code {code}'}"


def _epsilons(manifests: Sequence[dict[str, Any]]) -> dict[str, float | str]:
    """Return both figures of epsilon for all sums together, at the largest of their deltas."""
    every = [losses(manifest) for manifest in manifests]
    deltas = [delta for manifest in manifests if (delta := delta_of(manifest))]
    if None in every or (manifests and not deltas):
        return dict.fromkeys(_FIGURES, "none")
    together = Loss.together(one for each in every for one in each or ())
    at = max(deltas, default=0.5)  # without sums, no delta is needed
    both = together.epsilon(at), together.epsilon_replacing(at)
    shown = ("none" if math.isinf(one) else float(at_least(one, digits=5)) for one in both)
    return dict(zip(_FIGURES, shown, strict=True))


def _estimate(status: dict[str, Any], seconds: float) -> float | None:
    """Return the seconds left if further sums take as long as those so far, with gathering."""
    done = status.get("sum_number", 0) - 1
    if done < 1:
        return None
    return round(seconds / done * (status["sums"] - done), 1)


def _without_server(home: OperatorFolder, name: str) -> str:
    """Return why an unfinished run makes no progress, and what to do about it."""
    start = serving.how_to_start(home)
    if (home.folder / "https" / "start" / name).exists():
        return f"the server is down; once it is up it goes on with the run {name}: {start}"
    return (
        f"the server is down: {start}; then start the run {name} again, and it goes on where it "
        "stopped"
    )


def _begun(folder: Path) -> float:
    """Return the time at which the run was first started."""
    file = folder / "run.json"
    return (file if file.exists() else folder).stat().st_mtime


def _last_sign(folder: Path) -> float:
    """Return the time at which the server last worked on the run; 0 if it never did."""
    path = folder / "alive"
    return path.stat().st_mtime if path.exists() else 0.0


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
