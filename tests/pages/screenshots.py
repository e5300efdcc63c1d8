"""Screenshots of docs/how-to/pages: run PYTHONPATH=tests python -m tests.pages.screenshots.

A synthetic town (synthetic:town), one person with a device, and two real runs with noise over five
clients in one process; titles are synthetic too.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from privirec.app.own_device import OwnDevice
from privirec.app.pages.operator import OperatorSite
from privirec.app.pages.person import PersonSite
from privirec.app.pages.web import Site
from privirec.data.synthetic import synthetic
from privirec.runtime.enrolment.folders import OperatorFolder

from .a_server import begin
from .browser import chromium, emulate, size
from .small_federation import SmallFederation
from .visitor import serving

DOCS = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "pages"
DATA = "synthetic:town"
PERSON = 17
TALLEST = 1500
# name, path, colours, width
PERSON_PICTURES = (
    ("person-for-you", "", "light", 1100),
    ("person-left", "left", "light", 1100),
    ("person-for-you-narrow", "", "dark", 390),
    ("person-item-narrow", "item?id=913", "light", 390),
    ("person-left-narrow", "left", "dark", 390),
    ("person-policy-narrow", "policy", "light", 390),
    ("person-search-narrow", "search?text=garden", "dark", 390),
    ("person-forget-narrow", "forget", "light", 390),
)

OPERATOR_PICTURES = (
    ("operator-now", "", "light", 900),
    ("operator-run", "run?name=monday", "dark", 900),
    ("operator-start-narrow", "start", "light", 390),
)


def picture(driver: Any, site: Site, pictures: tuple[tuple[str, str, str, int], ...]) -> None:
    with serving(site) as server:
        driver.get(server.guard.address)
        room = driver.current_url
        for name, path, colours, width in pictures:
            emulate(driver, colours)
            size(driver, width, 600)
            driver.get(room + path)
            height = driver.execute_script("return document.documentElement.scrollHeight")
            size(driver, width, min(height, TALLEST))
            driver.save_screenshot(str(DOCS / f"{name}.png"))


def main(data: str = DATA) -> None:
    DOCS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        federation = SmallFederation.make(folder, synthetic(data).train, PERSON)
        federation.run("monday", epsilon=4.0)
        federation.run("tuesday", epsilon=4.0)
        with chromium(folder, "--hide-scrollbars") as driver:
            site = PersonSite(OwnDevice.at(federation.person.folder))
            picture(driver, site, PERSON_PICTURES)
            half_way(federation)
            os.chdir(folder)  # paths relative to that folder
            picture(driver, OperatorSite(OperatorFolder(Path("server"))), OPERATOR_PICTURES)


def half_way(federation: SmallFederation) -> None:
    """Write the status of a third run in progress."""
    run = federation.server.run("tuesday")
    status = json.loads((run / "status.json").read_bytes())
    status |= {"stage": "summing", "step": "input", "sum": "noisy-head-gram", "sum_number": 2}
    for number, line in status["clients"].items():
        line |= {"state": "answered", "bytes_down": 21_000}
        if number == "3":
            line |= {"state": "waiting", "bytes_up": line["bytes_up"] // 2}
    folder = begin(federation.server, "wednesday", **(status | {"waited": 10}))
    began = time.time() - 40
    os.utime(folder / "run.json", (began, began))


if __name__ == "__main__":
    main(*sys.argv[1:])
