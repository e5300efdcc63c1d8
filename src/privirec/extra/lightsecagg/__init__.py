"""LightSecAgg, with an additional check that all clients agree on the survivors.

So, He, Yang, Li, Yu, Ali, Guler, Avestimehr: "LightSecAgg: a lightweight and versatile design for
secure aggregation in federated learning", MLSys 2022.

A client adds a mask of its own to its vector. It encodes the mask into pieces, one for every
client, and seals them end to end. Any T pieces reveal nothing about the mask, and any U pieces
determine it. When the survivors are known, every client adds up the pieces of exactly these
clients. From any U such answers, the server computes the sum of their masks in one step, regardless
of who dropped out.

In the paper, the server tells all clients the same survivors. A server that does not could subtract
two answers and solve for a single client's vector. Therefore clients sign the survivors first, and
answer only for a set signed by more clients than could have signed any other set
(docs/reference/lightsecagg.md).
"""

from __future__ import annotations

from privirec.extra.lightsecagg.client import LightClient, LightState
from privirec.extra.lightsecagg.server import LightServer
from privirec.extra.lightsecagg.shared import EXCHANGE, sum_bytes
from privirec.extra.lightsecagg.thresholds import graph_parameters
from privirec.secagg.protocol import Guarantee, Protocol

LIGHTSECAGG = Protocol(
    EXCHANGE.name,
    EXCHANGE.code,
    Guarantee.CRYPTOGRAPHIC,
    EXCHANGE.schedule,
    graph_parameters,
    client=lambda number, *more: LightClient(EXCHANGE, LightState(number), *more),
    load_client=lambda dumped, *more: LightClient(
        EXCHANGE, LightState.load(dumped, EXCHANGE.label), *more
    ),
    server=lambda *more: LightServer(EXCHANGE, *more),
    sum_bytes=sum_bytes,
)
