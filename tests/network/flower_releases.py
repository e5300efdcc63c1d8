"""Releases of Flower that keep a name we replace but no longer call it. A program of its own, since
it changes Flower: `python flower_releases.py client|server`, for `test_flower.py`."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from pathlib import Path

from privirec.errors import FederationError
from privirec.extra.flower import answering, rehearsal, serve_run

SIDES = {
    "client": (
        "flwr.supernode.runtime",
        "run_clientapp",
        answering,
        rehearsal.client,
    ),
    "server": (
        "flwr.superlink.runtime",
        "run_serverapp",
        serve_run,
        rehearsal.server,
    ),
}


def main(side: str) -> None:
    package, name, ours, rehearse = SIDES[side]
    flower = importlib.import_module(f"{package}.{name}")
    original, before = getattr(flower, name), dict(vars(flower))
    ours.only_our_own()
    rehearsal.check(rehearse)
    print("as it is: goes on")
    replaced = [part for part in before if vars(flower)[part] is not before[part]]
    judged = rehearsal._judge
    for part in replaced:
        # The same function, but it calls Flower's own under another name.
        source = inspect.getsource(original).replace(f"{part}(", f"another_{part}(")
        vars(flower)[f"another_{part}"] = before[part]
        exec(source, vars(flower))  # noqa: S102 - Flower's own source
        try:
            rehearsal.check(rehearse)
            print(f"{part}: NOT NOTICED")
        except FederationError:
            print(f"{part}: refused")
        if part in ("get_load_client_app_fn", "run_"):  # what would happen without the rehearsal
            vars(flower).update(install_from_fab=before["install_from_fab"])
            rehearsal._judge = tell
            with contextlib.suppress(FederationError):
                rehearsal.check(rehearse)
            rehearsal._judge = judged
            ours.only_our_own()
        setattr(flower, name, original)


def tell(reached: list[str], mark: Path) -> None:
    print(f"without the guard: the bundle's code ran: {mark.exists()}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])
