"""Starting a run on a server that is up, and following it to its end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from privirec.carriers.flower import processes
from privirec.durable import alone, private_folder, write_whole
from privirec.errors import FederationError, UsageError
from privirec.runtime.network.coordinator import Deadlines
from privirec.runtime.network.enrolment.homes import ServerHome
from privirec.runtime.terms import DEFAULT_MODEL, RunTerms

Watch = Callable[[dict[str, Any]], None]
"""Sees the server's status, an empty one before there is any."""

PAUSE = 0.5
ALIVE = "alive"
"""Touched by the server while its run goes on."""
NUMBER = "flower-run"
"""Flower's number of the run."""
SILENCE = 60.0
"""Seconds after which Flower is asked what became of a silent server."""


class RunFile(BaseModel):
    """What a run is started with; kept in the run's folder."""

    model_config = ConfigDict(extra="forbid")

    terms: RunTerms
    model: str = DEFAULT_MODEL
    config: dict[str, Any] = Field(default_factory=dict)
    threads: int | None = None
    deadlines: Deadlines = Deadlines()
    manifest: dict[str, Any] = Field(default_factory=dict)
    """Further facts for the artifact's manifest."""


def start_run(home: ServerHome, name: str, file: RunFile, env: Mapping[str, str]) -> str:
    """Start a run, or go on with one of this name and these settings that did not end.

    Returns Flower's number of it; one that is at work is left alone.
    """
    folder = private_folder(home.run(name))
    content = file.model_dump_json(indent=2).encode()
    path = folder / "run.json"
    if (folder / "result.json").exists():
        raise UsageError(f"the run {name} has ended; give a new one another name")
    if path.exists() and path.read_bytes() != content:
        raise UsageError(f"the run {name} was begun with other settings: see {path}")
    write_whole(path, content)
    try:
        with alone(folder, wait=False):
            pass
    except FederationError:
        try:
            return (folder / NUMBER).read_text(encoding="ascii")
        except FileNotFoundError:
            raise FederationError(f"the run {name} was started by other means") from None
    app = processes.write_app(home.folder / "app")
    # What an earlier attempt said is not about this one.
    if (folder / "server.log").exists():
        (folder / "server.log").replace(folder / "server.log.1")
    configured = f"name={json.dumps(name)}"
    (folder / ALIVE).touch(mode=0o600)
    where = ["run", str(app), processes.CONNECTION, "--format", "json"]
    told = _told(processes.flwr([*where, "--run-config", configured], env))
    if not told.get("run-id"):
        why = " ".join(str(told.get("error-message", "Flower does not say why")).split())
        raise FederationError(
            f"the run could not be started ({why}); is it up? privirec server up {home.folder}"
        )
    number = str(told["run-id"])
    write_whole(folder / NUMBER, number.encode())
    return number


def _told(text: str) -> dict[str, Any]:
    """What `flwr --format json` says, behind whatever else it says."""
    found: dict[str, Any] = json.loads(text[text.index("{") :]) if "{" in text else {}
    return found


def result_of(
    home: ServerHome, name: str, number: str, env: Mapping[str, str], watch: Watch
) -> dict[str, Any]:
    """Wait for the end of a run: what the server wrote about it."""
    folder = home.run(name)
    asked = time.time()
    while True:
        over = (folder / "result.json").exists()
        try:
            watch(json.loads((folder / "status.json").read_bytes()))
        except FileNotFoundError:
            watch({})
        if over:
            found: dict[str, Any] = json.loads((folder / "result.json").read_bytes())
            return found
        _check_log(folder / "server.log")
        silent = time.time() - max(asked, (folder / ALIVE).stat().st_mtime)
        if silent > SILENCE:
            asked = time.time()
            command = ["ls", processes.CONNECTION, "--run-id", number, "--format", "json"]
            listed = _told(processes.flwr(command, env)).get("runs", [])
            ended = all(str(run.get("status", "")).startswith("finished") for run in listed)
            if ended and not (folder / "result.json").exists():
                raise FederationError(
                    f"the server ended in the middle of the run {name}; start it again under the "
                    "same name: it goes on where it stopped"
                )
        time.sleep(PAUSE)


def _check_log(log: Path) -> None:
    """A server that ends before its run does leaves a line in its log only."""
    if not log.exists():
        return
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        _day, _time, level, *said = [*line.split(" ", 3), "", "", ""][:4]
        if level == "CRITICAL":
            raise FederationError("".join(said))
