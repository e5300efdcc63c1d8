"""The server: relays keys and adds noisy vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from privirec.extra.correlated.levels import graph_degree, noisy_shape, upload_shape
from privirec.extra.correlated.messages import NoisyAdvertise, NoisyAnnounce, NoisyNeighbours
from privirec.extra.correlated.shared import CorrelatedExchange, check_key, public_graph
from privirec.secagg.errors import OutOfOrder
from privirec.secagg.keys import RandomBytes, Roster
from privirec.secagg.messages import Announce, ProtocolMessage, encode
from privirec.secagg.parameters import Parameters, Statement
from privirec.secagg.participants import write_participants
from privirec.secagg.protocol import ServerSession, ServerSettings, Step
from privirec.secagg.ring import VectorShape, Words
from privirec.secagg.server_base import BaseServer
from privirec.secagg.uploads import ChangeBlock


class CorrelatedServer(BaseServer):
    """A server that sees every vector with noise, and their sum with little noise."""

    exchange: CorrelatedExchange
    terms: NoisyAnnounce

    def __init__(
        self,
        exchange: CorrelatedExchange,
        roster: Roster,
        statement: Statement,
        shapes: Sequence[VectorShape],
        settings: ServerSettings,
        random_bytes: RandomBytes,
    ) -> None:
        super().__init__(exchange, roster, statement, shapes, settings, random_bytes)
        self._advertised: dict[int, NoisyAdvertise] = {}
        self._map = b""
        self._neighbours: NDArray[np.int64] = np.empty((0, 0), np.int64)
        for number in range(1, len(shapes) + 1):  # raise early if a sum fits into no ring
            self._opened_shape(number)

    @property
    def parameters(self) -> Parameters:
        return Parameters(self._neighbours.shape[1], 0)

    def announced(self, terms: Announce) -> NoisyAnnounce:
        statement, rule = terms.statement, self.exchange.rule
        noise = tuple(rule.levels(shape, statement) for shape in terms.shapes)
        return NoisyAnnounce.adding(terms, graph_degree(statement), noise)

    def wire_shape(self, sum_number: int) -> VectorShape:
        terms = self.terms
        shape, levels = self.shape(sum_number), terms.noise[sum_number - 1]
        return upload_shape(shape, terms.statement, terms.neighbours, levels)

    def messages(self, step: Step) -> Iterator[tuple[int, bytes]]:
        if step.sum_number == 1:
            return self._neighbour_messages()
        return ((client, b"") for client in sorted(self.active))

    def take_answer(self, message: ProtocolMessage) -> None:
        if not isinstance(message, NoisyAdvertise):
            raise OutOfOrder(f"{type(message).__name__} is not for the server")
        check_key(message, self.digest, self.roster)
        self._advertised[message.client] = message

    def step_over(self, step: Step) -> None:
        self._map = write_participants(self.participants, self.roster)
        size = len(self.participants)
        graph = public_graph(self.digest, self._map, size, self.terms.neighbours)
        self._neighbours = graph.all_neighbours()

    def masks_to_remove(self, sum_number: int) -> ChangeBlock:
        """Return a function that does nothing; noise that does not cancel stays in the sum."""
        return lambda _offset, _block: None

    def sum_over(self) -> None:
        """Do nothing; the server keeps no data of a sum."""

    def open_blocks(self) -> Iterator[Words]:
        number = self.step.sum_number if self.step else 0
        return (self.in_announced_units(number, block) for block in super().open_blocks())

    def open_sum(self) -> Words:
        return ServerSession.open_sum(self)

    @property
    def deviation(self) -> float:
        opened = self.step.sum_number - 1 if self.step else len(self.terms.shapes)
        if not self.survivors or not opened:
            return 0.0
        inside = np.isin(self.participants, self.survivors)
        cut = int((~inside[self._neighbours[inside]]).sum())
        return self.terms.noise[opened - 1].residual_deviation(int(inside.sum()), cut)

    def _opened_shape(self, sum_number: int) -> VectorShape:
        terms = self.terms
        shape, levels = terms.shapes[sum_number - 1], terms.noise[sum_number - 1]
        return noisy_shape(shape, terms.statement, terms.neighbours, levels)

    def in_announced_units(self, sum_number: int, block: Words) -> Words:
        """Convert a block of the total to words of the opened shape's ring."""
        unit = self.terms.noise[sum_number - 1].unit
        values = self.wire_shape(sum_number).ring.decode_signed(block)
        if unit < 0:
            values += 1 << (-unit - 1)
            values >>= -unit
        else:
            values <<= unit
        ring = self._opened_shape(sum_number).ring
        return ring.reduce(values.astype(ring.dtype))

    def _neighbour_messages(self) -> Iterator[tuple[int, bytes]]:
        ids = np.array(self.participants)
        for place, client in enumerate(self.participants):
            peers = ids[self._neighbours[place]].tolist()
            listed = tuple(self._advertised[peer] for peer in peers)
            yield client, encode(NoisyNeighbours(self.terms.run, client, self._map, listed))
