"""Where a client's histories come from, fixed for the length of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np

from privirec.data.formats import read_interactions
from privirec.data.interactions import Interactions
from privirec.device.catalogue import Catalogue
from privirec.device.store import Store
from privirec.errors import DataError


class HistorySource(Protocol):
    """Histories over the client's catalogue. Asked again in one run, they must be the same."""

    def begin(self, run: str, catalogue: Catalogue) -> Interactions: ...

    def finish(self, run: str) -> None: ...


class FromStore:
    """The device's own store: it notes which run used what, and forgetting ends a run."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, run: str, catalogue: Catalogue) -> Interactions:
        with Store(self._path) as store:
            return store.begin_run(run, catalogue)[0]

    def finish(self, run: str) -> None:
        with Store(self._path) as store:
            store.finish_run(run)


class FromFile:
    """A file of interactions in any known format: a silo's export."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, run: str, catalogue: Catalogue) -> Interactions:
        found = read_interactions(self._path)
        columns = catalogue.columns
        try:
            wanted = np.array([columns[str(item)] for item in found.item_ids.tolist()], int)
        except KeyError:
            raise DataError(
                f"{self._path}: holds an item that is not in this client's catalogue"
            ) from None
        entries = found.matrix.tocoo()
        return Interactions.from_indices(
            entries.row, wanted[entries.col], found.user_ids, catalogue.item_ids
        )

    def finish(self, run: str) -> None:
        return None


def read_catalogue(path: Path) -> Catalogue:
    """Item ids, one a line, in the order of the model's columns; numbers if all of them are."""
    try:
        names = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a readable catalogue ({error})") from None
    if names and names[-1] == "":
        names.pop()
    if not names or len(set(names)) != len(names) or "" in names:
        raise DataError(f"{path}: a catalogue has one item id a line, each once")
    if all(name.isascii() and name.isdigit() and str(int(name)) == name for name in names):
        return Catalogue([int(name) for name in names])
    return Catalogue(names)


def write_catalogue(path: Path, catalogue: Catalogue) -> None:
    path.write_text("".join(f"{name}\n" for name in catalogue.names), encoding="utf-8")
