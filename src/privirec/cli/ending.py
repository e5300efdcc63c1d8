"""How a command ends: one line for what goes wrong, and an exit code."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable
from typing import TextIO

from privirec.errors import DataWarning, PrivirecError


def end_well(command: Callable[[], int | None]) -> None:
    """Run a command. Exit codes: 0 done, 1 a check failed, 2 bad usage or input, 3 a federation
    that could not finish safely, 130 or 143 interrupted."""
    # Typer would answer Ctrl-C itself, and in silence; this way it is one line and 130. Who is
    # ended by a service manager puts things away as well.
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
        # Whoever read has gone; say nothing, not even at exit when buffers are flushed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        code = _say(f"{where}{error.strerror or error}", 2)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends anyway
    sys.exit(code)


class _Interrupted(BaseException):
    """Ctrl-C, or a polite kill."""

    def __init__(self, number: int) -> None:
        self.number = number


def _interrupted(number: int, _frame: object) -> None:
    # While things are put away, one is enough. It may also have been lost, where Python throws
    # exceptions away (a destructor, a callback of a weak reference): then the next one counts.
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
    """What somebody should know of data is one line; anything else says where it comes from."""
    if issubclass(category, DataWarning):
        print(f"privirec: {message}", file=sys.stderr)
    else:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno))


def _say(line: str, code: int) -> int:
    print(f"privirec: {line}", file=sys.stderr)
    return code
