"""Resumable measurements, stored as one row per point in a file of JSON lines.

Each row is saved as soon as it is measured. The same command resumes where it was interrupted, and
measures only new points.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from privirec import threads as threading
from privirec.errors import DataError
from privirec.rows import write_json_lines
from privirec.version import __version__


class Measurable(Protocol):
    """A measurement to make."""

    def identity(self) -> dict[str, Any]:
        """Return the fields that identify the measurement; they are part of its row."""
        ...

    def measure(self) -> dict[str, Any]:
        """Measure the point and return its row."""
        ...


Point = TypeVar("Point", bound=Measurable)


class Measured(Generic[Point]):
    """A file with one row per point; points with a row are not measured again.

    Each row names the version that measured it. Older rows without a version are also accepted.
    """

    def __init__(self, path: Path | None, identity: Sequence[str], command: str) -> None:
        """Read the rows of a file, if it exists.

        `identity` holds the names of the fields that identify a measurement. `command` is the name
        of the command that writes the rows, for error messages.
        """
        self._path = path
        self._identity = tuple(identity)
        self._rows: list[dict[str, Any]] = []
        if path is not None and path.exists():
            self._rows = self._read(path, command)
        self._known = {self._key(row): row for row in self._rows}

    def missing(self, points: Iterable[Point]) -> list[Point]:
        return [point for point in points if self._key(point.identity()) not in self._known]

    def of(self, points: Iterable[Point]) -> list[dict[str, Any]]:
        """Return the rows already measured for these points."""
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
        """Measure the points without a row, and save each row as soon as it is measured."""
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
