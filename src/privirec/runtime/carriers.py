"""The installed carriers, each behind one interface; other packages can add theirs.

HTTPS is the default. Carriers are found by entry points of the group `privirec.carriers`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privirec.errors import UsageError

if TYPE_CHECKING:
    from privirec.runtime.enrolment.folders import OperatorFolder
    from privirec.runtime.runs import Watch
    from privirec.runtime.spec import RunSpec

Say = Callable[[str], None]
"""Function that shows a line to the operator or to the owner of a client."""

HTTPS = "https"
DEFAULT_CARRIER = HTTPS
ENTRY_POINTS = "privirec.carriers"
"""Group of entry points by which installed packages, ours included, add carriers."""


@dataclass(frozen=True)
class Listening:
    """Addresses and limits of a server."""

    host: str
    port: int
    watched_port: int = 0
    """Port for health and metrics; 0 for none."""
    watched_host: str = "127.0.0.1"
    behind_proxy: bool = False
    """True if a reverse proxy on this machine terminates TLS and forwards the client's address."""
    largest_reply: int = 1 << 29
    """Largest reply of a client, in bytes."""


class InstalledCarrier(ABC):
    """A carrier as the commands use it; the messages of a run go through a `Carrier`."""

    name: str

    def check_installed(self) -> None:
        """Raise UsageError if a library that this carrier needs is missing."""
        return

    @abstractmethod
    def serve(
        self, home: OperatorFolder, listening: Listening, given: Sequence[str], say: Say
    ) -> None:
        """Serve approved clients until interrupted.

        `given` are the options of the command, which `serving.remember` records.
        """

    @abstractmethod
    def start_run(self, home: OperatorFolder, name: str, spec: RunSpec) -> None:
        """Start a run, or resume an unfinished one of the same name and settings."""

    @abstractmethod
    def follow_run(self, home: OperatorFolder, name: str, watch: Watch) -> dict[str, Any]:
        """Wait for the end of a run, and return the server's result record."""

    @abstractmethod
    def stay(self, folder: Path, address: str, say: Say) -> None:
        """Connect a client to its server and answer, until interrupted."""


@cache
def _found() -> dict[str, EntryPoint]:
    found = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    return {name: found[name] for name in sorted(found, key=lambda name: (name != HTTPS, name))}


def carrier_names() -> tuple[str, ...]:
    return tuple(_found())


def installed_carrier(name: str) -> InstalledCarrier:
    """Return the carrier with this name; raise UsageError if its libraries are missing."""
    if name not in _found():
        raise UsageError(f"unknown carrier {name!r}: choose from {', '.join(carrier_names())}")
    found: InstalledCarrier = _found()[name].load()
    found.check_installed()
    return found


def carrier_of(address: str) -> InstalledCarrier:
    """Return the carrier for a server's address: HTTPS, or Flower for an address without scheme."""
    return installed_carrier(HTTPS if address.startswith("https://") else "flower")
