"""Files with one JSON object per line, read as a table: names in the objects are columns."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privirec.data.columns import TableOptions
from privirec.data.frames import rows_of_frame
from privirec.data.rows import Rows
from privirec.data.text import read_bytes
from privirec.errors import DataError


def read_json_lines(path: Path, options: TableOptions) -> Rows:
    """Read all rows of a file. Row numbers in messages are those of lines that are not empty."""
    records = []
    for number, line in enumerate(read_bytes(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            raise DataError(f"{path}:{number}: not a JSON object") from None
        if not isinstance(record, dict):
            raise DataError(f"{path}:{number}: not a JSON object, but {type(record).__name__}")
        records.append(record)
    return rows_of_frame(_Table(records), options, path)


@dataclass(frozen=True)
class _Column:
    values: list[Any]

    def to_numpy(self) -> NDArray:
        column = np.empty(len(self.values), object)
        column[:] = self.values
        return column


class _Table:
    """Records with the few methods of a DataFrame that reading needs."""

    def __init__(self, records: list[dict[str, Any]]) -> None:
        self.columns = list(dict.fromkeys(name for record in records for name in record))
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, name: str) -> _Column:
        return _Column([record.get(name) for record in self._records])
