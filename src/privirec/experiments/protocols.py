"""Comparison of the aggregation protocols: guarantee, exchanges, and bytes of real messages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from privirec.errors import UsageError
from privirec.progress import QUIET, Phases
from privirec.runtime.spec import Assumptions
from privirec.secagg import (
    ClientPolicy,
    LocalFederation,
    ProtocolError,
    VectorShape,
    protocol,
    protocol_names,
)
from privirec.version import __version__


def protocol_rows(
    clients: int,
    entries: int,
    bits: int = 32,
    *,
    names: Sequence[str] = protocol_names(),
    assumptions: Assumptions | None = None,
    phases: Phases = QUIET,
) -> Iterator[dict[str, Any]]:
    """Yield a row for each protocol, from one sum with real cryptography in this process."""
    if clients < 3:
        raise UsageError("aggregation needs at least 3 clients")
    trust = assumptions or Assumptions()
    most = 2 ** (bits - 1) - 1
    shape = VectorShape(entries, bits, most, signed=True, bounds_sum=True)
    ones = np.ones(entries, np.int64)
    for name in names:
        phases(f"{name}: {clients} clients")(0, 1)
        scheme = protocol(name)
        row: dict[str, Any] = {
            "protocol": name,
            "guarantee": scheme.guarantee.name.lower(),
            "exchanges": ", ".join(scheme.schedule_for(trust.statement(clients, 1)).names),
            "clients": clients,
            "entries": entries,
            "bits": bits,
            "corrupt_share": trust.corrupt_share,
            "dropped_share": trust.drop_share,
            "server": trust.server_model.value,
        }
        started = time.process_time()
        try:
            federation = LocalFederation(
                name,
                clients,
                [shape],
                corrupt_share=trust.corrupt_share,
                dropped_share=trust.drop_share,
                server=trust.server_model,
                policy=ClientPolicy(
                    corrupt_share=trust.corrupt_share,
                    max_dropped_share=max(0.35, trust.drop_share),
                    proven_sums=True,
                ),
            )
            opened = federation.sum(lambda _client: [ones])
        except ProtocolError as error:
            yield row | {"refused": str(error), "version": __version__}
            continue
        traffic = federation.traffic
        error_now = np.abs(opened.values().astype(np.int64) - clients)
        yield row | {
            "bytes_up_per_client": float(traffic.up_per_client().mean()),
            "bytes_down_per_client": float(traffic.down_per_client().mean()),
            "payload_bytes": shape.ring.packed_bytes(entries),
            "bytes_by_step": {
                step: [up, down] for step, (up, down) in traffic.mean_by_step().items()
            },
            "largest_error": int(error_now.max()),
            "cpu_seconds": time.process_time() - started,
            "version": __version__,
        }
