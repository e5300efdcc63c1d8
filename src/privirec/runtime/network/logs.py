"""Logs for their owner only; never a history, never a secret."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path

from privirec.runtime.network.messages import one_line

SAY_AGAIN = 30.0
"""Seconds between two lines of a client about a server that does not answer."""


class _OwnersFile(WatchedFileHandler):
    """For its owner only. Whoever rotates logs may move it away: the next line begins a new one."""

    def _open(self) -> TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return open(descriptor, "a", encoding=self.encoding)


class _Lines(logging.Formatter):
    """Messages quote what others sent: one line each, whatever it was."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(super().formatMessage(record), 2000)


def log_to(path: Path) -> None:
    """What this program says goes to a file."""
    logger = logging.getLogger("privirec")
    if not logger.handlers:
        logger.addHandler(_file(path))
        logger.setLevel(logging.INFO)


@contextmanager
def logged_to(path: Path) -> Iterator[None]:
    """What this program says in the meantime goes to this file too."""
    logger = logging.getLogger("privirec")
    handler = _file(path)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


def _file(path: Path) -> logging.Handler:
    handler = _OwnersFile(path, encoding="utf-8", delay=True)
    handler.setFormatter(_Lines("%(asctime)s %(levelname)s %(message)s"))
    return handler
