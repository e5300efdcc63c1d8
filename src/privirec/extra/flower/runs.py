"""Runs on a running SuperLink: starting one, and asking Flower for its status."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping
from typing import Any

from privirec.durable import write_whole
from privirec.errors import FederationError
from privirec.extra.flower import launch
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.runs import RunFolder, Watch
from privirec.runtime.spec import RunSpec

NUMBER = "flower-run"
"""Name of the file with Flower's number of the run."""


def start_run(home: OperatorFolder, name: str, spec: RunSpec, env: Mapping[str, str]) -> str:
    """Start a run, or resume an unfinished one of the same name and settings.

    A run in progress is left alone. Returns Flower's number of the run.
    """
    run = RunFolder(home, name)
    is_new = not any(run.folder.iterdir())
    if not run.prepare(spec):
        try:
            return (run.folder / NUMBER).read_text(encoding="ascii")
        except FileNotFoundError:
            raise FederationError(f"the run {name} was started by other means") from None
    app = launch.write_app(home.folder / "app")
    where = ["run", str(app), launch.CONNECTION, "--format", "json"]
    configured = f"name={json.dumps(name)}"
    try:
        told = _told(launch.flwr([*where, "--run-config", configured], env))
    except FederationError as error:
        told = {"error-message": str(error)}
    if not told.get("run-id"):
        if is_new:  # the run never existed, so its name stays free
            shutil.rmtree(run.folder)
        why = " ".join(str(told.get("error-message", "Flower does not say why")).split())
        raise FederationError(
            f"the run could not be started ({why}); is it up? privirec server up "
            f"{shlex.quote(str(home.folder))}"
        )
    number = str(told["run-id"])
    write_whole(run.folder / NUMBER, number.encode())
    return number


def follow_run(
    home: OperatorFolder, name: str, number: str, env: Mapping[str, str], watch: Watch
) -> dict[str, Any]:
    """Wait for the end of a run, and return the server's result record."""

    def has_ended() -> bool:
        command = ["ls", launch.CONNECTION, "--run-id", number, "--format", "json"]
        listed = _told(launch.flwr(command, env)).get("runs", [])
        return all(str(run.get("status", "")).startswith("finished") for run in listed)

    return RunFolder(home, name).follow(watch, has_ended)


def _told(text: str) -> dict[str, Any]:
    """Return the JSON object in the output of `flwr --format json`, skipping text before it."""
    found: dict[str, Any] = json.loads(text[text.index("{") :]) if "{" in text else {}
    return found
