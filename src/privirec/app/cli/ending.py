"""The end of a command: a one-line error message and an exit code."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable
from typing import TextIO

from privirec.errors import DataWarning, PrivirecError


def end_well(command: Callable[[], int | None]) -> None:
    """Run a command, and exit with its code.

    Exit codes: 0 done, 1 a check failed, 2 bad usage or input, 3 a federation that could not finish
    safely, 130 or 143 interrupted.
    """
    # Typer would handle Ctrl-C silently; this way it prints one line and exits with 130. SIGTERM,
    # as sent by a service manager, also raises an exception, so that clean-up code runs.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    warnings.showwarning = _show_warning
    try:
        code = command() or 0
    except PrivirecError as error:
        code = _say(str(error), error.exit_code)
    except _Interrupted as stop:
        code = _say("interrupted", 128 + stop.number)
    except MemoryError as error:
        code = _say(f"not enough memory ({str(error).rstrip('.') or 'none left'})", 2)
    except BrokenPipeError:
        # The reader has closed the pipe: print no error, even when buffers are flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        code = _say(f"{where}{error.strerror or error}", 2)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the process is ending anyway
    sys.exit(code)


class _Interrupted(BaseException):
    """SIGINT (Ctrl-C) or SIGTERM."""

    def __init__(self, number: int) -> None:
        self.number = number


def _interrupted(number: int, _frame: object) -> None:
    # During clean-up, ignore further signals. The first exception may have been lost where Python
    # discards exceptions (a destructor, a weakref callback); then the next signal raises again.
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, _Interrupted):
            return
        error = error.__context__
    raise _Interrupted(number)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a DataWarning as one line, and any other warning with its source location."""
    if issubclass(category, DataWarning):
        print(f"privirec: {message}", file=sys.stderr)
    else:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno))


def _say(line: str, code: int) -> int:
    print(f"privirec: {line}", file=sys.stderr)
    return code
