"""The installed protocols by name: our own three, and those of other packages."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from privirec.errors import UsageError
from privirec.secagg.protocol import Protocol

_OWN = {
    "secagg+": ("privirec.secagg.bell2020", "SECAGG_PLUS"),
    "secagg": ("privirec.secagg.bell2020", "SECAGG"),
    "none": ("privirec.secagg.plain", "NONE"),
}
ENTRY_POINTS = "privirec.protocols"
"""Group of entry points by which installed packages add protocols."""


@cache
def _added() -> dict[str, EntryPoint]:
    found = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    return {name: found[name] for name in sorted(found) if name not in _OWN}


TWO_SERVERS = "two-server"
"""Aggregator in which each client sends one sealed message per sum; see `secagg.two_server`."""


def protocol_names() -> tuple[str, ...]:
    """Return the names of protocols in which clients exchange messages with one server."""
    return (*_OWN, *_added())


def aggregator_names() -> tuple[str, ...]:
    """Return all ways to sum: the protocols, and two servers."""
    return (*protocol_names(), TWO_SERVERS)


def protocol(name: str) -> Protocol:
    """Return the protocol with this name."""
    found: Protocol
    if name in _OWN:
        module, attribute = _OWN[name]
        found = getattr(import_module(module), attribute)
    elif name in _added():
        found = _added()[name].load()
    elif name == TWO_SERVERS:
        raise UsageError(f"{name} works only with privirec run, on one machine")
    else:
        raise UsageError(
            f"unknown aggregation protocol {name!r}: choose from {', '.join(protocol_names())}"
        )
    return found
