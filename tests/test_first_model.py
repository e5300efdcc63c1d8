"""Tests of the way from bare machines to a first model: the commands of the page, as real
processes, and devices that enrol with one command each."""

from __future__ import annotations

import contextlib
import csv
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import documented
from privirec import load_dataset
from privirec.runtime.child_processes import free_port
from privirec.runtime.enrolment.folders import ClientFolder

PAGE = documented.ROOT / "docs" / "tutorials" / "operator.md"
SHOPS = ("lyon", "oslo", "porto")
MOST_COMMANDS = 12
SECONDS = 600

pytestmark = pytest.mark.check


class Machine:
    """A folder that stands for a machine, and the programs that run there."""

    def __init__(self, folder: Path, programs: Path, running: contextlib.ExitStack) -> None:
        folder.mkdir()
        self.folder = folder
        self._running = running
        self._env = dict(os.environ) | {
            "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
            "COLUMNS": "200",
            "PYTHONUNBUFFERED": "1",
            # `pip install .` without an index; its dependencies are those of this environment.
            **{"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"},
        }
        self._env.pop("PYTHONPATH", None)

    def run(self, line: str, where: Path | None = None) -> str:
        done = subprocess.run(
            shlex.split(line),
            cwd=where or self.folder,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def start(self, line: str, said: str) -> None:
        """Start a program that stays in front, and wait until it says this."""
        log = self.folder / f"{len(list(self.folder.glob('*.out')))}.out"
        with log.open("wb") as out:
            process = subprocess.Popen(
                shlex.split(line),
                cwd=self.folder,
                env=self._env,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        self._running.callback(_end, process)
        until = time.monotonic() + SECONDS
        while said not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(60)


@pytest.fixture
def running() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def sections() -> Mapping[str, list[str]]:
    """Return the shell commands of the page by the heading above them."""
    found: dict[str, list[str]] = {}
    for part in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        blocks = re.findall(r"^```sh\n(.*?)^```$", part, flags=re.DOTALL | re.MULTILINE)
        found[part.splitlines()[0]] = [line for b in blocks for line in documented.lines_of(b)]
    return {heading: lines for heading, lines in found.items() if lines}


def test_the_page_has_few_commands_and_copies_no_file() -> None:
    found = sections()
    assert list(found) == ["On the server", "On each shop's machine", "The first model"]
    count = {heading: len(lines) for heading, lines in found.items()}
    count["On each shop's machine"] *= len(SHOPS)
    assert sum(count.values()) <= MOST_COMMANDS
    words = [shlex.split(line)[0] for lines in found.values() for line in lines]
    assert set(words) == {"pip", "privirec"}
    told = {11: "Eleven commands", 12: "Twelve commands"}[sum(count.values())]
    assert told in PAGE.read_text(encoding="utf-8")


def test_from_bare_machines_to_a_first_model(tmp_path: Path, running: contextlib.ExitStack) -> None:
    fresh = tmp_path / "fresh"
    venv.create(fresh, with_pip=True, symlinks=True)
    (packages,) = fresh.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    server, *shops = (Machine(tmp_path / name, fresh / "bin", running) for name in ("fed", *SHOPS))
    _make_histories(tmp_path, server, shops)
    port = str(free_port())

    def ready(line: str) -> str:
        """Put in what is different here: the name, and ports that others may use."""
        line = line.replace("fed.example.org", "localhost").replace("9443", port)
        return f"{line} --watched-port 0" if "server up" in line else line

    found, links = sections(), {}
    for line in map(ready, found["On the server"]):
        if line.startswith("pip"):
            server.run(line, documented.ROOT)
            where = server.run("python -c 'import privirec; print(privirec.__file__)'")
            assert Path(where.strip()).is_relative_to(fresh)
        elif "server up" in line:
            server.start(line, "Start runs with")
        elif "server invite" in line:
            links = dict(re.findall(r"^(\w+): privirec client join (\S+)$", server.run(line), re.M))
        else:
            server.run(line)
    for name, shop in zip(SHOPS, shops, strict=True):
        for line in found["On each shop's machine"]:
            if not line.startswith("pip"):  # one environment serves all four
                shop.start(line.replace("LINK", links[name]), "Connected")
    (run,) = found["The first model"]
    assert "Model signed and handed out" in server.run(run)
    (shown,) = re.findall(r"^    (privirec recommend .*)$", PAGE.read_text(encoding="utf-8"), re.M)
    for shop in shops:
        assert "item" in shop.run(shown)
    rosters = {ClientFolder(shop.folder / "client").members.number for shop in shops}
    assert rosters == {1 + len(SHOPS)}


def _make_histories(folder: Path, server: Machine, shops: list[Machine]) -> None:
    (code,) = (text for language, text in documented.blocks(PAGE) if language == "python")
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
    shutil.copy(folder / "items.txt", server.folder)
    for name, shop in zip(SHOPS, shops, strict=True):
        shutil.copy(folder / f"{name}.csv", shop.folder / "purchases.csv")


def test_twenty_devices_enrol_with_one_command_each(
    tmp_path: Path, running: contextlib.ExitStack
) -> None:
    """A server, twenty people, real HTTPS; then a run in which all of them take part."""
    programs = Path(sys.executable).parent
    server = Machine(tmp_path / "fed", programs, running)
    people = load_dataset("synthetic:small").together()
    names = [f"device-{number}" for number in range(20)]
    (server.folder / "names.csv").write_text("".join(f"{name}\n" for name in names))
    (server.folder / "items.txt").write_text("".join(f"{item}\n" for item in range(people.n_items)))
    port = str(free_port())
    server.run("privirec server new server --catalogue items.txt --name localhost")
    up = f"privirec server up server --host 127.0.0.1 --port {port} --watched-port 0"
    server.start(up, "Start runs with")
    server.run("privirec server invite server --list names.csv --out links.csv")
    written = (server.folder / "links.csv").read_text().splitlines()
    links = {row["name"]: row["link"] for row in csv.DictReader(written)}
    devices = []
    for number, name in enumerate(names):
        device = Machine(tmp_path / name, programs, running)
        own = people.rows(number, number + 1).matrix.indices
        (device.folder / "mine.csv").write_text("item\n" + "".join(f"{item}\n" for item in own))
        device.start(f"privirec client join {links[name]} --history mine.csv --up", "Connected")
        devices.append(ClientFolder(device.folder / "client"))
    said = server.run("privirec server run server monday")
    assert "Model signed and handed out" in said
    assert said.count("installed") == len(devices)
    assert {device.members.number for device in devices} == {1 + len(devices)}
    assert all((device.folder / "model" / "current").exists() for device in devices)
