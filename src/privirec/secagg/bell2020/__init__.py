"""Secure aggregation over a sparse graph by Bell et al. (`secagg+`), and `secagg`.

Bell, Bonawitz, Gascon, Lepoint, Raykova: "Secure single-server aggregation with (poly)logarithmic
overhead", CCS 2020. It is secure against a semi-honest server and, with one additional exchange and
larger parameters, against an active one. Bonawitz et al., CCS 2017, is the same protocol with the
complete graph.

A client adds to its vector a mask from a seed of its own. For every neighbour, it also adds or
subtracts a mask that both can compute: one of the two adds it and the other subtracts it. Both
secrets, the seed and the private key of the common masks, are shared among the neighbours. If the
client's vector arrives, the neighbours open the seed; if it does not, they open the key. No
neighbour opens both. Against an active server, a client opens nothing before all its neighbours in
the sum have signed the same list of survivors. All checks before `BellClient._open_shares` serve
this purpose.

Keys and shares are fresh for each sum, and one set-up deals them all. The clients in the first sum
are the cohort. Later sums must have the same clients, because the difference of two sums over two
cohorts is a sum over the few clients that left.
"""

from __future__ import annotations

from privirec.secagg.bell2020.client import BellClient, BellState
from privirec.secagg.bell2020.server import BellServer
from privirec.secagg.bell2020.shared import Scheme
from privirec.secagg.bell2020.sizes import sum_bytes
from privirec.secagg.parameters import complete_parameters, sparse_parameters
from privirec.secagg.protocol import Guarantee, Protocol


def protocol_of(
    scheme: Scheme,
    guarantee: Guarantee = Guarantee.CRYPTOGRAPHIC,
    client_type: type[BellClient] = BellClient,
    server_type: type[BellServer] = BellServer,
) -> Protocol:
    """Return the protocol of a scheme."""
    return Protocol(
        scheme.name,
        scheme.code,
        guarantee,
        scheme.schedule,
        scheme.parameters,
        client=lambda number, *more: client_type(scheme, BellState(number), *more),
        load_client=lambda dumped, *more: client_type(
            scheme, BellState.load(dumped, scheme.label), *more
        ),
        server=lambda *more: server_type(scheme, *more),
        sum_bytes=lambda *more: sum_bytes(scheme, *more),
        active_schedule=scheme.active_schedule,
    )


SECAGG_PLUS = protocol_of(Scheme.of("secagg+", 1, sparse_parameters))
SECAGG = protocol_of(Scheme.of("secagg", 2, complete_parameters, complete=True))
