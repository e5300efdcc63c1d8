"""What `tune` measured, point by point: the same command goes on where it stopped, and who doubts a
choice sees what it was chosen from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from privirec.errors import DataError


class Trace:
    """Points in a file of JSON lines; each is there as soon as it is known."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        """`about` tells these points from others that the file may hold."""
        self._path = path
        self._about = dict(about)
        self.points = list(self._kept())

    def find(self, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
        """The point with these values, if it is there."""
        for point in self.points:
            if all(point[key] == value for key, value in wanted.items()):
                return point
        return None

    def add(self, measured: Mapping[str, Any]) -> dict[str, Any]:
        """Keep a point; returns it with what it is about."""
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
