"""The operator's log: one line for everything the operator did, appended and never changed.

    SERVER/operator.log    JSON lines: time, account, action and the seal of the line before

Each line carries a hash of all lines before it, so that a line that was changed or removed shows.
Whoever can write to the folder can write a whole new log: keep copies elsewhere, as of any log.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from privirec.durable import alone, private_folder
from privirec.errors import FederationError

FILE = "operator.log"


def note(folder: Path, did: str, **more: Any) -> None:
    """Append a line on what the operator did."""
    note_all(folder, [{"did": did, **more}])


def note_all(folder: Path, actions: Sequence[Mapping[str, Any]]) -> None:
    """Append a line for each action; they are on the disk when this returns."""
    if not actions:
        return
    at, account = datetime.now(UTC).isoformat(timespec="seconds"), _account()
    with alone(private_folder(folder / ".operator-log")):
        last = next(iter(deque(_lines(folder), maxlen=1)), "")
        descriptor = os.open(folder / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(descriptor, "ab") as file:
            for action in actions:
                row = {"at": at, "by": account, **action, "after": _seal(last)}
                last = json.dumps(row, sort_keys=True, ensure_ascii=True) + "\n"
                file.write(last.encode())
            file.flush()
            os.fsync(file.fileno())


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return all lines, oldest first; raise FederationError if one was changed or removed."""
    found: list[dict[str, Any]] = []
    last = ""
    for number, line in enumerate(_lines(folder), start=1):
        try:
            row = json.loads(line)
            fits = row.pop("after") == _seal(last)
        except (ValueError, KeyError, AttributeError):
            fits = False
        if not fits:
            raise FederationError(
                f"{folder / FILE}: line {number} does not continue the one before: the log was "
                "changed"
            )
        found.append(row)
        last = line
    return found


def _lines(folder: Path) -> Iterator[str]:
    try:
        with (folder / FILE).open(encoding="utf-8", errors="replace") as file:
            yield from file
    except FileNotFoundError:
        return


def _seal(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest()[:32] if line else ""


def _account() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in a container
        return str(os.getuid())
