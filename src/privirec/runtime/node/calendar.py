"""Fixed histories for all runs of a calendar period, so that single changes do not show.

With exact sums, the difference of two runs of one cohort is what its clients added and forgot in
between. If every client applied changes at any time, this could be the change of one person. All
runs of a period (`days_between_changes` in the policy) therefore use the histories from the
beginning of the period, no matter when and whom a server asks. Additions wait for the next period,
and a client that has forgotten something sits out. The changes of all clients take effect together,
for a whole period, with the first run of the next period. Nobody's changes can be collected for
longer than those of all others.

Clients pledge their period, and are in a run only with clients of the same period. All runs of a
period use one catalogue, because items in only one of two catalogues would also show in the
difference.

    FOLDER/used-histories    period, catalogue and digest of the histories that were used last
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from privirec.durable import write_whole
from privirec.errors import SitsOut
from privirec.runtime.refusals import Code, Refusal

_FIRST_MONDAY = datetime(1970, 1, 5, tzinfo=UTC)
_SITS_OUT = "histories used in a run since {since} have changed; it sits out until {next}"


def now() -> datetime:
    return datetime.now(UTC)


class Calendar:
    """Periods of a fixed number of days, equal for all clients; weeks begin on Monday, in UTC."""

    def __init__(self, folder: Path, days: int, clock: Callable[[], datetime] = now) -> None:
        """Set the length of a period to `days`; 0 means that there is no calendar."""
        self._note = folder / "used-histories"
        self._days = days
        self._clock = clock

    def period(self) -> datetime | None:
        """Return the start of the current period, or None if there is no calendar.

        Setting the clock back does not bring back an earlier period.
        """
        if not self._days:
            return None
        length = timedelta(days=self._days)
        begin = _FIRST_MONDAY + (self._clock() - _FIRST_MONDAY) // length * length
        used, _, _ = self._used()
        return max(begin, datetime.fromisoformat(used)) if used else begin

    def check_catalogue(self, client: int, catalogue: str) -> None:
        """Refuse to begin with another catalogue than the one already used in this period."""
        period, used, _ = self._used()
        if (since := self.period()) and period == str(since) and used != catalogue:
            raise Refusal(
                Code.OTHER_CATALOGUE,
                f"client {client} has been in a run over another catalogue ({used[:16]}) since "
                f"{since:%Y-%m-%d}: it takes part over this one from {self._end(since)} on",
            )

    def check_histories(self, histories: str, *, changed: bool) -> None:
        """Raise SitsOut if the histories differ from those used last and the difference would show.

        It would show if histories were already used in this period, or if these may have changed
        since the period began (`changed`).
        """
        period, _, used = self._used()
        since = self.period()
        if since and used and used != histories and (changed or period == str(since)):
            raise SitsOut(_SITS_OUT.format(since=f"{since:%Y-%m-%d}", next=self._end(since)))

    def note(self, period: str, catalogue: str, histories: str) -> None:
        """Record that these histories are used; it is on the disk before derived data leaves."""
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
