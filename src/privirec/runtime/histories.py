"""Sources of a client's histories, which stay fixed for the length of a run."""

from __future__ import annotations

import logging
import time
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from privirec.data.catalogue import Catalogue
from privirec.data.formats import read_interactions
from privirec.data.interactions import Interactions
from privirec.device.store import Store

log = logging.getLogger("privirec.client")

COARSEST_TIME = 2 * 10**9
"""Nanoseconds within which a file system may give two changes of a file the same time."""


class HistorySource(Protocol):
    """Source of histories over the client's catalogue.

    Interactions with items outside the catalogue are left out and counted. Users without any other
    interaction stay, with an empty history; `in_a_run` says who counts. Repeated calls during one
    run must return the same histories; while nothing has changed they return the same object, which
    was read once.
    """

    def begin(self, run: str, catalogue: Catalogue, since: datetime | None = None) -> Interactions:
        """Return the histories for this run.

        For an exact run, `since` is the start of its calendar period. The histories are then those
        of that moment, as far as the source can tell, and SitsOut is raised if some of them were
        forgotten.
        """
        ...

    def may_have_changed(self, since: datetime) -> bool:
        """Return True if differences from earlier periods may be changes made after `since`."""
        ...

    def check(self, run: str) -> None:
        """Raise SitsOut if something was forgotten that this run may use."""
        ...

    def sent(self, run: str) -> None:
        """Record that data derived from these histories may leave from now on."""
        ...

    def preview(self, catalogue: Catalogue) -> tuple[Interactions, int]:
        """Return the histories as a run would see them, and the number of interactions left out.

        This does not begin a run.
        """
        ...

    def finish(self, run: str) -> None: ...


class FromStore:
    """The device's own store. It records which run used which data; forgetting data ends a run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[str, str, Interactions] | None = None
        """Run, fingerprint of the catalogue, and the histories that the run uses."""

    def begin(self, run: str, catalogue: Catalogue, since: datetime | None = None) -> Interactions:
        with Store(self._path) as store:
            if self._read and self._read[:2] == (run, catalogue.fingerprint):
                store.check_run(run)
                return self._read[2]
            found = _known(self._path, *store.begin_run(run, catalogue, since))
        self._read = (run, catalogue.fingerprint, found)
        return found

    def may_have_changed(self, since: datetime) -> bool:
        return False  # the store knows the time of each change

    def check(self, run: str) -> None:
        with Store(self._path) as store:
            store.check_run(run)

    def sent(self, run: str) -> None:
        with Store(self._path) as store:
            store.note_sent(run)

    def preview(self, catalogue: Catalogue) -> tuple[Interactions, int]:
        with Store(self._path) as store:
            found, unknown = store.interactions(catalogue)
            return found, unknown

    def finish(self, run: str) -> None:
        self._read = None
        with Store(self._path) as store:
            store.finish_run(run)


class FromFile:
    """A file of interactions in any known format, such as a silo's export.

    The file has no memory; the client's `Calendar` remembers which histories were used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[_Version, str, Interactions] | None = None
        """Version of the file, fingerprint of the catalogue, and the histories in it."""

    def begin(self, run: str, catalogue: Catalogue, since: datetime | None = None) -> Interactions:
        version = _Version.of(self._path)
        if self._read and self._read[:2] == (version, catalogue.fingerprint):
            return self._read[2]
        began = time.time_ns()
        found = _known(self._path, *self.preview(catalogue))
        # A file that changed just before may change again without showing another time.
        settled = version.changed < began - COARSEST_TIME
        self._read = (version, catalogue.fingerprint, found) if settled else None
        return found

    def may_have_changed(self, since: datetime) -> bool:
        """Compare with the file system's change time (ctime); the file's date can be forged."""
        return self._path.stat().st_ctime >= since.timestamp()

    def check(self, run: str) -> None:
        return None

    def sent(self, run: str) -> None:
        return None

    def preview(self, catalogue: Catalogue) -> tuple[Interactions, int]:
        found = read_interactions(self._path)
        place = catalogue.columns(map(str, found.item_ids.tolist()))
        entries = found.matrix.tocoo()
        known = place[entries.col] >= 0
        inside = Interactions.from_indices(
            entries.row[known], place[entries.col[known]], found.user_ids, catalogue.item_ids
        )
        return inside, int(np.count_nonzero(~known))

    def finish(self, run: str) -> None:
        self._read = None


class _Version(NamedTuple):
    """Properties of a file of which one differs after every change."""

    inode: int
    size: int
    modified: int
    changed: int

    @classmethod
    def of(cls, path: Path) -> _Version:
        found = path.stat()
        return cls(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def in_a_run(found: Interactions, *, protected: bool) -> Interactions:
    """Return the people that a client pledges for a run, with their histories.

    In an exact run people must hide others, and somebody who adds nothing to the sums hides nobody:
    only people with an item of the catalogue count. In a protected run noise hides everybody, and
    what a client pledges must not depend on histories: everybody counts, with an empty history
    too. A client without any history still stands for its owner.
    """
    if not protected:
        return found.without_idle_users()
    if found.n_users:
        return found
    nothing = np.zeros(0, np.int64)
    return Interactions.from_indices(nothing, nothing, np.array(["owner"]), found.item_ids)


def _known(path: Path, found: Interactions, unknown: int) -> Interactions:
    """Return the histories, and log a message to the owner if the catalogue does not fit.

    This is not a refusal, because the server would learn about the content of a history.
    """
    if unknown and not found.n_interactions:
        log.error("%s: holds no item of catalogue.txt; is that the right one?", path)
    elif unknown:
        log.warning("%d interactions with items outside the catalogue are left out", unknown)
    return found
