"""Bell, Bonawitz, Gascon, Lepoint, Raykova: "Secure single-server aggregation with
(poly)logarithmic overhead", CCS 2020, for a server and clients that keep to the protocol.

Bonawitz et al., CCS 2017, is the same with the complete graph.

A client adds to its vector a mask from a seed of its own, and for every neighbour a mask they both
can compute, which one adds and the other subtracts. Both secrets, the seed and the key behind the
common masks, are shared among the neighbours. For a client whose vector arrived the neighbours
open the seed, for one whose vector did not they open the key. No neighbour opens both: that is what
every check in `BellClient._unmask` is for.

Keys and shares are fresh for each round and are all dealt in one set-up. The clients summed in the
first round are the cohort; later rounds must have the same, because the difference of two sums
over two cohorts is a sum over the few who left.
"""

from __future__ import annotations

from collections.abc import Sequence

from privirec.secagg.bell2020.client import BellClient
from privirec.secagg.bell2020.server import BellServer
from privirec.secagg.bell2020.shared import Scheme
from privirec.secagg.bell2020.state import ClientState
from privirec.secagg.keys import Identity, Roster
from privirec.secagg.parameters import Statement, complete_parameters, sparse_parameters
from privirec.secagg.protocol import ClientPolicy, Protocol, ServerSettings
from privirec.secagg.randomness import RandomBytes
from privirec.secagg.ring import VectorShape


def protocol_of(
    scheme: Scheme,
    client_type: type[BellClient] = BellClient,
    server_type: type[BellServer] = BellServer,
) -> Protocol:
    """A scheme with all it takes to run it."""

    def session(
        state: ClientState,
        identity: Identity,
        roster: Roster,
        policy: ClientPolicy,
        random_bytes: RandomBytes,
    ) -> BellClient:
        return client_type(
            scheme,
            state,
            identity=identity,
            roster=roster,
            policy=policy,
            random_bytes=random_bytes,
        )

    def server(
        roster: Roster,
        statement: Statement,
        shapes: Sequence[VectorShape],
        settings: ServerSettings,
        random_bytes: RandomBytes,
    ) -> BellServer:
        return server_type(
            scheme,
            roster=roster,
            statement=statement,
            shapes=shapes,
            settings=settings,
            random_bytes=random_bytes,
        )

    return Protocol(
        scheme.name,
        scheme.code,
        scheme.parameters,
        client=lambda number, *more: session(ClientState(number), *more),
        load_client=lambda dumped, *more: session(ClientState.load(dumped, scheme.code), *more),
        server=server,
    )


SECAGG_PLUS = protocol_of(Scheme("secagg+", 1, sparse_parameters, complete=False))
SECAGG = protocol_of(Scheme("secagg", 2, complete_parameters, complete=True))
