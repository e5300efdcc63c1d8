"""Tests of the programs as docs/how-to/federation.md starts them: an operator and three clients."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from privirec.runtime.child_processes import free_port

pytestmark = pytest.mark.check

ITEMS = [f"planted-item-{number}" for number in range(40)]
COMMAND = [sys.executable, "-m", "privirec"]
UNWATCHED = ("--watched-port", "0")


def privirec(*arguments: str | Path, cwd: Path, code: int = 0) -> str:
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@contextlib.contextmanager
def program(*arguments: str, cwd: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program that stays up until it is interrupted."""
    with log.open("ab") as out:
        process = subprocess.Popen([*COMMAND, *arguments], cwd=cwd, stdout=out, stderr=out)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def wait_for(said: str, log: Path, process: subprocess.Popen[bytes], count: int = 1) -> None:
    for _ in range(1200):
        if log.exists() and log.read_text().count(said) >= count:
            return
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    raise AssertionError(f"{said!r} is not in: {log.read_text()}")


def agree(policy: Path) -> None:
    """Edit policy.toml as a client of a small federation would."""
    text = policy.read_text()
    for before, after in (
        ("computations = []", 'computations = ["item-degrees", "seeded-step", "power-step"]'),
        ("fewest_other_people = 10", "fewest_other_people = 6"),
        ("largest_opened_share = 0.5", "largest_opened_share = 5.0"),
    ):
        assert before in text
        text = text.replace(before, after)
    policy.write_text(text)


def enrolled(folder: Path, address: str) -> list[Path]:
    """Create folders of clients and of an operator whose certificate is for localhost only."""
    server = folder / "server"
    operator = privirec("server", "new", "server", cwd=folder).split()[1]
    (server / "catalogue.txt").write_text("".join(f"{item}\n" for item in ITEMS))
    privirec("server", "certificates", "server", "--name", "localhost", cwd=folder)
    clients = [folder / name for name in ("lyon", "oslo", "porto", "stranger")]
    rng = np.random.default_rng(5)
    introduced = []
    for client in clients:
        introduced.append(privirec("client", "new", client, "--name", client.name, cwd=folder))
        agree(client / "policy.toml")
        lines = [
            f"planted-user-{client.name}-{user},{ITEMS[item]}\n"
            for user in range(6)
            for item in np.flatnonzero(rng.random(len(ITEMS)) < 0.3)
        ]
        (folder / f"{client.name}.csv").write_text("user,item\n" + "".join(lines))
        privirec(
            *("device", "import", f"{client.name}.csv", "--store", client / "history.db"),
            cwd=folder,
        )
    cards = [client / "card.json" for client in clients[:3]]
    told = [
        next(line for line in said.splitlines() if line.startswith("Fingerprint ")).split(" ", 1)[1]
        for said in introduced[:3]
    ]
    compared = [part for one in told for part in ("--fingerprint", one)]
    # The operator's key is not on the server.
    (server / "operator.key").rename(folder / "operator.key")
    elsewhere = ("--operator-key", "operator.key")
    privirec("server", "approve", "server", *cards, *compared, *elsewhere, cwd=folder)
    for client in clients[:3]:
        shutil.copy(server / "catalogue.txt", client)
        shutil.copy(server / "tls/ca.crt", client)
        join = ("client", "roster", client, "--file", "server/roster.json", "--server", address)
        privirec(*join, "--operator", operator, "--yes", cwd=folder)
        said = privirec("client", "up", client, "--check", cwd=folder)
        assert "6 users" in said
        assert "Opened by sums so far: 0.000 of the item-item matrix" in said
    return clients


