"""The client: checks before it sends its vector, and the noise that it adds."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privirec.extra.correlated.levels import NoiseLevels, check_others, sum_range, upload_shape
from privirec.extra.correlated.messages import NoisyAdvertise, NoisyAnnounce, NoisyNeighbours
from privirec.extra.correlated.shared import CorrelatedExchange, check_key, public_graph
from privirec.federated.dp.sampler import GaussianNoise, NoiseGenerator
from privirec.secagg import keys
from privirec.secagg.client_base import BaseClient
from privirec.secagg.errors import (
    CohortChanged,
    MalformedMessage,
    OutOfOrder,
    WeakParameters,
)
from privirec.secagg.graph import check_neighbourhood
from privirec.secagg.keys import KEY_BYTES, NOTHING_ASKED, Secret
from privirec.secagg.messages import ProtocolMessage, encode
from privirec.secagg.parameters import PPM, is_connected
from privirec.secagg.participants import accepted_participants
from privirec.secagg.prg import SEED_BYTES
from privirec.secagg.ring import VectorShape, Words
from privirec.secagg.stored import StoredState
from privirec.secagg.uploads import ChangeBlock


@dataclass(slots=True)
class CorrelatedState(StoredState):
    """State of one client. The seeds of a sum are wiped when its contribution begins."""

    peers: array[int] = field(default_factory=lambda: array("I"))
    """Neighbours, ascending."""
    private_key: Secret = field(default_factory=lambda: Secret(b""))
    own_seeds: Secret = field(default_factory=lambda: Secret(b""))
    """Seeds of own noise, one per sum."""
    pair_secrets: Secret = field(default_factory=lambda: Secret(b""))
    """Secrets common with each peer, ordered by sum, then by peer.

    The seeds of common noise are derived from them and the digest of what the sum asks for.
    """


# Index in `told` after the last message; from then on, a client only sends.
_TOLD_ALL = 2


class CorrelatedClient(BaseClient[CorrelatedState]):
    """A client that adds noise to its vector.

    docs/reference/correlated-noise.md states what this hides.
    """

    exchange: CorrelatedExchange
    _own_seed: bytes = b""
    """Seed of own noise, from the start of a contribution until its first block is made."""

    @property
    def ready(self) -> bool:
        return self.state.stage == _TOLD_ALL

    def wire_shape(self, sum_number: int, length: int | None = None) -> VectorShape:
        terms = self._terms
        shape, levels = self.shape(sum_number, length), terms.noise[sum_number - 1]
        return upload_shape(shape, terms.statement, terms.neighbours, levels)

    def check_summed(self, clients: frozenset[int]) -> None:
        if self.state.sum_number == 1:
            raise OutOfOrder("no vector was sent yet")
        participants, terms = self.participants, self._terms
        allowed = terms.statement.with_clients(len(participants)).dropped
        least = max(self.policy.min_cohort, terms.min_cohort, len(participants) - allowed)
        if self.client not in clients or not clients <= participants or len(clients) < least:
            raise CohortChanged("the list of clients in the sum does not fit those who take part")

    # --- set-up -----------------------------------------------------------------------------------

    @property
    def _terms(self) -> NoisyAnnounce:
        terms = self.announcement.terms
        if not isinstance(terms, NoisyAnnounce):
            raise MalformedMessage("an announcement that says nothing of noise")
        return terms

    def join(self) -> bytes:
        """Return a fresh signed key, after a check of the announced noise."""
        terms = self._terms
        self._checked_degree(terms.statement.clients)
        for number, levels in enumerate(terms.noise, start=1):
            self._check_noise(number, levels)
        state = self.state
        private = self.random(KEY_BYTES)
        state.private_key = Secret(private)
        state.own_seeds = Secret(self.random(SEED_BYTES * terms.statement.rounds))
        public = keys.public_key(private)
        signed = keys.advertised_bytes(self.announcement.digest, self.client, public, b"")
        return encode(NoisyAdvertise(terms.run, self.client, public, self.identity.sign(signed)))

    def _check_noise(self, number: int, levels: NoiseLevels) -> None:
        """Raise WeakParameters if the noise is less than the policy requires or too coarse."""
        terms, policy = self._terms, self.policy
        if not levels.is_smooth(terms.neighbours):
            raise WeakParameters(f"the integers of sum {number} are too coarse for its noise")
        shape = terms.shapes[number - 1]
        largest = sum_range(shape, terms.statement)
        share = levels.own * sqrt(terms.statement.clients) / largest
        if share < policy.own_noise:
            raise WeakParameters(
                f"own noise leaves a deviation of {share:.2g} of the range in sum {number}, where "
                f"this client asks for {policy.own_noise:.2g}"
            )
        if levels.pair < policy.pair_noise * levels.own:
            raise WeakParameters(
                f"noise between two clients of {levels.pair / levels.own:.3g} times a client's own "
                f"in sum {number}, where this client asks for {policy.pair_noise:.3g}"
            )
        self.wire_shape(number)  # raise RingTooNarrow if the sum fits into no ring
        # The checks above bound any rule. This one enforces the rule that both sides know.
        asked = self.exchange.rule.levels(shape, terms.statement)
        if levels.own < asked.own or levels.pair < asked.pair:
            raise WeakParameters(
                f"noise of {levels.own:.3g} and {levels.pair:.3g} between two clients in sum "
                f"{number}, where the rule gives {asked.own:.3g} and {asked.pair:.3g}"
            )

    def answer(self, message: ProtocolMessage, raw: bytes) -> bytes | None:
        if not isinstance(message, NoisyNeighbours):
            raise OutOfOrder(f"{type(message).__name__} is not for a client")
        state, terms = self.state, self._terms
        participants = accepted_participants(
            message.participants, self.client, terms, self.roster, self.policy
        )
        listed = [key.client for key in message.keys]
        degree = self._checked_degree(len(participants))
        graph = public_graph(
            self.announcement.digest, message.participants, len(participants), degree
        )
        place = int(np.searchsorted(participants, self.client))
        expected = participants[graph.neighbours(place)].tolist()
        check_neighbourhood(self.client, listed, degree, expected)
        for key in message.keys:
            check_key(key, self.announcement.digest, self.roster)
        state.pair_secrets = self._pair_secrets(message.keys)
        state.private_key.wipe()
        state.peers = array("I", listed)
        state.participants = message.participants
        state.stage = _TOLD_ALL
        return None

    def _checked_degree(self, size: int) -> int:
        """Return the degree for `size` clients, if it keeps the honest ones connected."""
        terms, policy = self._terms, self.policy
        asked = terms.statement.with_clients(size)
        asked = replace(
            asked,
            corrupt_ppm=max(asked.corrupt_ppm, round(policy.corrupt_share * PPM)),
            dropped_ppm=max(asked.dropped_ppm, round(policy.dropped_share * PPM)),
            security_bits=max(asked.security_bits, policy.security_bits),
        )
        check_others(asked)
        degree = min(terms.neighbours, size - 1)
        if degree < 1 or (degree % 2 and degree < size - 1) or not is_connected(asked, degree):
            raise WeakParameters(
                f"{degree} neighbours of {size} clients: too few to keep the honest ones together"
            )
        return degree

    def _pair_secrets(self, peer_keys: tuple[NoisyAdvertise, ...]) -> Secret:
        """Return the secrets with each peer for all sums, from which common noise is derived."""
        private, terms = self.state.private_key.reveal(), self._terms
        label = self.exchange.label
        agreed = list(keys.agree(private, (key.noise_key for key in peer_keys)))
        seeds = bytearray()
        for number in range(1, terms.statement.rounds + 1):
            for secret, key in zip(agreed, peer_keys, strict=True):
                pair = self._pair(key.client)
                seeds += keys.derive(label, secret, b"pair", terms.run, number, pair)
        return Secret(seeds)

    def _pair(self, peer: int) -> tuple[int, int]:
        return min(self.client, peer), max(self.client, peer)

    # --- sums -------------------------------------------------------------------------------------

    def contribute(
        self,
        sum_number: int,
        blocks: Iterable[NDArray[Any]],
        asked: bytes = NOTHING_ASKED,
        length: int | None = None,
    ) -> Iterator[bytes]:
        return super().contribute(sum_number, self._blurred(sum_number, blocks), asked, length)

    def masks(self, sum_number: int, asked: bytes) -> ChangeBlock:
        """Return a function that adds the common noise; use up and wipe all seeds of the sum."""
        state = self.state
        size = SEED_BYTES * len(state.peers)
        secrets = state.pair_secrets.reveal(size * (sum_number - 1), size * sum_number)
        state.pair_secrets.wipe(size * sum_number)
        self._own_seed = state.own_seeds.reveal(
            SEED_BYTES * (sum_number - 1), SEED_BYTES * sum_number
        )
        state.own_seeds.wipe(SEED_BYTES * sum_number)
        run, label = self._terms.run, self.exchange.label
        add: list[bytes] = []
        subtract: list[bytes] = []
        for number, peer in enumerate(state.peers):
            secret = secrets[SEED_BYTES * number : SEED_BYTES * (number + 1)]
            pair = self._pair(peer)
            seed = keys.derive(label, secret, b"asks", run, sum_number, pair, asked)
            (add if self.client < peer else subtract).append(seed)
        levels = self._terms.noise[sum_number - 1]
        generator = NoiseGenerator(GaussianNoise(1 << levels.pair_bits))

        def hide(offset: int, block: Words) -> None:
            generator.add(block, offset, add)
            generator.subtract(block, offset, subtract)

        return hide

    def _blurred(
        self, sum_number: int, blocks: Iterable[NDArray[Any]]
    ) -> Iterator[NDArray[np.int64]]:
        """Yield the blocks in upload units, with this client's own noise.

        If upload units are coarser than announced units, noise is added before rounding. The
        rounding then favours neither direction and does not increase the distance between two
        vectors.
        """
        shape, levels = self._terms.shapes[sum_number - 1], self._terms.noise[sum_number - 1]
        finer, coarser = max(0, -levels.unit), max(0, levels.unit)
        generator = NoiseGenerator(GaussianNoise(1 << levels.own_bits + coarser))
        seed, self._own_seed = self._own_seed, b""
        offset = 0
        for values in blocks:
            shape.ring.encode(values, shape.bound, shape.signed)  # raises if not as announced
            block = values.astype(np.int64) << finer
            generator.add(block, offset, [seed])
            if coarser:
                block += 1 << (coarser - 1)
                block >>= coarser
            offset += len(block)
            yield block

    def input_complete(self) -> None:
        """Finish the sum, because no message follows the vector."""
        self.finish_sum()
