"""Log files that only their owner can read. They never contain a history or a secret."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from pathlib import Path

from privirec.runtime.messages import one_line

SAY_AGAIN = 30.0
"""Seconds between two log lines of a client about a server that does not answer."""


class _OwnersFile(WatchedFileHandler):
    """A log file that only its owner can read.

    After a rotation moved the file away, the next line starts a new one. If the file cannot be
    opened, because its folder is gone, the program goes on.
    """

    _has_failed = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Say in one line, once, that the file cannot be written, as if the disk is full."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._has_failed:
            self._has_failed = True
            said = f"privirec: {self.baseFilename}: cannot be written ({error.strerror})"
            print(said, file=sys.stderr, flush=True)

    def _open(self) -> TextIOWrapper:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return open(descriptor, "a", encoding=self.encoding)


class _LogLines(logging.Formatter):
    """Formatter that puts each message on one line, even if it quotes text from others."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(super().formatMessage(record), 2000)


@contextmanager
def logged_to(path: Path) -> Iterator[None]:
    """Also write this program's log messages to a file during the body."""
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
    handler.setFormatter(_LogLines("%(asctime)s %(levelname)s %(message)s"))
    return handler
