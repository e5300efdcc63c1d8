"""Logs for their owner only; never a history, never a secret."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from privirec.runtime.network.messages import one_line


class _Lines(logging.Formatter):
    """Messages quote what others sent: one line each, whatever it was."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(super().formatMessage(record), 2000)


def log_to(path: Path) -> None:
    """What this program says goes to a file."""
    logger = logging.getLogger("privirec")
    if logger.handlers:
        return
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(_Lines("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
