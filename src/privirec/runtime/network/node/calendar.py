"""One history for all runs of a calendar period, so that a change is not announced.

With exact sums the difference of two runs of one cohort is what its clients added and forgot in
between. If every client changes when it likes, that is one person's change. So the runs of one
period (`days_between_changes` of the policy) all see what was there when the period began, whenever
a server asks whom: what was added waits, and who has forgotten something sits out. The changes of
all clients come at once, for a whole period, with the first run of the next one; nobody's can be
collected for longer than those of all others. Clients pledge the period, and are in a run only with
those of the same one. And the runs of a period are over one catalogue: what lies in one and not in
the other would show in the difference as well.

    FOLDER/used-histories    period, catalogue and digest of the histories that were used last
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from privirec.durable import write_whole
from privirec.errors import SitsOut
from privirec.runtime.network.refusals import Code, Refusal

_FIRST_MONDAY = datetime(1970, 1, 5, tzinfo=UTC)
_SITS_OUT = "histories were used in a run since {since} that have changed; it sits out until {next}"


def now() -> datetime:
    return datetime.now(UTC)


class Calendar:
    """Periods of so many days, the same for everybody: weeks begin on Monday, in UTC."""

    def __init__(self, folder: Path, days: int, clock: Callable[[], datetime] = now) -> None:
        """0 days: no calendar."""
        self._note = folder / "used-histories"
        self._days = days
        self._clock = clock

    def period(self) -> datetime | None:
        """When the present period began. A clock that was set back does not bring one back."""
        if not self._days:
            return None
        length = timedelta(days=self._days)
        begin = _FIRST_MONDAY + (self._clock() - _FIRST_MONDAY) // length * length
        used, _, _ = self._used()
        return max(begin, datetime.fromisoformat(used)) if used else begin

    def check_catalogue(self, client: int, catalogue: str) -> None:
        """Refuse to begin over another catalogue than was used before in this period."""
        period, used, _ = self._used()
        if (since := self.period()) and period == str(since) and used != catalogue:
            raise Refusal(
                Code.OTHER_CATALOGUE,
                f"client {client} has been in a run over another catalogue ({used[:16]}) since "
                f"{since:%Y-%m-%d}: it takes part over this one from {self._end(since)} on",
            )

    def check_histories(self, histories: str, *, changed: bool) -> None:
        """Refuse to begin with other histories than were used before in this period, or with ones
        that may have changed since it began (`changed`)."""
        period, _, used = self._used()
        since = self.period()
        if since and used and used != histories and (changed or period == str(since)):
            raise SitsOut(_SITS_OUT.format(since=f"{since:%Y-%m-%d}", next=self._end(since)))

    def note(self, period: str, catalogue: str, histories: str) -> None:
        """These histories are used now: on the disk before anything made of them leaves."""
        if period:
            write_whole(self._note, json.dumps([period, catalogue, histories]).encode())

    def _end(self, since: datetime) -> str:
        return f"{since + timedelta(days=self._days):%Y-%m-%d}"

    def _used(self) -> tuple[str, str, str]:
        try:
            period, catalogue, histories = json.loads(self._note.read_bytes())
            datetime.fromisoformat(period)
        except (FileNotFoundError, ValueError, TypeError):
            return "", "", ""
        return period, catalogue, histories
