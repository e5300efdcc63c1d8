"""Addresses that a server listens on, and a check for the libraries that it needs."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from privirec.errors import UsageError

SERVER_NEEDS = ("uvicorn", "starlette", "prometheus_client")
CLIENT_NEEDS = ("httpx",)


def check_installed(needed: tuple[str, ...] = SERVER_NEEDS) -> None:
    """Raise UsageError if libraries of this carrier are not installed."""
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"this needs {', '.join(missing)}: pip install {' '.join(missing)}")


@dataclass(frozen=True)
class Listening:
    """Addresses of the listener for clients and of the one for monitoring."""

    host: str
    port: int
    watched_port: int
    """Port for health and metrics; 0 for none."""
    watched_host: str = "127.0.0.1"
    behind_proxy: bool = False
    """True if a reverse proxy on this machine terminates TLS and forwards the client's address."""
