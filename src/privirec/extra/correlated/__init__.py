"""Averaging with correlated noise.

Sabater, Bellet, Ramon, "An accurate, scalable and verifiable protocol for federated differentially
private averaging", Machine Learning 2022, and Allouah, Koloskova, El Firdoussi, Jaggi, Guerraoui,
"The privacy power of correlated noise in decentralized learning", ICML 2024.

Each pair of neighbours agrees on noise that one of them adds to its vector and the other subtracts.
Every client also adds a small amount of independent noise of its own. In the sum of all vectors,
the common noise cancels. There is no recovery: common noise with a client that drops out stays in
the sum.

The server sees every vector with noise. The protection of a client is statistical: differential
privacy against the server and the corrupt clients, with a parameter that `guarantee` computes from
the noise, the graph and the number of honest clients. It is not secure aggregation.
"""

from __future__ import annotations

from privirec.extra.correlated.client import CorrelatedClient, CorrelatedState
from privirec.extra.correlated.levels import NoiseLevels, NoiseRule, graph_degree, noisy_shape
from privirec.extra.correlated.server import CorrelatedServer
from privirec.extra.correlated.shared import CorrelatedExchange, sum_bytes
from privirec.secagg.parameters import Parameters, Statement
from privirec.secagg.protocol import Guarantee, Protocol
from privirec.secagg.ring import VectorShape


def protocol_of(rule: NoiseRule) -> Protocol:
    """Return the protocol with the noise levels of a rule."""
    exchange = CorrelatedExchange.of("correlated-noise", 5, rule)

    def opened_shape(shape: VectorShape, statement: Statement) -> VectorShape:
        levels = rule.levels(shape, statement)
        return noisy_shape(shape, statement, graph_degree(statement), levels)

    def deviation(shape: VectorShape, statement: Statement) -> float:
        clients, dropped = statement.clients, statement.dropped
        cut = dropped * graph_degree(statement)
        return rule.levels(shape, statement).residual_deviation(clients - dropped, cut)

    return Protocol(
        exchange.name,
        exchange.code,
        Guarantee.STATISTICAL,
        exchange.schedule,
        lambda statement: Parameters(graph_degree(statement), 0),
        client=lambda number, *more: CorrelatedClient(exchange, CorrelatedState(number), *more),
        load_client=lambda dumped, *more: CorrelatedClient(
            exchange, CorrelatedState.load(dumped, exchange.label), *more
        ),
        server=lambda *more: CorrelatedServer(exchange, *more),
        sum_bytes=lambda *more: sum_bytes(exchange, *more),
        opened_shape=opened_shape,
        deviation=deviation,
    )


CORRELATED_NOISE = protocol_of(NoiseRule())
