"""Estimates of CPU seconds of a client and of the server, from timings of the actual kernels.

Each kernel is timed on this machine, on one thread for a fraction of a second, when a plan first
needs it. The estimate counts the work that grows with vectors, neighbours and columns: making and
checking a contribution, masks, packing, keys and shares, and the linear algebra of the server. A
phone is several times slower than the machine that plans.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle, pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from privirec.app.planner.methods import PlannedMethod
from privirec.federated.contributions import (
    Histories,
    PlannedSum,
    PowerStep,
    RowReach,
    ScaledStep,
    answer,
)
from privirec.federated.contributions.scaled_step import CoarseBlock
from privirec.federated.programs import Protected, SpectralProgram
from privirec.federated.programs.power import PowerProgram
from privirec.federated.randomness import NO_RANDOMNESS, ClientRandomness
from privirec.filters.eigen import orthonormalize
from privirec.runtime.spec import Assumptions
from privirec.secagg import Identity, Parameters, Ring, keys, protocol
from privirec.secagg.prg import SEED_BYTES, MaskGenerator
from privirec.secagg.shamir import combine, split
from privirec.threads import limit

LEAST_SECONDS = 0.02
"""CPU seconds for which a kernel is timed, after a first call that compiles it."""
SAMPLE_ENTRIES = 1 << 16
MOST_ITEMS = 1000
"""Longest history for which a contribution is timed."""
MOST_HOLDERS = 100
"""Most holders of shares in a timed sample; times for more are extrapolated from their work."""
OTHER_HOLDERS = 1000
"""Sets of holders in timed reconstructions, one after the other: clients have different holders.

They are more than the sets whose weights `combine` caches, so that cached weights are never timed.
"""


@dataclass(frozen=True)
class Work:
    """CPU seconds of a client, and of the server."""

    client: float
    server: float


def work_of(candidate: PlannedMethod, aggregator: str, assumptions: Assumptions) -> Work:
    """Return the CPU seconds of a run for each client, and for the server, without ranking."""
    users, sums = candidate.population.users, candidate.sums
    with limit(1):
        own, summed = _own_work(candidate), _linear_algebra(candidate)
        client = server = 0.0
        for planned in sums:
            length, ring = planned.shape.length, Ring(planned.shape.ring_bits)
            client += length * pack_seconds(ring.width)
            server += users * length * unpack_seconds(ring.width)
        if aggregator != "none":
            statement = assumptions.statement(users, len(sums))
            graph = protocol(aggregator).parameters(statement)
            client += _hiding(sums, graph)
            server += users * _opening(sums, graph)
        return Work(own + client, summed + server)


def _own_work(candidate: PlannedMethod) -> float:
    """Return a client's CPU seconds for its contributions, their noise, and checks of blocks."""
    items, sums = candidate.population.items, candidate.sums
    entries = sum(planned.shape.length for planned in sums)
    if isinstance(candidate.program, Protected):
        return entries * noise_seconds(sums[0])
    total = entries * entry_seconds(min(candidate.population.history, MOST_ITEMS))
    for planned, following in pairwise([*sums, sums[-1]]):
        if planned.kind in (RowReach, ScaledStep, PowerStep):
            stepped = following if planned.kind is RowReach else planned
            columns = stepped.shape.length // items
            total += 2 * items * columns**2 * flop_seconds()
    return total


def _hiding(sums: list[PlannedSum], graph: Parameters) -> float:
    """Return a client's CPU seconds for secure aggregation.

    They cover the masks shared with all neighbours and its own mask, keys and shares for all sums,
    and two signatures of each neighbour.
    """
    masks = sum(planned.shape.length * Ring(planned.shape.ring_bits).word_bytes for planned in sums)
    total = (graph.neighbours + 1) * masks * mask_seconds()
    total += graph.neighbours * (len(sums) + 2) * agreement_seconds()
    total += graph.neighbours * 2 * signature_seconds()
    return total + 2 * len(sums) * split_seconds(graph)


def _opening(sums: list[PlannedSum], graph: Parameters) -> float:
    """Return the server's CPU seconds per client for opening the sums.

    The server checks the client's keys, reconstructs its seeds and removes its own masks.
    """
    masks = sum(planned.shape.length * Ring(planned.shape.ring_bits).word_bytes for planned in sums)
    return (
        signature_seconds() + masks * mask_seconds() + len(sums) * combine_seconds(graph.threshold)
    )


def _linear_algebra(candidate: PlannedMethod) -> float:
    """Return the server's CPU seconds for the program's and the model's linear algebra."""
    items, program = candidate.population.items, candidate.program
    if isinstance(program, SpectralProgram):
        columns = sum(program.columns)
        # Each block is orthogonalised twice against all previous ones. One eigenproblem follows.
        flops = 4 * items * columns**2 + 6 * items * columns**2 + 10 * columns**3
    elif isinstance(program, PowerProgram):
        rank = program.settings.rank
        flops = program.settings.rounds * 4 * items * rank**2
    elif isinstance(program, Protected):
        head = program.way.head
        columns = getattr(program.way, "columns", head)
        flops = 3 * 6 * head * columns**2 + 10 * columns**3
    else:
        head = candidate.spec.given().get("head", items)
        flops = 2 * min(head, items) ** 3
    return flops * flop_seconds()


