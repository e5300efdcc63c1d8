"""Where a server listens, and whether what it needs is installed."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from privirec.errors import UsageError

SERVER_NEEDS = ("uvicorn", "starlette", "prometheus_client")
CLIENT_NEEDS = ("httpx",)


def check_installed(needed: tuple[str, ...] = SERVER_NEEDS) -> None:
    """Refuse, in one line, where the libraries of this carrier are not installed."""
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"this needs {', '.join(missing)}: pip install {' '.join(missing)}")


@dataclass(frozen=True)
class Listening:
    """Where to listen, and for whom."""

    host: str
    port: int
    watched_port: int
    """For health and metrics; 0 for none."""
    watched_host: str = "127.0.0.1"
    behind_proxy: bool = False
    """A reverse proxy on this machine does TLS, and says from where a request comes."""
