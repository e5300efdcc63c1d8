"""Scheduled runs: one run in each period, started by the server itself, and tried again.

    SERVER/schedule.json    what runs, how often, and what became of the present period

A run that could not finish is tried again under another name, after a pause that doubles each time.
A run that the server itself could not go on with, as on a full disk, goes on under its own name.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from privirec.durable import write_whole
from privirec.errors import FederationError, PrivirecError, UsageError
from privirec.runtime.enrolment.folders import OperatorFolder
from privirec.runtime.runs import RunFolder, read_json_file
from privirec.runtime.spec import RunSpec

FILE = "schedule.json"
FIRST_PAUSE = timedelta(minutes=10)
LONGEST_PAUSE = timedelta(days=1)


class Every(StrEnum):
    """Length of a period, in UTC; a week begins on Monday."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"

    def period(self, at: datetime) -> str:
        """Return the name of the period that a time is in."""
        if self is Every.WEEK:
            year, week, _ = at.isocalendar()
            return f"{year}-W{week:02d}"
        return f"{at:%Y-%m-%d}" if self is Every.DAY else f"{at:%Y-%m}"


class Schedule(BaseModel):
    """A run in each period, and the present one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    every: Every
    spec: str
    """Chosen settings of the run, as JSON."""
    tries: int = Field(5, ge=1)
    """Most runs that are tried in a period."""
    period: str = ""
    """Period of the last run."""
    tried: int = 0
    """Runs that were started in this period."""
    run: str = ""
    """Name of the last run, until its end was noticed."""
    not_before: datetime = datetime.min.replace(tzinfo=UTC)
    """Time of the next try."""
    said: str = ""
    """Outcome of the last try."""


def read(home: OperatorFolder) -> Schedule | None:
    """Return the schedule of a server, if it has one."""
    path = home.folder / FILE
    try:
        return Schedule.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        raise UsageError(f"{path}: not a schedule; make it again: server schedule") from None


def write(home: OperatorFolder, found: Schedule) -> None:
    write_whole(home.folder / FILE, found.model_dump_json(indent=2).encode())


def remove(home: OperatorFolder) -> None:
    (home.folder / FILE).unlink(missing_ok=True)


def start_due(home: OperatorFolder, now: datetime | None = None) -> str | None:
    """Prepare the run that is due, and return its name; None if none is.

    Call this while no run is served.
    """
    found = read(home)
    if found is None:
        return None
    now = now or datetime.now(UTC)
    after = noticed(home, found, now)
    if after != found:
        write(home, after)
    if after.period == after.every.period(now) and (
        after.tried >= after.tries or now < after.not_before
    ):
        return None
    return _started(home, after, now)


def noticed(home: OperatorFolder, found: Schedule, now: datetime) -> Schedule:
    """Return the schedule after the end of the last run, if it has ended."""
    if not found.run:
        return found
    result = read_json_file(home.run(found.run) / "result.json")
    if result and not result["reason"]:
        return found.model_copy(
            update={"run": "", "tried": found.tries, "said": f"{found.run}: done"}
        )
    reason = result.get("reason") or "the server could not go on with it"
    pause = min(FIRST_PAUSE * 2 ** (found.tried - 1), LONGEST_PAUSE)
    return found.model_copy(
        update={
            "run": "",
            "not_before": now + pause,
            "said": f"{found.run}: {reason}",
        }
    )


def _started(home: OperatorFolder, found: Schedule, now: datetime) -> str | None:
    period = found.every.period(now)
    tried = found.tried + 1 if found.period == period else 1
    name = f"{found.every}-{period}" + (f"-try-{tried}" if tried > 1 else "")
    again = _unfinished(home, f"{found.every}-{period}", tried)
    begun = found.model_copy(update={"period": period, "tried": tried, "run": again or name})
    try:
        chosen = RunSpec.model_validate_json(found.spec)
        roster = len(home.members.roster())
        spec = chosen.for_roster("", len(home.catalogue.item_ids), roster)
        is_to_start = RunFolder(home, begun.run).prepare(spec)
    except (PrivirecError, OSError) as error:
        pause = min(FIRST_PAUSE * 2 ** (tried - 1), LONGEST_PAUSE)
        stopped = {"run": "", "not_before": now + pause, "said": str(error)}
        write(home, begun.model_copy(update=stopped))
        raise FederationError(f"scheduled run {begun.run}: {error}") from None
    write(home, begun)
    return begun.run if is_to_start else None


def _unfinished(home: OperatorFolder, first: str, tried: int) -> str:
    """Return the name of an earlier try of this period that has not ended, or nothing."""
    for number in range(tried - 1, 0, -1):
        name = first + (f"-try-{number}" if number > 1 else "")
        folder = home.run(name)
        if (folder / "run.json").exists() and not (folder / "result.json").exists():
            return name
    return ""
