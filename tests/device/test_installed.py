"""Tests of installed artifacts: exactly one complete artifact is current at any time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privirec.data import Interactions
from privirec.device import Installed
from privirec.errors import ArtifactError
from privirec.models import GFCF, Recommender

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


@pytest.fixture
def versions(train: Interactions, tmp_path: Path) -> list[Path]:
    """Return three different artifacts."""
    return [
        GFCF(rank=rank).fit(train).save(tmp_path / f"v{rank}", signing_key=KEY)
        for rank in (4, 8, 12)
    ]


def rank_of(installed: Installed) -> int:
    return installed.load().config.low_pass_rank


def test_install_and_switch(versions: list[Path], tmp_path: Path) -> None:
    installed = Installed(tmp_path / "device" / "models")
    with pytest.raises(ArtifactError, match="no artifact is installed"):
        installed.load()
    names = [installed.install(version, KEY.public_key()) for version in versions]
    assert rank_of(installed) == 12
    assert installed.versions() == [names[2], names[1]]
    assert sorted(path.name for path in installed.folder.iterdir()) == [
        ".lock",
        "current",
        "versions",
    ]
    assert sorted(path.name for path in (installed.folder / "versions").iterdir()) == sorted(
        names[1:]
    )
    assert installed.folder.stat().st_mode & 0o777 == 0o700


def test_the_source_may_go(versions: list[Path], tmp_path: Path) -> None:
    installed = Installed(tmp_path / "models")
    installed.install(versions[0])
    shutil.rmtree(versions[0])
    assert rank_of(installed) == 4


def test_a_model_in_use_survives_the_switch(
    versions: list[Path], train: Interactions, tmp_path: Path
) -> None:
    installed = Installed(tmp_path / "models")
    installed.install(versions[0])
    in_use = installed.load()
    before = in_use.score(train.matrix)
    for version in versions[1:]:
        installed.install(version)
    np.testing.assert_array_equal(in_use.score(train.matrix), before)


def test_the_same_again_changes_nothing(versions: list[Path], tmp_path: Path) -> None:
    installed = Installed(tmp_path / "models")
    installed.install(versions[0])
    name = installed.install(versions[1])
    before = installed.versions()
    inode = (installed.current() / "model.safetensors").stat().st_ino
    assert installed.install(versions[1]) == name
    assert installed.versions() == before
    assert (installed.current() / "model.safetensors").stat().st_ino == inode


def test_bad_ones_leave_the_current_in_place(versions: list[Path], tmp_path: Path) -> None:
    installed = Installed(tmp_path / "models")
    installed.install(versions[0], KEY.public_key())
    before = installed.versions()
    unsigned, cut, foreign = versions[1], versions[2], tmp_path / "empty"
    (unsigned / "manifest.sig").unlink()
    arrays = (cut / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(arrays[:-1])
    foreign.mkdir()
    for source, match in ((unsigned, "not signed"), (cut, "match"), (foreign, "there")):
        with pytest.raises(ArtifactError, match=match) as caught:
            installed.install(source, KEY.public_key())
        assert str(source) in str(caught.value)
        assert ".incoming" not in str(caught.value)
    assert installed.versions() == before
    assert rank_of(installed) == 4
    assert not list(installed.folder.glob(".incoming*"))


def test_a_damaged_copy_is_replaced(versions: list[Path], tmp_path: Path) -> None:
    installed = Installed(tmp_path / "models")
    installed.install(versions[0])
    where = installed.current() / "model.safetensors"
    where.write_bytes(where.read_bytes()[:-1])
    installed.install(versions[0])
    Recommender.load(installed.current())


@pytest.mark.parametrize("content", [b"", b"x\n", b"../../etc\n", b"\xff", b"a" * 64])
def test_a_damaged_pointer_is_refused_and_repaired(
    versions: list[Path], tmp_path: Path, content: bytes
) -> None:
    installed = Installed(tmp_path / "models")
    installed.install(versions[0])
    (installed.folder / "current").write_bytes(content)
    with pytest.raises(ArtifactError, match="install the artifact again"):
        installed.load()
    installed.install(versions[0])
    assert rank_of(installed) == 4


def test_disk_full(versions: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = Installed(tmp_path / "models")
    installed.install(versions[0])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", full)
        with pytest.raises(ArtifactError, match="No space left"):
            installed.install(versions[1])
    assert rank_of(installed) == 4
    assert not list(installed.folder.glob(".incoming*"))


INSTALLER = """
import sys
from privirec.device import Installed
installed = Installed(sys.argv[1])
print("ready", flush=True)
while True:
    for source in sys.argv[2:]:
        installed.install(source)
"""


@pytest.mark.check
def test_killed_while_installing(versions: list[Path], tmp_path: Path) -> None:
    installed = Installed(tmp_path / "models")
    installed.install(versions[0])
    rng = np.random.default_rng(5)
    seen = set()
    for _ in range(6):
        child = subprocess.Popen(
            [sys.executable, "-c", INSTALLER, str(installed.folder), *map(str, versions)],
            stdout=subprocess.PIPE,
        )
        with child:
            try:
                assert child.stdout is not None
                assert child.stdout.readline() == b"ready\n"
                for _ in range(20):  # a concurrent reader sees a complete artifact at any time
                    seen.add(rank_of(installed))
                time.sleep(rng.uniform(0, 0.1))
            finally:
                os.kill(child.pid, signal.SIGKILL)
        for name in installed.versions()[:1]:
            Recommender.load(installed.folder / "versions" / name)
    assert seen <= {4, 8, 12}
    installed.install(versions[2])
    assert rank_of(installed) == 12
    assert not list(installed.folder.glob(".incoming*"))
