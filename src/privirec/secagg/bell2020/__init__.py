"""Bell, Bonawitz, Gascon, Lepoint, Raykova: "Secure single-server aggregation with
(poly)logarithmic overhead", CCS 2020, for a server that keeps to the protocol and, with one
exchange more and larger parameters, for one that does not.

Bonawitz et al., CCS 2017, is the same with the complete graph.

A client adds to its vector a mask from a seed of its own, and for every neighbour a mask they both
can compute, which one adds and the other subtracts. Both secrets, the seed and the key behind the
common masks, are shared among the neighbours. For a client whose vector arrived the neighbours
open the seed, for one whose vector did not they open the key. No neighbour opens both, and against
an active server none opens anything before all its neighbours in the sum have signed the same list
of those who are in it: that is what every check before `BellClient._open_shares` is for.

Keys and shares are fresh for each sum and are all dealt in one set-up. The clients in the first sum
are the cohort; later sums must have the same, because the difference of two sums over two cohorts
is a sum over the few who left.
"""

from __future__ import annotations

from privirec.secagg.bell2020.client import BellClient
from privirec.secagg.bell2020.server import BellServer
from privirec.secagg.bell2020.shared import Scheme
from privirec.secagg.bell2020.sizes import sum_bytes
from privirec.secagg.bell2020.state import BellState
from privirec.secagg.parameters import complete_parameters, sparse_parameters
from privirec.secagg.protocol import Guarantee, Protocol


def protocol_of(
    scheme: Scheme,
    guarantee: Guarantee = Guarantee.CRYPTOGRAPHIC,
    client_type: type[BellClient] = BellClient,
    server_type: type[BellServer] = BellServer,
) -> Protocol:
    """A scheme with all it takes to run it."""
    return Protocol(
        scheme.name,
        scheme.code,
        guarantee,
        scheme.schedule,
        scheme.parameters,
        client=lambda number, *more: client_type(scheme, BellState(number), *more),
        load_client=lambda dumped, *more: client_type(
            scheme, BellState.load(dumped, scheme.code), *more
        ),
        server=lambda *more: server_type(scheme, *more),
        sum_bytes=lambda *more: sum_bytes(scheme, *more),
        active_schedule=scheme.active_schedule,
    )


SECAGG_PLUS = protocol_of(Scheme.of("secagg+", 1, sparse_parameters))
SECAGG = protocol_of(Scheme.of("secagg", 2, complete_parameters, complete=True))