# CI also runs the operator's start page (tests/test_first_model.py).
@pytest.mark.long
def test_from_nothing_to_recommendations(tmp_path: Path) -> None:
    port = str(free_port())
    lyon, oslo, porto, _ = enrolled(tmp_path, f"https://localhost:{port}")
    for client in (lyon, oslo, porto):
        (client / "policy.toml").unlink()  # by default a client joins protected runs
    up = tmp_path / "up.log"
    said = privirec("server", "run", "server", "early", cwd=tmp_path, code=3)
    assert "privirec server up server" in said
    server = ("server", "up", "server", "--host", "127.0.0.1", "--port", port, *UNWATCHED)
    with contextlib.ExitStack() as running:
        logs = [tmp_path / f"{client.name}.log" for client in (lyon, oslo, porto)]
        clients = [
            running.enter_context(program("client", "up", client.name, cwd=tmp_path, log=log))
            for client, log in zip((lyon, oslo, porto), logs, strict=True)
        ]
        with program(*server, cwd=tmp_path, log=up) as process:
            wait_for("Up on", up, process)
            second = (*server[:6], str(free_port()), *UNWATCHED)
            assert "another process is at work" in privirec(*second, cwd=tmp_path, code=3)
            for log, client in zip(logs, clients, strict=True):
                wait_for("Connected", log, client)
        # A restarted server does not know its clients; they reconnect by themselves.
        with program(*server, cwd=tmp_path, log=up) as process:
            wait_for("Up on", up, process, 2)
            run = ("server", "run", "server", "monday")
            following = subprocess.Popen(
                [*COMMAND, *run], cwd=tmp_path, stderr=subprocess.PIPE, text=True
            )
            status = tmp_path / "server/runs/monday/status.json"
            while not status.exists():
                assert following.poll() is None
                time.sleep(0.1)
            following.send_signal(signal.SIGINT)
            assert "the same command follows it again" in following.communicate()[1]
            assert following.returncode == 130
            said = privirec(*run, cwd=tmp_path)
            assert "it hides whether a person took part" in said
            assert "Model signed and handed out" in said
            assert "has ended" in privirec(*run, cwd=tmp_path)
            assert "Spent within 30 days: epsilon 8 of 8" in privirec(
                "client", "budget", "oslo", cwd=tmp_path
            )
        for log in logs:
            assert "Connected" in log.read_text(), log.read_text()
    assert "its model is installed" in (lyon / "client.log").read_text()
    user = "planted-user-lyon-0"
    out = tmp_path / "recommended.json"
    privirec(
        *("recommend", "--store", lyon / "history.db", "--artifact", lyon / "model"),
        *("--user", user, "--explain", "--json", out),
        cwd=tmp_path,
    )
    first = json.loads(out.read_text().splitlines()[0])
    assert first["item"] in ITEMS
    assert first["because"]
    assert out.stat().st_mode & 0o077 == 0
    _check_nothing_leaked(tmp_path)
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in left


@pytest.mark.long  # two more runs of real programs; other tests cover the messages too
def test_whoever_is_not_wanted_hears_why_and_so_does_the_operator(tmp_path: Path) -> None:
    """Test a missing server, clients not approved or revoked, and an expired certificate."""
    from datetime import UTC, datetime, timedelta

    from privirec.runtime.enrolment.certificates import make_certificates

    port = str(free_port())
    lyon, _, _, stranger = enrolled(tmp_path, f"https://localhost:{port}")
    said = privirec(
        *("client", "roster", stranger, "--file", "server/roster.json", "--operator", "0" * 64),
        cwd=tmp_path,
        code=2,
    )
    assert "signed by operator" in said
    for name in ("run.key", "tls/server.key"):
        assert (tmp_path / "server" / name).stat().st_mode & 0o077 == 0
    for name in (".", "identity.key", "node.key", "history.db"):
        assert (lyon / name).stat().st_mode & 0o077 == 0
    for name in ("client.json", "roster.json", "catalogue.txt", "ca.crt"):  # it copies them
        shutil.copy(lyon / name, stranger)
    assert "memory.db: gone" in privirec("client", "up", stranger, cwd=tmp_path, code=3)
    server = ("server", "up", "server", "--host", "127.0.0.1", "--port", port, *UNWATCHED)
    revoke = ("server", "revoke", "server", "1", "--operator-key", "operator.key")
    assert "no terminal to ask on" in privirec(*revoke, cwd=tmp_path, code=2)
    privirec(*revoke, "--yes", cwd=tmp_path)
    up = tmp_path / "up.log"
    said = {"lyon": "Connected", "oslo": "this client is revoked"}
    logs = {name: tmp_path / f"{name}.log" for name in said}
    with contextlib.ExitStack() as running:

        def client(name: str) -> subprocess.Popen[bytes]:
            return running.enter_context(
                program("client", "up", name, cwd=tmp_path, log=logs[name])
            )

        early = client("lyon")
        wait_for("Not connected: ", logs["lyon"], early)
        assert "Connected\n" not in logs["lyon"].read_text()
        with program(*server, cwd=tmp_path, log=up) as process:
            wait_for("Up on", up, process)
            wait_for(said["lyon"], logs["lyon"], early)
            assert client("oslo").wait(120) == 3
            assert said["oslo"] in logs["oslo"].read_text()
            told = tmp_path / "server/https/server.log"
            wait_for("turned away client 1 (oslo): it is revoked", told, process)
            before = logs["lyon"].read_text().count("Not connected")
        wait_for("Not connected", logs["lyon"], early, before + 1)
    old = datetime.now(UTC) - timedelta(days=30)
    make_certificates(tmp_path / "server/tls", ("localhost",), days=3, now=old)
    assert "not today; renew it" in privirec(*server, cwd=tmp_path, code=2)


def _check_nothing_leaked(folder: Path) -> None:
    """Fail if users or items appear outside the clients' stores, except in the public catalogue."""
    for path in folder.rglob("*"):
        where = path.relative_to(folder).parts
        if not path.is_file() or path.suffix in (".csv", ".db") or path.name == "recommended.json":
            continue
        if path.name.startswith("history.db"):
            continue
        content = path.read_bytes()
        assert b"planted-user" not in content, path
        if path.name != "catalogue.txt" and "model" not in where:
            assert b"planted-item" not in content, path
