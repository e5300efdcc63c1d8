"""Tests of the documentation site: no broken links, and no resources from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer

import privirec
from privirec.app.cli.every import app

ROOT = Path(__file__).parent.parent
NO_NETWORK = dict.fromkeys(("http_proxy", "https_proxy", "ALL_PROXY"), "http://127.0.0.1:9")
"""Proxies at an address without a server."""
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""Attributes that a browser fetches by itself; links that only name an address do not count."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir"]
    done = subprocess.run(
        [*command, str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"} | NO_NETWORK,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class _Loaded(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and given.get("rel") in {"canonical", "next", "prev"}:
            return
        if tag in LOADS and given.get(LOADS[tag]):
            self.found.append(str(given[LOADS[tag]]))


def _loaded_by(site: Path) -> Iterator[tuple[Path, str]]:
    for page in site.rglob("*.html"):
        parser = _Loaded()
        parser.feed(page.read_text(encoding="utf-8"))
        yield from ((page, target) for target in parser.found)
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        for target in re.findall(r"(?:url\(|@import )[\"']?([^\"')]+)", text):
            yield sheet, target


@pytest.mark.check
def test_the_site_is_whole_and_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = list(_loaded_by(site))
    assert len(loaded) > 100
    foreign = [(page.name, to) for page, to in loaded if re.match(r"(?:\w+:)?//", to)]
    assert not foreign
    for page, target in loaded:
        if not target.startswith(("data:", "#")):
            inside = target.split("?")[0].split("#")[0]
            there = site / inside.lstrip("/") if inside.startswith("/") else page.parent / inside
            assert there.is_file(), (page, target)

    library = (site / "reference" / "library.html").read_text(encoding="utf-8")
    for name in privirec.__all__:
        assert f'id="privirec.{name}"' in library or name == "__version__", name
    group = typer.main.get_command(app)
    for name in group.commands:  # type: ignore[attr-defined]
        page = (site / "reference" / "commands" / f"{name}.html").read_text(encoding="utf-8")
        assert f"privirec {name}" in page
    assert "--largest-reply" in (site / "reference" / "commands" / "server.html").read_text()

    formulas = (site / "explanation" / "mathematics.html").read_text(encoding="utf-8")
    assert formulas.count("<math") > 50
    assert "arithmatex" not in formulas
    assert "Shows" in (site / "tutorials" / "notebook.html").read_text(encoding="utf-8")
