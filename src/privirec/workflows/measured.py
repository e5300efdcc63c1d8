"""Measurements that can be stopped: one row for each point in a file of JSON lines, kept as soon as
it is there; the same command goes on where it was stopped, and measures only what is new."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from privirec import threads as threading
from privirec.errors import DataError
from privirec.report.rows import write_json_lines
from privirec.version import __version__


class Measurable(Protocol):
    """One measurement to make."""

    def identity(self) -> dict[str, Any]:
        """What makes it another measurement than any other; part of its row."""
        ...

    def measure(self) -> dict[str, Any]:
        """The row."""
        ...


Point = TypeVar("Point", bound=Measurable)


class Measured(Generic[Point]):
    """Rows in a file, one for each point; what is there is not measured again.

    Each row names the version that measured it. Older rows have none, and are read all the same.
    """

    def __init__(self, path: Path | None, identity: Sequence[str], command: str) -> None:
        """`identity`: names of what makes two rows the same measurement; `command`: whose rows."""
        self._path = path
        self._identity = tuple(identity)
        self._rows: list[dict[str, Any]] = []
        if path is not None and path.exists():
            self._rows = self._read(path, command)
        self._known = {self._key(row): row for row in self._rows}

    def missing(self, points: Iterable[Point]) -> list[Point]:
        return [point for point in points if self._key(point.identity()) not in self._known]

    def of(self, points: Iterable[Point]) -> list[dict[str, Any]]:
        """The rows of these points that there are."""
        keys = (self._key(point.identity()) for point in points)
        return [self._known[key] for key in keys if key in self._known]

    def add(self, row: dict[str, Any]) -> None:
        self._rows.append(row)
        self._known[self._key(row)] = row
        write_json_lines(self._path, self._rows)

    def measure_missing(
        self,
        points: Sequence[Point],
        threads: int | None = None,
        tell: Callable[[int, int], None] | None = None,
    ) -> None:
        """Measure what is not there yet; every row is kept as soon as it is there."""
        missing = self.missing(points)
        with threading.limit(threads):
            for done, point in enumerate(missing):
                if tell:
                    tell(done, len(missing))
                self.add(point.measure() | {"version": __version__})
        if tell and missing:
            tell(len(missing), len(missing))

    def _key(self, row: Mapping[str, Any]) -> str:
        return json.dumps([row[name] for name in self._identity], sort_keys=True)

    def _read(self, path: Path, command: str) -> list[dict[str, Any]]:
        rows = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                row = json.loads(line)
                self._key(row)
                float(row["ndcg@20"])
            except (ValueError, KeyError, TypeError):
                raise DataError(
                    f"{path}:{number}: not a row of {command}; name another file"
                ) from None
            rows.append(row)
        return rows
