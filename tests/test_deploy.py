"""Tests of the files in deploy/: the commands and options that they name exist."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privirec.app.cli.every import app
from privirec.runtime.enrolment.certificates import make_certificates

DEPLOY = Path(__file__).parent.parent / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))


def options_of(*command: str) -> set[str]:
    shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"}).output
    return set(re.findall(r"--[a-z-]+", shown))


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_start_what_there_is(unit: Path) -> None:
    found = configparser.ConfigParser(strict=False, interpolation=None)
    found.optionxform = str  # type: ignore[assignment, method-assign]
    found.read(unit)
    _, *words = found["Service"]["ExecStart"].split()
    command = ("server", "up") if words[0] == "server" else ("client", "up")
    assert tuple(words[: len(command)]) == command
    assert set(re.findall(r"--[a-z-]+", " ".join(words))) <= options_of(*command)


def test_the_container_and_the_proxy_start_what_there_is() -> None:
    container = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    (command,) = re.findall(r"^CMD (\[.*\])", container, flags=re.MULTILINE)
    assert command.startswith('["server", "up"')
    assert set(re.findall(r"--[a-z-]+", command)) <= options_of("server", "up")
    proxy = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
    assert set(re.findall(r"--[a-z-]+", proxy)) <= options_of("server", "up")


@pytest.mark.skipif(
    shutil.which("nginx") is None, reason="nginx is not installed: apt-get install nginx"
)
def test_nginx_reads_the_configuration_of_the_proxy(tmp_path: Path) -> None:
    make_certificates(tmp_path, ("fed.example.org",))
    proxy = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
    for kind in ("crt", "key"):
        proxy = proxy.replace(f"/etc/ssl/fed.example.org.{kind}", str(tmp_path / f"server.{kind}"))
    around = f"pid {tmp_path}/pid; error_log stderr; events {{}} http {{ access_log off;\n{proxy}}}"
    (tmp_path / "nginx.conf").write_text(around)
    command = ["nginx", "-t", "-q", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "[warn]" not in done.stderr
