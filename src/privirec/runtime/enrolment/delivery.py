"""Delivery of rosters: what a server shows is checked, and the client's policy consents or asks.

roster.json            roster in place
waiting-roster.json    newer roster that waits for the owner's consent
refused-roster.json    last roster that was refused; two that the operator signed and that do not
                       continue each other prove that the operator cheats
accepted.json          changes that the policy accepted, with the day of each
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import Enum

from privirec.durable import write_whole
from privirec.errors import UsageError
from privirec.privacy.policy import MONTH, Policy
from privirec.runtime.enrolment.folders import WAITING, ClientFolder
from privirec.runtime.enrolment.roster import WORDS, RosterDifference, RosterFile, ServerNamed
from privirec.runtime.node import calendar

REFUSED, ACCEPTED = "refused-roster.json", "accepted.json"


class Outcome(Enum):
    """Effect of a roster that a server shows."""

    KNOWN = "in place already"
    INSTALLED = "installed"
    WAITS = "waits for the owner's consent"


class RosterDelivery:
    """Judge of the rosters that a server shows to one client."""

    def __init__(self, home: ClientFolder, clock: Callable[[], datetime] = calendar.now) -> None:
        self._home = home
        self._clock = clock
        self._read: tuple[int, RosterFile] | None = None

    @property
    def members(self) -> RosterFile:
        """Roster in place; it is read again only if the file has changed."""
        changed = (self._home.folder / "roster.json").stat().st_ctime_ns
        if self._read is None or self._read[0] != changed:
            self._read = changed, self._home.members
        return self._read[1]

    def take(self, content: bytes) -> tuple[Outcome, str]:
        """Judge what a server shows; return the outcome and a line for the owner.

        Raise UsageError of one line for a roster that is refused; it has no effect but to be kept
        in `refused-roster.json`.
        """
        before = self.members
        try:
            found = before.continued(RosterDifference.parse(content))
            self._home.check_is_in(found)
        except UsageError:
            write_whole(self._home.folder / REFUSED, content)
            raise
        if found.number == before.number:
            return Outcome.KNOWN, ""
        told = f"roster {found.number}: {changes_in_words(found, before)}"
        if reason := self._must_ask(found, before):
            found.write(self._home.folder / WAITING)
            return Outcome.WAITS, f"{told}; it waits for your consent, because {reason}"
        self._note(before.number, found.number)
        self._home.join(found)
        return Outcome.INSTALLED, f"{told}; accepted by policy.toml"

    def _must_ask(self, found: RosterFile, before: RosterFile) -> str:
        """Return why the policy does not accept these changes; empty if it does."""
        most = Policy.load(self._home.folder / "policy.toml").most_roster_changes_per_month
        new = found.changes[before.number :]
        if before.server and any(isinstance(change, ServerNamed) for change in new):
            return "the server's new key is not signed by its old one"
        count = len(new) + sum(size for _, size in self._accepted(before.number).values())
        if count > most:
            return (
                f"these are {count} changes in 30 days; policy.toml says "
                f"most_roster_changes_per_month = {most}"
            )
        return ""

    def _accepted(self, number: int) -> dict[int, tuple[str, int]]:
        """Return the day and the size of each delivery of the last 30 days, by its first change.

        A delivery that begins at the present roster was never installed, so it does not count.
        """
        path = self._home.folder / ACCEPTED
        try:
            found = json.loads(path.read_bytes()) if path.exists() else {}
            kept = {int(start): (str(day), int(size)) for start, (day, size) in found.items()}
            since = self._clock() - MONTH - timedelta(days=1)  # days count from their beginning
            return {
                start: each
                for start, each in kept.items()
                if start < number and datetime.fromisoformat(each[0] + "T00:00+00:00") >= since
            }
        except (ValueError, TypeError, AttributeError):
            raise UsageError(f"{path}: not a record of accepted changes") from None

    def _note(self, start: int, number: int) -> None:
        """Record a delivery before it is installed, so that no crash makes it free."""
        kept = self._accepted(start) | {start: (f"{self._clock():%Y-%m-%d}", number - start)}
        write_whole(self._home.folder / ACCEPTED, json.dumps(kept).encode())


def waiting_roster(home: ClientFolder) -> RosterFile | None:
    """Return the roster that waits for the owner's consent, if there is one."""
    path = home.folder / WAITING
    return home.offered(path) if home.has_joined and path.exists() else None


def changes_in_words(found: RosterFile, before: RosterFile | None) -> str:
    """Return the changes between two rosters in one line, with the names of up to three."""
    new = found.since(before)
    if len(new) > 3:
        counts = Counter(what for what, _, _ in new)
        return ", ".join(f"{counts[word]} {word}" for word in WORDS.values() if counts[word])
    return ", ".join(f"{what} {member.name if member else ''}".strip() for what, member, _ in new)
