"""Tests of kill -9 at random moments: every operation of the store is atomic."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from privirec.device import Catalogue, Store

# Announces every operation before it starts and after it has finished. The parent then knows
# what must exist, what must not, and which single operation may be either.
WORKER = """
import itertools, sys
from privirec.device import Catalogue, Store
store = Store(sys.argv[1], create=True)
start = int(sys.argv[2])
def say(*words):
    print(*words, flush=True)
say("ready")
for batch in itertools.count(start):
    say("begin", "add", batch)
    store.add((f"u{batch:06d}", f"i{batch:06d}-{n:03d}") for n in range(60))
    say("done", "add", batch)
    if batch % 3 == 0:
        say("begin", "run", batch)
        store.begin_run(f"run-{batch}", Catalogue([f"i{batch:06d}-{n:03d}" for n in range(60)]))
        store.finish_run(f"run-{batch}")
        say("done", "run", batch)
    if batch % 2:
        say("begin", "forget", batch)
        store.forget_user(f"u{batch:06d}")
        say("done", "forget", batch)
    if batch % 5 == 0:
        say("begin", "export", batch)
        store.export(sys.argv[3])
        say("done", "export", batch)
"""


def killed_run(path: Path, start: int, out: Path, after: float) -> list[list[str]]:
    """Kill the worker after `after` seconds of work and return its output."""
    child = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(path), str(start), str(out)],
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "ready\n"
            time.sleep(after)
        finally:
            os.kill(child.pid, signal.SIGKILL)
        said = child.stdout.read()
    lines = [line.split() for line in said.splitlines() if line.endswith(tuple("0123456789"))]
    return [line for line in lines if len(line) == 3]


def check(path: Path, said: list[list[str]], forgotten: set[int]) -> None:
    """Check that everything announced as done is done, and that the last operation is done or not
    begun.

    `forgotten` collects the batches that have been deleted for good, over all kills.
    """
    done = {(what, int(batch)) for state, what, batch in said if state == "done"}
    begun = {(what, int(batch)) for state, what, batch in said if state == "begin"}
    with Store(path) as store:
        store.check()
        degrees = store.degrees()
        assert set(degrees.values()) <= {60}, degrees
        for what, batch in begun:
            user = f"u{batch:06d}"
            if what == "add" and ("forget", batch) not in begun and (what, batch) in done:
                assert user in degrees
            if what == "forget" and (what, batch) in done:
                assert user not in degrees
            if what == "forget" and user not in degrees:
                forgotten.add(batch)
        assert forgotten.isdisjoint(int(name[1:]) for name in degrees)
        assert len([run for run in store.runs() if run.finished]) <= 1
        assert not store.summary().traces
        bytes_now = b"".join(file.read_bytes() for file in path.parent.glob("*"))
        for batch in forgotten:
            assert b"i%06d-" % batch not in bytes_now
        found, ignored = store.interactions(Catalogue(["i000000-000"]))
        assert found.n_interactions + ignored == 60 * len(degrees)


def kill_often(folder: Path, times: int, seed: int) -> None:
    path, out = folder / "s" / "history.db", folder / "out" / "all.csv"
    rng = np.random.default_rng(seed)
    start, finished = 0, 0
    forgotten: set[int] = set()
    for _ in range(times):
        said = killed_run(path, start, out, float(rng.uniform(0.0005, 0.4)))
        check(path, said, forgotten)
        finished += sum(line[0] == "done" for line in said)
        start = max((int(line[2]) for line in said), default=start - 1) + 1
        if out.exists():
            lines = out.read_text().splitlines()
            assert (len(lines) - 1) % 60 == 0
    assert finished > times  # it was killed while it worked, not before


@pytest.mark.check
def test_killed_at_random_moments(tmp_path: Path) -> None:
    kill_often(tmp_path, times=10, seed=1)


@pytest.mark.long
def test_killed_at_many_random_moments(tmp_path: Path) -> None:
    kill_often(tmp_path, times=50, seed=2)


# Exits at the N-th disk operation while it creates a store.
MAKER = """
import os, signal, sys
from privirec.device import Store
left, touched = int(sys.argv[2]), ("open", "os.link", "os.mkdir", "os.remove", "sqlite3.connect")
def count(event, arguments):
    global left
    if event.startswith(touched):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
Store(sys.argv[1], create=True)
"""


@pytest.mark.check
def test_killed_while_it_is_made(tmp_path: Path) -> None:
    """Kill at every step of creation: the store is sound or does not exist."""
    killed, there = 0, 0
    for step in range(100):
        path = tmp_path / str(step) / "s.db"
        made = subprocess.run([sys.executable, "-c", MAKER, str(path), str(step)], check=False)
        if made.returncode == 0:
            break
        assert made.returncode == -signal.SIGKILL
        killed += 1
        there += path.exists()
        if path.exists():
            with Store(path) as store:
                store.check()
        with Store(path, create=True) as store:
            store.add([("ann", "x")])
    assert made.returncode == 0
    assert 0 < there < killed  # some kills before the store existed, some after
