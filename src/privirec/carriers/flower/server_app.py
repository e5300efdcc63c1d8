"""The server as Flower starts it: a coordinator, and a loop that carries its messages.

Its folder is in the environment (PRIVIREC_SERVER), because whoever may start runs should not be
able to choose one. A run that was interrupted goes on when one of the same name is started again.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import time
from pathlib import Path
from typing import Any, NoReturn

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from privirec import threads as threading
from privirec.carriers.flower.carriage import KIND, pack, unpack
from privirec.carriers.flower.runs import ALIVE, RunFile
from privirec.durable import alone, private_folder, write_whole
from privirec.errors import FederationError, PrivirecError
from privirec.federated.programs import program_class
from privirec.models import MODELS
from privirec.runtime.network.coordinator import Coordinator, Stage
from privirec.runtime.network.enrolment.homes import ServerHome
from privirec.runtime.network.logs import log_to
from privirec.runtime.terms import RunTerms, run_defaults

app = ServerApp()
log = logging.getLogger("privirec.server")

PAUSE = 0.25
"""Seconds between two looks for replies."""
LAST_WORDS = 20.0
"""Seconds in which clients can hear that a run is over."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run, from its name to an artifact on every client."""
    home = ServerHome(Path(os.environ["PRIVIREC_SERVER"]))
    name = str(context.run_config.get("name") or f"run-{context.run_id}")
    folder = private_folder(home.run(name))
    with alone(folder, wait=False):
        _alone(grid, context, home, folder)


def _alone(grid: Grid, context: Context, home: ServerHome, folder: Path) -> None:
    """The run, in a folder where nobody else is at work."""
    name = folder.name
    log_to(folder / "server.log")
    try:
        coordinator = _run(grid, context, home, folder)
    except OSError as error:
        _die(
            f"the server's folder cannot be written ({error.strerror or error}); make room and "
            f"start the run {name} again: it goes on where it stopped"
        )
    except PrivirecError as error:
        _die(str(error))
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        _die(f"the server ended ({what[:200]}); start the run {name} again: it goes on")
    coordinator.raise_if_stopped()


def _die(reason: str) -> NoReturn:
    log.critical("%s", reason)
    raise FederationError(reason) from None


def _run(grid: Grid, context: Context, home: ServerHome, folder: Path) -> Coordinator:
    started = time.monotonic()
    file = _run_file(folder, context)
    with threading.limit(file.threads) as threads:
        roster = home.members.roster()
        coordinator = Coordinator(
            folder, home.operator, roster, home.catalogue, file.terms, file.deadlines
        )
        try:
            _carry(grid, coordinator, home, folder, file, threads)
        finally:
            coordinator.close()
    _result(folder, coordinator, time.monotonic() - started)
    return coordinator


def _carry(
    grid: Grid,
    coordinator: Coordinator,
    home: ServerHome,
    folder: Path,
    file: RunFile,
    threads: int,
) -> None:
    pending: dict[str, int] = {}
    told: dict[int, str | None] = {}
    looked = -1e9
    over = 0.0
    while True:
        now = time.monotonic()
        if now - looked > 2:
            coordinator.met(grid.get_node_ids())
            looked = now
            (folder / ALIVE).touch(mode=0o600)
        for node, content in coordinator.outgoing():
            _push(grid, coordinator, pending, node, content)
        quiet = True
        for reply in grid.pull_messages(list(pending)) if pending else ():
            quiet = False
            sender = pending.pop(reply.metadata.reply_to_message_id, None)
            if sender is None:
                continue
            if reply.has_error():
                # The text is Flower's; whoever wrote a client of his own can put anything in it.
                if told.get(sender) != reply.error.reason:
                    log.warning("node %s cannot answer: %s", sender, reply.error.reason)
                    told[sender] = reply.error.reason
                coordinator.failed(sender)
            else:
                coordinator.receive(sender, unpack(reply))
        coordinator.tick()
        if coordinator.stage is Stage.COMPUTED:
            coordinator.distribute(_saved(coordinator, home, folder, file, threads))
        if coordinator.finished:
            over = over or now
            if not pending or now - over > LAST_WORDS:
                return
        if quiet:
            time.sleep(PAUSE)


def _push(
    grid: Grid, coordinator: Coordinator, pending: dict[str, int], node: Any, content: bytes
) -> None:
    ttl = coordinator.deadlines.silence
    message = Message(pack(content), node, KIND, ttl=ttl)
    sent = next(iter(grid.push_messages([message])), None)
    if sent:
        pending[sent] = node
    else:
        coordinator.failed(node)


def _saved(
    coordinator: Coordinator, home: ServerHome, folder: Path, file: RunFile, threads: int
) -> Path:
    """The model, signed by the operator."""
    components = coordinator.components
    if components is None:
        raise FederationError("the run has no result")
    model = MODELS[file.model](MODELS[file.model].config_type(**file.config))
    model.use(components, home.catalogue.item_ids)
    manifest = {
        **file.manifest,
        "federation": {
            "run": coordinator.run,
            "clients": len(coordinator.lines),
            "cohort": len(coordinator.cohort),
            "aggregator": file.terms.aggregator,
            "settings": file.terms.settings.model_dump(),
            "threads": threads,
        },
        "ledger": coordinator.ledger.as_rows(),
    }
    return model.save(folder / "model", manifest, signing_key=home.signing_key)


def _result(folder: Path, coordinator: Coordinator, seconds: float) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    record = {
        "run": coordinator.run,
        "stage": coordinator.stage.value,
        "reason": coordinator.reason,
        "seconds": seconds,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_rss_mb": usage.ru_maxrss / 1024,
        "bytes_up_per_client": coordinator.ledger.bytes_up,
        "bytes_down_per_client": coordinator.ledger.bytes_down,
        "status": coordinator.status(),
    }
    write_whole(folder / "result.json", json.dumps(record, indent=2).encode())


def _run_file(folder: Path, context: Context) -> RunFile:
    """The run's file, or one made from `flwr run --run-config`."""
    path = folder / "run.json"
    if path.exists():
        return RunFile.model_validate_json(path.read_bytes())
    given: dict[str, Any] = {**run_defaults(), **context.run_config}
    file = RunFile(
        terms=RunTerms(
            settings=program_class(given["method"]).settings_from({}, given),
            aggregator=given["aggregator"],
            corrupt_share=given["corrupt-share"],
            dropped_share=given["dropped-share"],
            smallest_cohort=given["smallest-cohort"],
        ),
        model=given["model"],
        config={"rank": given["rank"]},
    )
    write_whole(path, file.model_dump_json(indent=2).encode())
    return file
