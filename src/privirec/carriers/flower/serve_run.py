"""The process that serves a run, with our own code: what `flwr-serverapp` is on our server.

python -m privirec.carriers.flower.serve_run [arguments of flwr-serverapp]
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from privirec.carriers.flower import allowed_programs, rehearsal


def only_our_own() -> None:
    """Whatever bundle a run was started with, our server serves it."""
    from privirec.carriers.flower import server_app  # noqa: PLC0415 - needs Flower

    def run(*, grid: Any, context: Any, **_: object) -> Any:
        server_app.app(grid=grid, context=context)
        return context

    allowed_programs.replace(
        importlib.import_module("flwr.superlink.runtime.run_serverapp"),
        install_app_dependencies=lambda *_, **__: None,
        run_=run,
    )


def main() -> None:
    from flwr.superlink.cli import flwr_serverapp  # noqa: PLC0415 - needs Flower

    only_our_own()
    rehearsal.check(rehearsal.server)
    sys.argv[0] = "flwr-serverapp"
    flwr_serverapp()


if __name__ == "__main__":
    main()
