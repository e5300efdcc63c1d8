"""So, He, Yang, Li, Yu, Ali, Guler, Avestimehr: "LightSecAgg: a lightweight and versatile design
for secure aggregation in federated learning", MLSys 2022, with a check that all agree on the sum.

A client adds to its vector a mask of its own. It cuts the mask into coded pieces, one for every
client, of which T say nothing and any U give it back, and seals them end to end. When it is known
whose vectors have arrived, every client adds up the pieces of exactly these clients, and from any U
such answers the server computes the sum of their masks, in one step, whoever dropped out.

The paper's server tells everybody the same survivors. One that does not could subtract two answers
and solve for a single client's vector, so clients sign the survivors first and answer only for a
set that more of them have signed than can have signed another (docs/lightsecagg.md).
"""

from __future__ import annotations

from privirec.secagg.lightsecagg.client import LightClient
from privirec.secagg.lightsecagg.server import LightServer
from privirec.secagg.lightsecagg.shared import EXCHANGE
from privirec.secagg.lightsecagg.sizes import sum_bytes
from privirec.secagg.lightsecagg.state import LightState
from privirec.secagg.lightsecagg.thresholds import graph_parameters
from privirec.secagg.protocol import Guarantee, Protocol

LIGHTSECAGG = Protocol(
    EXCHANGE.name,
    EXCHANGE.code,
    Guarantee.CRYPTOGRAPHIC,
    EXCHANGE.schedule,
    graph_parameters,
    client=lambda number, *more: LightClient(EXCHANGE, LightState(number), *more),
    load_client=lambda dumped, *more: LightClient(
        EXCHANGE, LightState.load(dumped, EXCHANGE.code), *more
    ),
    server=lambda *more: LightServer(EXCHANGE, *more),
    sum_bytes=sum_bytes,
)
