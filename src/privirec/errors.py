"""Errors that users can act on. Each message is one line that says what is wrong and where."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from difflib import get_close_matches


class PrivirecError(Exception):
    """Base class of all errors that this package raises on purpose."""

    exit_code = 2


class UsageError(PrivirecError):
    """Arguments that are out of range or contradict each other."""


class DataError(PrivirecError):
    """A file or data set that does not have the expected format."""


class DataWarning(UserWarning):
    """A problem in the data that was handled, but that the owner should know about."""


class PrivacyWarning(UserWarning):
    """A model that gives histories away, or a promise that does not hold."""


def warn_of_data(message: str, kind: type[Warning] = DataWarning) -> None:
    """Issue a warning for the line outside this package that made the call.

    Python shows a warning once for each such line.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("privirec."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, kind, stacklevel=level)


def is_meant(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the closest known one, if any."""
    near = get_close_matches(name, known, 1)
    return f"; is {near[0]} meant?" if near else ""


class ArtifactError(PrivirecError):
    """A saved model that is damaged, forged or of an unknown format."""


class OverflowRefused(PrivirecError):
    """A sum that could overflow its ring; it is refused before anything is sent."""


class FederationError(PrivirecError):
    """A federation that could not finish safely."""

    exit_code = 3


class SitsOut(FederationError):
    """A client stays out of a run for a private reason, which the server is not told."""
