"""Sources of a client's histories, which stay fixed for the length of a run."""

from __future__ import annotations

import logging
from datetime import datetime
from pathlib import Path
from typing import Protocol

import numpy as np

from privirec.data.catalogue import Catalogue
from privirec.data.formats import read_interactions
from privirec.data.interactions import Interactions
from privirec.device.store import Store

log = logging.getLogger("privirec.client")


class HistorySource(Protocol):
    """Source of histories over the client's catalogue.

    Interactions with items outside the catalogue are left out and counted. Users without any other
    interaction are left out too: the people that a client pledges must hide others, and a user who
    adds nothing to the sums hides nobody. Repeated calls during one run must return the same
    histories.
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

    def begin(self, run: str, catalogue: Catalogue, since: datetime | None = None) -> Interactions:
        with Store(self._path) as store:
            return _known(self._path, *store.begin_run(run, catalogue, since))

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
            return found.without_idle_users(), unknown

    def finish(self, run: str) -> None:
        with Store(self._path) as store:
            store.finish_run(run)


class FromFile:
    """A file of interactions in any known format, such as a silo's export.

    The file has no memory; the client's `Calendar` remembers which histories were used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, run: str, catalogue: Catalogue, since: datetime | None = None) -> Interactions:
        return _known(self._path, *self.preview(catalogue))

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
        return inside.without_idle_users(), int(np.count_nonzero(~known))

    def finish(self, run: str) -> None:
        return None


def _known(path: Path, found: Interactions, unknown: int) -> Interactions:
    """Return the histories, and log a message to the owner if the catalogue does not fit.

    This is not a refusal, because the server would learn about the content of a history.
    """
    if unknown and not found.n_interactions:
        log.error("%s: holds no item of catalogue.txt; is that the right one?", path)
    elif unknown:
        log.warning("%d interactions with items outside the catalogue are left out", unknown)
    return found
