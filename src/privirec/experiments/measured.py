"""Resumable measurements, stored as one row per point in a file of JSON lines.

Each row is saved as soon as it is measured. The same command resumes where it was interrupted, and
measures only new points. All experiments keep their rows with `MeasuredRows`.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Protocol

from privirec import threads as threading
from privirec.data.text import write_lines
from privirec.errors import DataError
from privirec.version import __version__


class Measurable(Protocol):
    """A measurement to make."""

    def identity(self) -> dict[str, Any]:
        """Return the fields that identify the measurement; they are part of its row."""
        ...

    def measure(self) -> dict[str, Any]:
        """Measure the point and return its row."""
        ...


class MeasuredRows:
    """A file with one row per point; points with a row are not measured again.

    A file may hold rows of other settings, data sets or versions, but not of another experiment.
    Each row starts with the name of its experiment; rows of older versions without it are accepted
    if they have the fields of the experiment. A last line that a crash cut off is ignored, and
    removed before the next row is added. Without a path, rows are kept in memory only.
    """

    def __init__(
        self,
        path: Path | None,
        experiment: str,
        identity: Sequence[str],
        results: Sequence[str] = ("ndcg@20",),
    ) -> None:
        """Read the rows of a file, if it exists.

        `identity` holds the names of the fields that identify a measurement, and `results` those of
        fields that every row also has.
        """
        self.rows: list[dict[str, Any]] = []
        self._path = path
        self._experiment = experiment
        self._identity = tuple(identity)
        self._results = tuple(results)
        self._known: dict[str, dict[str, Any]] = {}
        self._cut_off_at: int | None = None
        self._before = b""
        if path is not None and path.is_file():
            self._read(path)

    def find(self, identity: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the row of a point, or None if it has not been measured."""
        return self._known.get(self._key(identity))

    def rows_with(self, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return all rows that have these values."""
        plain = json.loads(json.dumps(values))
        return [
            row for row in self.rows if all(row[name] == value for name, value in plain.items())
        ]

    def add(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Append a row to the file and return it; the row is on the disk when this returns."""
        line = json.dumps({"experiment": self._experiment, **row})
        if self._path is not None:
            self._append(self._path, line)
        return self._keep(json.loads(line))

    def missing(self, points: Iterable[Measurable]) -> list[Any]:
        """Return the points that have no row."""
        return [point for point in points if self.find(point.identity()) is None]

    def of(self, points: Iterable[Measurable]) -> list[dict[str, Any]]:
        """Return the rows already measured for these points."""
        return [row for point in points if (row := self.find(point.identity())) is not None]

    def measure_missing(
        self,
        points: Sequence[Measurable],
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

    def _keep(self, row: dict[str, Any]) -> dict[str, Any]:
        self._known[self._key(row)] = row
        self.rows.append(row)
        return row

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        *lines, last = content.split(b"\n")
        for number, line in enumerate(lines, 1):
            self._keep(self._parsed(line, number))
        if not last:
            return
        if self._is_cut_off(last):
            self._cut_off_at = len(content) - len(last)
        else:
            self._keep(self._parsed(last, len(lines) + 1))
            self._before = b"\n"

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            row: dict[str, Any] = json.loads(line)
            if row.get("experiment", self._experiment) != self._experiment:
                raise ValueError("a row of another experiment")
            if any(name not in row for name in (*self._identity, *self._results)):
                raise ValueError("a row without these fields")
        except (ValueError, AttributeError):
            raise DataError(
                f"{self._path}:{number}: not a row of {self._experiment}; name another file"
            ) from None
        return row

    def _is_cut_off(self, line: bytes) -> bool:
        """Return True for the first bytes of a row of this experiment, without its end."""
        start = json.dumps({"experiment": self._experiment})[:-1].encode()
        if not (line.startswith(start) or start.startswith(line)):
            return False
        try:
            json.loads(line)
        except ValueError:
            return True
        return False

    def _append(self, path: Path, line: str) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if self._cut_off_at is not None:
                os.truncate(path, self._cut_off_at)
                self._cut_off_at = None
            with path.open("ab") as file:
                file.write(self._before + line.encode() + b"\n")
                file.flush()
                if path.is_file():  # not a pipe, such as /dev/stdout
                    os.fsync(file.fileno())
            self._before = b""
        except OSError as error:
            raise DataError(f"{path}: cannot be written: {error.strerror}") from None


def over_seeds(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return mean metrics of one point over seeds, with the number of seeds.

    `spread` is the standard deviation of NDCG@20 over seeds, or None for a single seed.
    """
    ndcg = [row["ndcg@20"] for row in rows]
    return {
        "seeds": len(ndcg),
        "ndcg@20": mean(ndcg),
        "spread": stdev(ndcg) if len(ndcg) > 1 else None,
        "recall@20": mean(row["recall@20"] for row in rows),
    }


def write_csv_table(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write these columns of rows as CSV."""
    text = io.StringIO()
    table = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    table.writeheader()
    table.writerows(rows)
    write_lines(path, text.getvalue().splitlines())
    return path
