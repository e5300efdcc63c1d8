"""Installed artifacts on this device: each under its own hash, one of them current.

    FOLDER/versions/<hash of the manifest>/   verified copies that are never changed
    FOLDER/current                            hashes, the current first, then earlier ones

A new artifact is copied, verified and written to disk before `current` is replaced atomically. A
crash at any moment therefore leaves a complete artifact current: the old one or the new one.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from privirec.durable import alone, private_folder, sync, write_private
from privirec.errors import ArtifactError
from privirec.models import Recommender, artifact

KEPT = 2
"""Number of versions kept: the current one and the previous one, which a reader may have open."""

_POINTER = "current"
_VERSIONS = "versions"
_INCOMING = ".incoming-"


class Installed:
    """Installed artifacts in a folder, which is created by the first installation."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @staticmethod
    def at(folder: str | Path) -> bool:
        """Return True if this folder holds installed artifacts."""
        return (Path(folder) / _POINTER).is_file()

    def versions(self) -> list[str]:
        """Return the hashes, the current one first, then earlier ones."""
        pointer = self.folder / _POINTER
        try:
            lines = pointer.read_text(encoding="ascii").split("\n")
        except FileNotFoundError:
            return []
        except (OSError, ValueError):
            self._refuse_pointer()
        if lines[-1] != "" or not lines[:-1] or not all(map(_is_hash, lines[:-1])):
            self._refuse_pointer()
        return lines[:-1]

    def current(self) -> Path:
        """Return the folder of the current artifact."""
        versions = self.versions()
        if not versions:
            raise ArtifactError(f"{self.folder}: no artifact is installed there")
        return self._path(versions[0])

    def load(self, *, verify: bool = False) -> Recommender:
        """Load the current model, mapped into memory.

        Its arrays were verified at installation; `verify` checks all of them again.
        """
        while True:
            folder = self.current()
            try:
                manifest = hashlib.sha256((folder / artifact.MANIFEST).read_bytes()).hexdigest()
                if manifest != folder.name:
                    raise ArtifactError(f"{folder}: damaged; install the artifact again")
                return Recommender.load(folder, verify=verify)
            except FileNotFoundError as error:
                if self.current() == folder:
                    raise ArtifactError(f"{folder}: no {artifact.MANIFEST} there") from error
            except ArtifactError:
                # A concurrent installation may have removed it; then another artifact is current.
                if self.current() == folder:
                    raise

    def install(self, source: str | Path, trusted_key: Ed25519PublicKey | None = None) -> str:
        """Copy an artifact, verify the copy and make it current; return its hash."""
        with self._alone():
            with self._verified(Path(source), trusted_key) as incoming:
                name = hashlib.sha256((incoming / artifact.MANIFEST).read_bytes()).hexdigest()
                self._keep(incoming, name)
            try:
                before = self.versions()
            except ArtifactError:
                before = []  # a new installation repairs a damaged pointer
            self._switch([name, *(old for old in before if old != name)][:KEPT])
        return name

    def go_back(self, name: str | None = None) -> str | None:
        """Make an earlier model current again, and return its hash.

        `name` is the hash of the model (default: the previous one). Return None if it is not here.
        """
        with self._alone():
            versions = self.versions()
            wanted = name or next(iter(versions[1:]), None)
            if wanted not in versions:
                return None
            Recommender.load(self._path(wanted))
            self._switch([wanted, *(other for other in versions if other != wanted)])
        return wanted

    @contextmanager
    def _verified(self, source: Path, trusted_key: Ed25519PublicKey | None) -> Iterator[Path]:
        """Yield a verified copy of an artifact, and remove it at the end unless it was moved.

        The copy is verified, not the source, so that nobody can change it before it is used.
        """
        incoming = Path(tempfile.mkdtemp(prefix=_INCOMING, dir=self.folder))
        try:
            _copy(source, incoming)
            try:
                Recommender.load(incoming, trusted_key=trusted_key)
            except ArtifactError as error:
                raise ArtifactError(str(error).replace(str(incoming), str(source))) from None
            yield incoming
        except OSError as error:
            raise ArtifactError(
                f"{source}: could not be installed: {error.strerror or error}"
            ) from None
        finally:
            shutil.rmtree(incoming, ignore_errors=True)

    def _path(self, name: str) -> Path:
        return self.folder / _VERSIONS / name

    def _keep(self, incoming: Path, name: str) -> None:
        versions = self.folder / _VERSIONS
        private_folder(versions)
        target = self._path(name)
        if target.exists():
            # Same manifest, so same arrays. An intact copy may be in use and is kept.
            try:
                Recommender.load(target)
            except ArtifactError:
                shutil.rmtree(target)
        if not target.exists():
            os.rename(incoming, target)
        sync(versions)

    def _switch(self, names: list[str]) -> None:
        write_private(self.folder / _POINTER, names)
        for path in (self.folder / _VERSIONS).iterdir():
            if path.name not in names:
                shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the installation lock, and remove files of an interrupted installation first."""
        with alone(private_folder(self.folder)):
            for leftover in self.folder.glob(f"{_INCOMING}*"):
                shutil.rmtree(leftover, ignore_errors=True)
            yield

    def _refuse_pointer(self) -> NoReturn:
        raise ArtifactError(f"{self.folder / _POINTER}: damaged; install the artifact again")


def _copy(source: Path, target: Path) -> None:
    """Copy the files of an artifact and nothing else; they are on disk when this returns."""
    for name in (artifact.ARRAYS, artifact.MANIFEST, artifact.SIGNATURE):
        if name == artifact.SIGNATURE and not (source / name).exists():
            continue
        try:
            shutil.copyfile(source / name, target / name)
        except FileNotFoundError:
            raise ArtifactError(f"{source}: no {name} there") from None
        sync(target / name)
    sync(target)


def _is_hash(line: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{64}", line) is not None
