"""The server's process: a listener for clients, one for monitoring, and a thread that serves runs.

Runs are served one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn

from privirec.durable import alone, write_whole
from privirec.errors import FederationError, PrivirecError, UsageError
from privirec.runtime import schedule, serving
from privirec.runtime.carriers import HTTPS, Listening
from privirec.runtime.enrolment.certificates import check_certificate
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.https import going_back
from privirec.runtime.https.gate import Gate
from privirec.runtime.https.going_back import Asking
from privirec.runtime.https.limits import Limits
from privirec.runtime.https.mailbox import HttpsCarrier, Mailbox
from privirec.runtime.https.runs import own_folder, starts
from privirec.runtime.lines import LARGEST_HEAD, Line, Lines, prepare_process
from privirec.runtime.logs import logged_to
from privirec.runtime.runs import RunFolder, read_json_file

log = logging.getLogger("privirec.server")

LOOK_FOR_RUNS = 0.5
KEEP_ALIVE = 5
"""Seconds for which a connection is kept between two requests."""


def serve(
    home: OperatorFolder,
    listening: Listening,
    limits: Limits | None = None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until interrupted; call `ready` once clients can connect."""
    limits = limits or Limits()
    tls, ends = ({}, 0.0) if listening.behind_proxy else _certificate(home.folder / "tls")
    with alone(own_folder(home), wait=False), logged_to(own_folder(home) / "server.log"):
        serving.remember(home, HTTPS)
        prepare_process()
        mailbox = Mailbox(own_folder(home) / "spool", limits)
        lines = Lines(limits.within)
        gate = Gate(home, mailbox, limits, lines)
        gate.certificate_ends = ends
        outer = {
            "host": listening.host,
            "port": listening.port,
            "http": lambda **given: Line(lines, **given),
            "h11_max_incomplete_event_size": LARGEST_HEAD,
            "limit_concurrency": limits.connections,
            "timeout_keep_alive": KEEP_ALIVE,
            "timeout_graceful_shutdown": KEEP_ALIVE,
            "proxy_headers": listening.behind_proxy,
            "forwarded_allow_ips": "127.0.0.1,::1",
            **tls,
        }
        inner = {
            "host": listening.watched_host,
            "port": listening.watched_port,
            "proxy_headers": False,
        }
        servers = [uvicorn.Server(_config(gate.application, outer))]
        if listening.watched_port:
            servers.append(uvicorn.Server(_config(gate.watched, inner)))
        stop = threading.Event()
        runs = threading.Thread(
            target=_serve_runs, args=(home, mailbox, gate, stop), name="runs", daemon=True
        )
        runs.start()
        try:
            asyncio.run(_both(servers, gate, lines, ready))
        finally:
            stop.set()


def _config(application: Any, settings: dict[str, Any]) -> uvicorn.Config:
    usual: dict[str, Any] = {
        "lifespan": "off",
        "server_header": False,
        "ws": "none",
        "access_log": False,
        "log_level": "error",  # strangers can trigger any number of warnings
    }
    return uvicorn.Config(application, log_config=None, loop="asyncio", **(usual | settings))


async def _both(
    servers: list[uvicorn.Server], gate: Gate, lines: Lines, ready: Callable[[], None]
) -> None:
    """Run all listeners and background tasks until one listener ends."""
    beside = [asyncio.create_task(lines.watch()), asyncio.create_task(gate.keep_up())]
    listeners = [asyncio.create_task(server.serve()) for server in servers]
    while not all(server.started for server in servers) and not any(
        one.done() for one in listeners
    ):
        await asyncio.sleep(0.05)
    if all(server.started for server in servers):
        ready()
    await asyncio.wait(listeners, return_when=asyncio.FIRST_COMPLETED)
    for server in servers:
        server.should_exit = True
    for task in beside:
        task.cancel()
    ended = await asyncio.gather(*listeners, *beside, return_exceptions=True)
    for error in ended[: len(listeners)]:
        if isinstance(error, Exception):
            raise FederationError(f"the server cannot listen ({error})") from error


def _serve_runs(home: OperatorFolder, mailbox: Mailbox, gate: Gate, stop: threading.Event) -> None:
    """Serve every run with a file in `starts`, oldest first, until stopped."""
    asking = Asking(home, mailbox)
    while not stop.is_set():
        try:
            waiting = sorted(starts(home).glob("[!.]*"), key=lambda path: path.stat().st_mtime)
        except OSError:  # a file was removed between listing and stat
            waiting = []
        if not waiting:
            _between_runs(home, asking)
            time.sleep(LOOK_FOR_RUNS)
            continue
        _serve_run(home, mailbox, waiting[0], gate)
        asking.forget()


def _between_runs(home: OperatorFolder, asking: Asking) -> None:
    """Start a scheduled run that is due, and ask clients to go back to an earlier model."""
    try:
        asking.step()
        if name := schedule.start_due(home):
            write_whole(starts(home) / name)
    except (PrivirecError, OSError) as error:
        log.error("%s", error)


def _serve_run(home: OperatorFolder, mailbox: Mailbox, start: Path, gate: Gate) -> None:
    try:
        run = RunFolder(home, start.name)
        mailbox.begin(run.roster())
        log.info("run %s begins", start.name)
        run.serve(lambda spec: HttpsCarrier(mailbox, spec.silence))
        going_back.over(home)
    except FederationError as error:
        log.error("run %s: %s", start.name, error)
    except Exception:
        log.exception("run %s", start.name)
    finally:
        mailbox.end()
        gate.count_run(read_json_file(home.run(start.name) / "result.json"))
        with contextlib.suppress(OSError):
            start.unlink()


def _certificate(tls: Path) -> tuple[dict[str, str], float]:
    """Return the settings of uvicorn for TLS, and the time at which the certificate ends."""
    for name in ("server.crt", "server.key"):
        if not (tls / name).is_file():
            raise UsageError(f"{tls / name}: missing; see docs/how-to/federation.md, Certificates")
    found = check_certificate(tls / "server.crt", tls / "server.key")
    files = {"ssl_certfile": str(tls / "server.crt"), "ssl_keyfile": str(tls / "server.key")}
    return files, found.not_valid_after_utc.timestamp()
