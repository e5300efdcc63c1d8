"""The process that serves a run with our own code; our server's `flwr-serverapp`.

    python -m privirec.extra.flower.serve_run [ARGUMENTS...]

ARGUMENTS are those of `flwr-serverapp`.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable
from typing import Any

from privirec.extra.flower import allowed_programs, rehearsal


def only_our_own() -> None:
    """Patch Flower so that our server serves every run, whatever bundle it was started with."""
    from privirec.extra.flower import server_app  # noqa: PLC0415 - needs Flower

    def run(*, grid: Any, context: Any, **_: object) -> Any:
        server_app.app(grid=grid, context=context)
        return context

    grid = importlib.import_module("flwr.superlink.grid.http_grid")
    allowed_programs.replace(
        grid, inflate_object_from_contents=forgiving(grid.inflate_object_from_contents)
    )
    allowed_programs.replace(
        importlib.import_module("flwr.superlink.runtime.run_serverapp"),
        install_app_dependencies=lambda *_, **__: None,
        run_=run,
    )


def forgiving(inflate: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap Flower's decoder of replies so that malformed data does not end the run.

    Data that is not a message becomes an error message, which counts as no reply.
    """
    from flwr.app import Error, Message, Metadata  # noqa: PLC0415 - needs Flower
    from flwr.app.message import make_message  # noqa: PLC0415

    from privirec.extra.flower.packing import KIND  # noqa: PLC0415

    def inflated(number: str, contents: Any, *more: Any, **named: Any) -> Any:
        with contextlib.suppress(Exception):
            found = inflate(number, contents, *more, **named)
            if isinstance(found, Message) and (found.has_error() or found.has_content()):
                return found
        nobody = Metadata(
            run_id=0,
            message_id="",
            src_node_id=0,
            dst_node_id=0,
            reply_to_message_id="",
            group_id="",
            created_at=0.0,
            ttl=0.0,
            message_type=KIND,
        )
        return make_message(metadata=nobody, error=Error(code=0, reason="no message"))

    return inflated


def main() -> None:
    from flwr.superlink.cli import flwr_serverapp  # noqa: PLC0415 - needs Flower

    only_our_own()
    rehearsal.check(rehearsal.server)
    sys.argv[0] = "flwr-serverapp"
    flwr_serverapp()


if __name__ == "__main__":
    main()
