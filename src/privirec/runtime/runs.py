"""A run in the operator's folder: its settings, the serving process, and the result.

SERVER/runs/NAME/run.json       settings that the run is started with
SERVER/runs/NAME/roster.json    roster that the run began with
SERVER/runs/NAME/alive          touched by the server while the run goes on
SERVER/runs/NAME/stop           created when the operator asks the run to stop
SERVER/runs/NAME/failure.json   why the serving process ended before the run did
SERVER/runs/NAME/result.json    result of the run
"""

from __future__ import annotations

import contextlib
import json
import logging
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from privirec import threads as threading
from privirec.durable import alone, is_taken, private_folder, write_whole
from privirec.errors import FederationError, PrivirecError, UsageError
from privirec.privacy.explain import promised_together
from privirec.runtime.carrier import Carrier, carry
from privirec.runtime.coordinator import Coordinator
from privirec.runtime.earlier import EarlierModel, released_by
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.enrolment.roster import RosterFile
from privirec.runtime.health import Level, disk
from privirec.runtime.logs import logged_to
from privirec.runtime.operator_log import note
from privirec.runtime.spec import RunSpec

log = logging.getLogger("privirec.server")

Watch = Callable[[dict[str, Any]], None]
"""Called with the server's status, which is empty before the server has written one."""

PAUSE = 0.5
SILENCE = 60.0
"""Seconds without a sign of life after which a server may be gone."""
STOPPED_BY_OPERATOR = "stopped by the operator"


