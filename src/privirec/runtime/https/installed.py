"""HTTPS behind the interface of all carriers. Imports are local: a client needs no server."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privirec.runtime.carriers import HTTPS, InstalledCarrier, Listening, Say

if TYPE_CHECKING:
    from privirec.runtime.enrolment.folders import OperatorFolder
    from privirec.runtime.runs import Watch
    from privirec.runtime.spec import RunSpec


class HttpsInstalled(InstalledCarrier):
    """Plain HTTPS, for any number of clients."""

    name = HTTPS

    def serve(
        self, home: OperatorFolder, listening: Listening, given: Sequence[str], say: Say
    ) -> None:
        from privirec.runtime import child_processes, serving  # noqa: PLC0415
        from privirec.runtime.https import server  # noqa: PLC0415
        from privirec.runtime.https.limits import Limits  # noqa: PLC0415

        roster = home.members.roster()
        child_processes.check_free(listening.host, listening.port)
        if listening.watched_port:
            child_processes.check_free(listening.watched_host, listening.watched_port)

        def ready() -> None:
            serving.remember(home, HTTPS, given)
            scheme = "http, for a proxy," if listening.behind_proxy else "https"
            say(f"Up on {listening.host}:{listening.port} ({scheme} for {len(roster)} clients)")
            if listening.watched_port:
                say(f"Metrics: http://{listening.watched_host}:{listening.watched_port}/metrics")
            say(f"Log in {home.folder / 'https' / 'server.log'}")
            say(f"Start runs with: privirec server run {shlex.quote(str(home.folder))} NAME")

        server.serve(home, listening, Limits(largest_answer=listening.largest_reply), ready)

    def start_run(self, home: OperatorFolder, name: str, spec: RunSpec) -> None:
        from privirec.runtime.https import runs  # noqa: PLC0415

        runs.start_run(home, name, spec)

    def follow_run(self, home: OperatorFolder, name: str, watch: Watch) -> dict[str, Any]:
        from privirec.runtime.https import runs  # noqa: PLC0415

        return runs.follow_run(home, name, watch)

    def stay(self, folder: Path, address: str, say: Say) -> None:
        from privirec.runtime.https import client  # noqa: PLC0415

        client.stay(folder, address, say)


CARRIER = HttpsInstalled()
