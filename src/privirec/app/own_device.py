"""A person's device: its store of the history, its model and its client folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from privirec.app.history import only_user
from privirec.data.catalogue import read_catalogue
from privirec.device import Device, Installed, Store, load_model
from privirec.errors import ArtifactError, UsageError
from privirec.models import Recommender, artifact
from privirec.runtime.enrolment.folders import ClientFolder


@dataclass
class OwnDevice:
    """A person's device, which works without a server, a model or a client folder."""

    store_file: Path
    model_folder: Path | None = None
    """Folder of a saved model, or of installed ones; it may still be empty."""
    client: Path | None = None
    """Folder of the client, if this device is in a federation or will join one."""
    user: str | None = None
    _loaded: tuple[str, Recommender] | None = field(default=None, repr=False)

    @classmethod
    def at(
        cls,
        client: Path | None,
        store_file: Path | None = None,
        model_folder: Path | None = None,
        user: str | None = None,
    ) -> OwnDevice:
        """Return the device of a client folder, or one with a store and a model alone.

        In a client folder, the store and the model default to those in that folder.
        """
        if client is not None:
            home = ClientFolder(client)
            _ = home.identity  # Raises an error if this is not a client's folder.
            histories = home.settings.histories if home.has_joined else "history.db"
            store_file = store_file or client / histories
            model_folder = model_folder or client / "model"
        if store_file is None:
            raise UsageError("name a client's folder, or a store with --store")
        if store_file.suffix != ".db" and not store_file.exists():
            raise UsageError(f"{store_file}: a store is a file that ends in .db")
        device = cls(store_file, model_folder, client, user)
        with device.store() as store:  # Creates a missing store; rejects any other file.
            only_user(store, user)
        if model_folder is not None and (device.has_model or client is None):
            device.recommender()
        return device

    def store(self) -> Store:
        return Store(self.store_file, create=True)

    @property
    def has_model(self) -> bool:
        folder = self.model_folder
        return folder is not None and (
            Installed.at(folder) or (folder / artifact.MANIFEST).is_file()
        )

    @property
    def artifact(self) -> Path:
        """Folder of the model in use."""
        if self.model_folder is None or not self.has_model:
            raise ArtifactError(f"{self.model_folder or 'this device'}: no model there")
        installed = Installed(self.model_folder)
        return installed.current() if Installed.at(self.model_folder) else self.model_folder

    def recommender(self) -> Recommender:
        """Return the model, and reload it if another one was installed."""
        manifest, _ = artifact.read_manifest(self.artifact)
        digest = hashlib.sha256(manifest).hexdigest()
        if self._loaded is None or self._loaded[0] != digest:
            self._loaded = digest, load_model(self.artifact)
        return self._loaded[1]

    def recommending(self, store: Store) -> Device:
        return Device(store, self.recommender())

    def items(self, store: Store) -> Sequence[str]:
        """Return the ids of all known items, from the model or else from the client's catalogue."""
        if self.has_model:
            return self.recommending(store).catalogue.names
        catalogue = self.client / "catalogue.txt" if self.client else None
        return read_catalogue(catalogue).names if catalogue and catalogue.is_file() else ()