class RunFolder:
    """The folder of one run."""

    def __init__(self, home: OperatorFolder, name: str) -> None:
        self.name = name
        self.folder = private_folder(home.run(name))
        self._home = home

    # --- starting ---------------------------------------------------------------------------------

    def prepare(self, spec: RunSpec) -> bool:
        """Write the settings of the run; return False if there is nothing to start.

        This is the case if a server is already working on the run, or if the run has ended.
        """
        content = spec.model_dump_json(indent=2).encode()
        path = self.folder / "run.json"
        is_another = path.exists() and path.read_bytes() != content
        if (self.folder / "result.json").exists():
            if is_another:
                raise UsageError(f"the run {self.name} has ended; give a new one another name")
            return False
        if is_another:
            raise UsageError(f"the run {self.name} was begun with other settings: see {path}")
        if not path.exists():
            write_whole(path, content)
        if is_taken(self.folder):
            return False
        # Remove the outcome of an earlier attempt.
        (self.folder / "failure.json").unlink(missing_ok=True)
        (self.folder / "stop").unlink(missing_ok=True)
        if (self.folder / "server.log").exists():
            (self.folder / "server.log").replace(self.folder / "server.log.1")
        (self.folder / "alive").touch(mode=0o600)
        note(self._home.folder, "start", run=self.name, method=spec.method)
        return True

    def roster(self) -> RosterFile:
        """Return the run's roster: the one at its beginning, also after a restart."""
        path = self.folder / "roster.json"
        if not path.exists():
            self._home.members.write(path)
        return RosterFile.read(path, self._home.operator)

    # --- serving ----------------------------------------------------------------------------------

    def serve(
        self,
        carrier_for: Callable[[RunSpec], Carrier],
    ) -> None:
        """Drive the run to its end over a carrier, as the only process in its folder."""
        with alone(self.folder, wait=False), logged_to(self.folder / "server.log"):
            try:
                coordinator = self._serve(carrier_for)
            except OSError as error:
                self._fail(
                    f"the server's folder cannot be written ({error.strerror or error}); make "
                    f"room and start the run {self.name} again: it goes on where it stopped"
                )
            except PrivirecError as error:
                self._fail(str(error))
            except Exception as error:
                what = " ".join(f"{type(error).__name__}: {error}".split())
                self._fail(
                    f"the server ended ({what[:200]}); start the run {self.name} again: it goes on"
                )
            coordinator.raise_if_stopped()

    def _serve(
        self,
        carrier_for: Callable[[RunSpec], Carrier],
    ) -> Coordinator:
        started = time.monotonic()
        try:
            text = (self.folder / "run.json").read_bytes()
        except FileNotFoundError:
            raise FederationError("there is no run.json; privirec server run starts runs") from None
        spec = RunSpec.model_validate_json(text)
        digest = spec.program.given().get("after")
        earlier = released_by(self._home, digest) if digest else None
        with threading.limit(spec.threads) as threads:
            coordinator = Coordinator(
                self.folder,
                self._home.server,
                self.roster().roster(),
                self._home.catalogue,
                spec,
                earlier=earlier.over(self._home.catalogue.item_ids) if earlier else None,
            )
            try:
                carry(
                    coordinator,
                    carrier_for(spec),
                    lambda done: self._publish(done, spec, threads, earlier),
                    alive=lambda: self._alive(coordinator),
                )
            finally:
                coordinator.close()
        self._write_result(coordinator, time.monotonic() - started)
        return coordinator

    def _alive(self, coordinator: Coordinator) -> None:
        (self.folder / "alive").touch(mode=0o600)
        if (self.folder / "stop").exists():
            coordinator.abort(STOPPED_BY_OPERATOR)

    def _publish(
        self, coordinator: Coordinator, spec: RunSpec, threads: int, earlier: EarlierModel | None
    ) -> Path:
        """Save the model, signed by the server, and return its folder."""
        if coordinator.components is None:
            raise FederationError("the run has no result")
        model = spec.recommender()
        model.use(coordinator.components, self._home.catalogue.item_ids)
        manifest = {
            **spec.notes,
            "federation": {
                "run": coordinator.run,
                "clients": len(coordinator.clients),
                "cohort": len(coordinator.cohort),
                "spec": spec.model_dump(mode="json"),
                "threads": threads,
            },
            "ledger": coordinator.ledger.as_rows(),
            "promised": coordinator.ledger.promised,
            **({"earlier": earlier.runs} if earlier else {}),
            **coordinator.found,
        }
        manifest["promised"] = " ".join([str(manifest["promised"]), *promised_together(manifest)])
        return model.save(self.folder / "model", manifest, signing_key=self._home.signing_key)

    def _write_result(self, coordinator: Coordinator, seconds: float) -> None:
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
            **coordinator.found,
        }
        write_whole(self.folder / "result.json", json.dumps(record, indent=2).encode())

    def _fail(self, reason: str) -> NoReturn:
        log.critical("%s", reason)
        with contextlib.suppress(OSError):  # the disk may be full; `follow` looks at it
            write_whole(self.folder / "failure.json", json.dumps({"reason": reason}).encode())
        raise FederationError(reason) from None

    # --- following --------------------------------------------------------------------------------

    @property
    def is_going_on(self) -> bool:
        """True if a server is working on the run, or has recently been started."""
        ended = any((self.folder / name).exists() for name in ("result.json", "failure.json"))
        if self.is_served:
            return not ended
        try:
            silent = time.time() - (self.folder / "alive").stat().st_mtime
        except FileNotFoundError:
            return False
        return not ended and silent < SILENCE

    @property
    def is_served(self) -> bool:
        """True if a process is working on the run at this moment."""
        return is_taken(self.folder)

    def ask_to_stop(self) -> None:
        """Ask the server to end the run, which it does within seconds, and to tell the clients.

        Sums that were opened stay open.
        """
        if not self.is_going_on:
            raise UsageError(f"the run {self.name} is not going on")
        write_whole(self.folder / "stop", b"")
        note(self._home.folder, "stop", run=self.name)

    def follow(
        self, watch: Watch, is_lost: Callable[[], bool], was_left: Callable[[], bool] = bool
    ) -> dict[str, Any]:
        """Wait for the end of the run, and return the result that the server wrote.

        `is_lost` is called if the server has been silent for SILENCE seconds. `was_left` returns
        True if no server will go on with the run by itself.
        """
        asked = time.time()
        while True:
            left = was_left() and not self.is_served  # asked before the files are read
            result = read_json_file(self.folder / "result.json")
            watch(read_json_file(self.folder / "status.json"))
            if result:
                return result
            if failure := read_json_file(self.folder / "failure.json"):
                raise FederationError(str(failure["reason"]))
            if left:
                raise FederationError(self._why_left())
            if time.time() - max(asked, (self.folder / "alive").stat().st_mtime) > SILENCE:
                asked = time.time()
                if is_lost() and not (self.folder / "result.json").exists():
                    raise FederationError(
                        f"the server ended in the middle of the run {self.name}; start it again "
                        "under the same name: it goes on where it stopped"
                    )
            time.sleep(PAUSE)

    def _why_left(self) -> str:
        """Return why a server gave up the run without having written a reason."""
        found = disk(self.folder)
        if found.level is Level.BAD:
            again = f"start the run {self.name} again: it goes on where it stopped"
            return f"{found.said}: make room, then {again}"
        return f"the server gave up the run {self.name}: {self.folder / 'server.log'} says why"


def read_json_file(path: Path) -> dict[str, Any]:
    """Return the content of a file of a run; nothing if it is not there yet."""
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    return found
