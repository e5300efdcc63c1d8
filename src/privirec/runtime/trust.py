"""TLS context that trusts only the federation's CA."""

from __future__ import annotations

import ssl
from pathlib import Path

from privirec.errors import UsageError


def trusting(certificate: Path) -> ssl.SSLContext:
    """Return a TLS client context that trusts only the CA in `certificate`."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(certificate)
    except (ssl.SSLError, OSError):
        raise UsageError(f"{certificate}: not a certificate to know the server by") from None
    return context
