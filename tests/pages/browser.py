"""Headless Chromium; tests that need it are skipped without Chromium or selenium.

On Debian: apt-get install chromium chromium-driver. Elsewhere, PRIVIREC_CHROMIUM and
PRIVIREC_CHROMEDRIVER give the paths of the programs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-default-apps", "--disable-extensions", "--disable-dev-shm-usage"),
)


@contextmanager
def chromium(folder: Path, *more: str) -> Iterator[Any]:
    """Start a driver with a fresh profile; skip the test if there is none."""
    selenium = pytest.importorskip("selenium.webdriver", reason="no selenium (extra dev)")
    program = os.environ.get("PRIVIREC_CHROMIUM") or shutil.which("chromium")
    driver = os.environ.get("PRIVIREC_CHROMEDRIVER") or shutil.which("chromedriver")
    if not program or not driver:
        pytest.skip("no Chromium here: apt-get install chromium chromium-driver")
    options = selenium.ChromeOptions()
    options.binary_location = program
    for option in (*OPTIONS, f"--user-data-dir={folder / 'profile'}", *more):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = selenium.ChromeService(executable_path=driver)
    opened = selenium.Chrome(options=options, service=service)
    try:
        opened.set_page_load_timeout(60)
        yield opened
    finally:
        opened.quit()


def axe_script() -> str:
    """Return axe-core, from the file in PRIVIREC_AXE or a Python package, or skip the test."""
    if named := os.environ.get("PRIVIREC_AXE"):
        return Path(named).read_text(encoding="utf-8")
    pytest.importorskip("axe_core_python", reason="no axe-core-python (extra dev)")
    return files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")


def findings(driver: Any, axe: str) -> list[str]:
    """Return all findings of axe-core on the open page."""
    driver.execute_script(axe)
    found = driver.execute_async_script("axe.run(document).then(arguments[0])")
    assert found["passes"], "axe-core looked at nothing"
    return [
        f"{each['id']}: {each['help']}: {[node['html'] for node in each['nodes']][:3]}"
        for each in found["violations"]
    ]


def emulate(driver: Any, colours: str) -> None:
    """Set the preferred colour scheme, light or dark."""
    wanted = [{"name": "prefers-color-scheme", "value": colours}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": wanted})


def size(driver: Any, width: int, height: int = 900) -> None:
    """Set the size of the window in pixels."""
    shape = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
