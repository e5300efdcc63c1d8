"""Trace of the points that `tune` measured.

An interrupted command resumes from it, and a choice can be verified with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from privirec.errors import DataError


class Trace:
    """Points in a file of JSON lines; each is written as soon as it is measured."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        """Read the points of a file that match `about`; it may also hold others."""
        self._path = path
        self._about = dict(about)
        self.points = list(self._kept())

    def find(self, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the point with these values, or None."""
        for point in self.points:
            if all(point[key] == value for key, value in wanted.items()):
                return point
        return None

    def add(self, measured: Mapping[str, Any]) -> dict[str, Any]:
        """Write a point to the file, and return it with the values of `about`."""
        point = self._about | dict(measured)
        self.points.append(point)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(point) + "\n")
        return point

    def _kept(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        for number, line in enumerate(self._path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                point = json.loads(line)
                same = all(point[key] == value for key, value in self._about.items())
            except (ValueError, KeyError, TypeError):
                raise DataError(f"{self._path}, line {number}: not a point of a trace") from None
            if same:
                yield point
