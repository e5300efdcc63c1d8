"""`privirec doctor`: the environment, for a bug report."""

from __future__ import annotations

from privirec.app.cli import options
from privirec.app.doctor import facts
from privirec.rows import say, write_json_lines


def command(json_file: options.Json = None) -> None:
    """Print versions, threads, BLAS, AES support, free memory and the data sets found."""
    found = facts()
    write_json_lines(json_file, [found])
    width = max(map(len, found))
    for name, value in found.items():
        say(f"{name:<{width}}  {value}")
