"""Where a client's histories come from, fixed for the length of a run."""

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
    """Histories over the client's catalogue.

    Interactions with items that the catalogue does not have are left out, and counted. So is
    whoever has no other: the people that a client pledges hide others, and somebody with nothing in
    the sums hides nobody. Asked again in one run, the histories must be the same.
    """

    def begin(self, run: str, catalogue: Catalogue, since: datetime | None = None) -> Interactions:
        """The histories of this run, which is exact if `since` says when its calendar period began:
        then they are those of that moment, as far as the source can know; SitsOut if something of
        them was forgotten."""
        ...

    def may_have_changed(self, since: datetime) -> bool:
        """Whether histories that differ from those of earlier periods may be of later than this."""
        ...

    def check(self, run: str) -> None:
        """SitsOut if something was forgotten that this run may use."""
        ...

    def sent(self, run: str) -> None:
        """From now on something that was made of these histories may have left."""
        ...

    def preview(self, catalogue: Catalogue) -> tuple[Interactions, int]:
        """The histories as a run would see them, without beginning one, and how many interactions
        are left out."""
        ...

    def finish(self, run: str) -> None: ...


class FromStore:
    """The device's own store: it notes which run used what, and forgetting ends a run."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, run: str, catalogue: Catalogue, since: datetime | None = None) -> Interactions:
        with Store(self._path) as store:
            return _known(self._path, *store.begin_run(run, catalogue, since))

    def may_have_changed(self, since: datetime) -> bool:
        return False  # the store knows what was there when

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
    """A file of interactions in any known format: a silo's export. It has no memory: the client's
    `Calendar` remembers which histories were used."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, run: str, catalogue: Catalogue, since: datetime | None = None) -> Interactions:
        return _known(self._path, *self.preview(catalogue))

    def may_have_changed(self, since: datetime) -> bool:
        """By the file system's own time of the last change, whatever the file's date says."""
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
    """The histories, with a word to the owner where the catalogue does not fit. No refusal: the
    server would hear of it, and it is about what is in a history."""
    if unknown and not found.n_interactions:
        log.error("%s: holds no item of catalogue.txt; is that the right one?", path)
    elif unknown:
        log.warning("%d interactions with items outside the catalogue are left out", unknown)
    return found