# --- kernels, each timed once ---------------------------------------------------------------------


def timed(action: Callable[[], Any]) -> float:
    """Return the CPU seconds of one call."""
    action()
    calls, started = 0, time.process_time()
    while (spent := time.process_time() - started) < LEAST_SECONDS:
        action()
        calls += 1
    return spent / calls


@cache
def mask_seconds() -> float:
    """Return the CPU seconds to generate and add one byte of a mask."""
    block = np.zeros(SAMPLE_ENTRIES, np.uint32)
    generator, seeds = MaskGenerator(), [bytes(SEED_BYTES)] * 4
    return timed(lambda: generator.add(block, 0, seeds)) / (4 * block.nbytes)


@cache
def pack_seconds(width: int) -> float:
    """Return the CPU seconds to pack one entry."""
    ring = Ring(width)
    words = np.zeros(SAMPLE_ENTRIES, ring.dtype)
    return timed(lambda: ring.pack(words)) / SAMPLE_ENTRIES


@cache
def unpack_seconds(width: int) -> float:
    """Return the CPU seconds to unpack one entry and add it to a total."""
    ring = Ring(width)
    packed = ring.pack(np.zeros(SAMPLE_ENTRIES, ring.dtype))
    total = np.zeros(SAMPLE_ENTRIES, ring.dtype)

    def add() -> None:
        np.add(total, ring.unpack(packed, SAMPLE_ENTRIES), out=total)

    return timed(add) / SAMPLE_ENTRIES


@cache
def agreement_seconds() -> float:
    """Return the CPU seconds of one key agreement, including the mask seed derived from it."""
    private, public = os.urandom(32), keys.public_key(os.urandom(32))

    def agree() -> None:
        for agreed in keys.agree(private, [public]):
            keys.mask_seed(keys.LABEL, agreed, bytes(16), 1, 0, 1)

    return timed(agree)


@cache
def signature_seconds() -> float:
    """Return the CPU seconds to verify one signature."""
    identity = Identity.generate(os.urandom)
    message = bytes(200)
    signature = identity.sign(message)
    return timed(lambda: keys.verify(identity.public, signature, message, 0))


@cache
def split_seconds(graph: Parameters) -> float:
    """Return the CPU seconds to split one secret among all neighbours.

    Several secrets are split at once, as for a few sums. Each neighbour's share takes as many steps
    as the threshold, so the time of a sample is scaled by neighbours times threshold.
    """
    holders = min(graph.neighbours, MOST_HOLDERS)
    threshold = max(1, graph.threshold * holders // graph.neighbours)
    secrets = [bytes(32)] * 8
    once = timed(lambda: split(secrets, holders, threshold, os.urandom)) / len(secrets)
    return once * (graph.neighbours * graph.threshold) / (holders * threshold)


@cache
def combine_seconds(threshold: int) -> float:
    """Return the CPU seconds to reconstruct one secret from `threshold` shares.

    The time grows with the square of the threshold, because each pair of shares enters the weights.
    """
    few = min(threshold, MOST_HOLDERS)
    dealt = list(enumerate(split([bytes(32)], OTHER_HOLDERS + few, few, os.urandom), 1))
    starts = cycle(range(OTHER_HOLDERS))

    def combined() -> None:
        first = next(starts)
        combine(dealt[first : first + few])

    return timed(combined) * (threshold / few) ** 2


@cache
def flop_seconds() -> float:
    """Return the CPU seconds of one addition or multiplication in a matrix product."""
    matrix = np.ones((400, 400))
    return timed(lambda: matrix @ matrix) / (2 * 400**3)


@cache
def entry_seconds(history: int) -> float:
    """Return the CPU seconds per entry of a contribution by a person with `history` items."""
    items, columns = max(2 * history, 1000), 32
    x = orthonormalize(np.random.default_rng(0).standard_normal((items, columns)))[0]
    degrees = np.full(items, 10)
    block = CoarseBlock.of(x, degrees, 4)
    ask = ScaledStep.of(block, degrees, np.full(items, 1 << 20), 16, fine_rows=0)
    return _answered(ask, history) / ask.length


def noise_seconds(planned: PlannedSum) -> float:
    """Return the CPU seconds per entry with noise, timed on a program's first sum."""
    ask: Any = planned.ask()
    stream = ClientRandomness.insecure(0, 0).stream(1, ask.name)
    return _answered(ask, 1, stream) / ask.length


def _answered(ask: Any, history: int, stream: Any = NO_RANDOMNESS) -> float:
    matrix = sp.csr_array(
        (np.ones(history), np.arange(history), [0, history]), shape=(1, ask.n_items)
    )
    histories = Histories(matrix)

    def answered() -> None:
        for _ in answer(replace(ask), histories, stream):
            pass

    return timed(answered)
