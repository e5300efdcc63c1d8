"""Flower's SuperLink with two listeners: one for clients, one for this machine.

Flower serves everything on one port: requests of clients, but also starting runs and registering
nodes, for which it requires no authentication. So the SuperLink itself listens on this machine
only, with a certificate made for that. A second listener for the same application uses the
operator's certificate and serves only the clients' part, to clients on the roster. It opens once
the file SERVER/flower/open exists, which is written after all clients are registered.

    python -m privirec.extra.flower.link SERVER HOST PORT LARGEST-REPLY [ARGUMENTS...]

ARGUMENTS are those of `flower-superlink`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvicorn

from privirec.extra.flower import allowed_programs
from privirec.extra.flower.front_door import Application, FrontDoor, Inside
from privirec.extra.flower.launch import LARGEST_REPLY, OPEN
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.lines import LARGEST_HEAD, Line, Lines, prepare_process


def serve(
    home: OperatorFolder,
    address: tuple[str, int],
    app: Application,
    settings: dict[str, Any],
    largest_reply: int = LARGEST_REPLY,
) -> None:
    """Run both listeners on one event loop until one ends; `settings` are for the inner one."""
    prepare_process()
    tls = home.folder / "tls"
    lines = Lines()
    door = FrontDoor(app, home, lines, largest_reply)
    inside = uvicorn.Server(uvicorn.Config(Inside(app, door.held_back), **settings))
    outer = {
        "host": address[0],
        "port": address[1],
        "ssl_certfile": str(tls / "server.crt"),
        "ssl_keyfile": str(tls / "server.key"),
        "lifespan": "off",
        "proxy_headers": False,
        "server_header": False,
        "http": lambda **given: Line(lines, **given),
        "ws": "none",
        "h11_max_incomplete_event_size": LARGEST_HEAD,
        "access_log": False,
    }
    outside = uvicorn.Server(uvicorn.Config(door, **(settings | outer)))

    async def open_up() -> None:
        while not (home.folder / OPEN).exists():
            await asyncio.sleep(0.1)
        watching = asyncio.create_task(lines.watch())
        try:
            await outside.serve()
        finally:
            watching.cancel()

    async def both() -> None:
        doors = [asyncio.create_task(inside.serve()), asyncio.create_task(open_up())]
        await asyncio.wait(doors, return_when=asyncio.FIRST_COMPLETED)
        inside.should_exit = outside.should_exit = True
        if not outside.started:
            doors[1].cancel()
        await asyncio.gather(*doors, return_exceptions=True)

    asyncio.run(both())


def main() -> None:
    # Imported here because the import opens a socket, to test for IPv6.
    from flwr.superlink.cli import flower_superlink  # noqa: PLC0415

    folder, host, port, largest_reply, *arguments = sys.argv[1:]
    home = OperatorFolder(Path(folder))
    # Flower starts its server by `uvicorn.run`.
    started = SimpleNamespace(
        run=lambda app, **settings: serve(
            home, (host, int(port)), app, settings, int(largest_reply)
        )
    )
    allowed_programs.replace(sys.modules[flower_superlink.__module__], uvicorn=started)
    sys.argv = ["flower-superlink", *arguments]
    flower_superlink()


if __name__ == "__main__":
    main()
