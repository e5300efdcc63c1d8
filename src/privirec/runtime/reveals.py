"""Sentences on what a run reveals and promises, for every command that starts one."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from privirec.federated.programs import PROGRAMS, program_of
from privirec.federated.programs.protected import Protected
from privirec.federated.settings import MethodSettings
from privirec.secagg import Guarantee, protocol

IN_THE_CLEAR = (
    "Warning: without secure aggregation the server sees every client's contribution in the clear."
)
BLURRED = (
    "Warning: this is not secure aggregation: the server sees every client's contribution, "
    "blurred; docs/reference/correlated-noise.md says what that hides."
)


def server_sees(aggregator: str) -> str | None:
    """Return a warning if the server sees more than sums; it is shown before the run starts."""
    guarantee = protocol(aggregator).guarantee
    return {Guarantee.NONE: IN_THE_CLEAR, Guarantee.STATISTICAL: BLURRED}.get(guarantee)


def outlook(settings: MethodSettings, n_users: int, n_items: int) -> str | None:
    """Return a sentence on the accuracy to expect with this many people, for a noisy program."""
    program = program_of(settings, n_users, n_items)
    return program.outlook() if isinstance(program, Protected) else None


def gives_away(
    method: str, dataset: Sequence[str] | None = None, promised: str | None = None
) -> str | None:
    """Return a sentence on what a release reveals, for every command that makes one.

    `dataset` holds the words after `--dataset` on a command line that reads the same data.
    `promised` says what noise promises (`privacy.worth`), if it is known.
    """
    if method not in PROGRAMS:
        return None
    beginning = "Gives away" if PROGRAMS[method].protects else "Warning:"
    warning = f"{beginning} {PROGRAMS[method].gives_away}"
    if promised is not None:
        warning += f". {promised.removesuffix('.')}"
    if dataset is None:
        return f"{warning}; privirec audit --release {method} --dataset DATA shows it on any data"
    command = shlex.join(["privirec", "audit", "--release", method, "--dataset", *dataset])
    return f"{warning}; see for yourself: {command}"
