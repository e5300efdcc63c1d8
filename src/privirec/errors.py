"""Errors that a person can act on. Each message is one line that says what is wrong and where."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from difflib import get_close_matches


class PrivirecError(Exception):
    """Base of everything this package raises on purpose."""

    exit_code = 2


class UsageError(PrivirecError):
    """Arguments that do not fit together or lie outside what is possible."""


class DataError(PrivirecError):
    """A file or data set that cannot be read as what it claims to be."""


class DataWarning(UserWarning):
    """Something about data that was handled, and that its owner should know."""


def warn_of_data(message: str) -> None:
    """Give a DataWarning to the line outside this package that asked: Python shows a warning once
    for each such line."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("privirec."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, DataWarning, stacklevel=level)


def is_meant(name: str, known: Iterable[str]) -> str:
    """The end of a message about a name that is not known: the nearest one, if any is near."""
    near = get_close_matches(name, known, 1)
    return f"; is {near[0]} meant?" if near else ""


class ArtifactError(PrivirecError):
    """A saved model that is damaged, forged or of an unknown format."""


class OverflowRefused(PrivirecError):
    """A sum that could leave its ring; refused before anything is sent."""


class FederationError(PrivirecError):
    """A federation that could not finish safely."""

    exit_code = 3


class SitsOut(FederationError):
    """A client takes no part, for a reason of its own that is nobody else's business."""
