"""Tests of redundant guards: each is tried where the guard in front of it detects nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chisquare

from privirec.extra.lightsecagg.messages import LightSurvivors, Open
from privirec.extra.lightsecagg.shared import survivors_statement
from privirec.secagg import ClientPolicy, LocalFederation, VectorShape, keys
from privirec.secagg.bell2020.client import BellClient
from privirec.secagg.bell2020.messages import Neighbours, decode
from privirec.secagg.errors import Stranger, WeakParameters
from privirec.secagg.graph import graph_seed
from privirec.secagg.messages import encode
from privirec.secagg.parameters import (
    Parameters,
    Statement,
    is_connected,
    is_secure,
    is_steadfast,
    sparse_parameters,
)
from privirec.secagg.participants import write_participants
from privirec.secagg.prg import MaskGenerator
from secagg.testing import InsecureSeededBytes

from . import test_lightsecagg_attacks as light
from .test_attacks import Run, start

# --- masks ----------------------------------------------------------------------------------------

SHAPE = VectorShape(1 << 13, 4, bound=1)


def a_masked_vector() -> tuple[np.ndarray, bytes, list[tuple[int, bytes]]]:
    """Return client 2's upload of a vector of ones, the seed of its own mask from its state, and
    the seeds of its masks with all others from *their* states."""
    federation = LocalFederation(
        "secagg+", 5, [SHAPE], corrupt_share=0.2, random_bytes=InsecureSeededBytes("masks")
    )
    clients = [client for client in federation.clients if isinstance(client, BellClient)]
    state, run = clients[2].state, clients[2].announcement.terms.run
    own = state.seeds.reveal(0, 32)
    public = keys.public_key(state.mask_privates.reveal(0, 32))
    common = []
    for peer in clients:
        if peer is not clients[2]:
            (agreed,) = keys.agree(peer.state.mask_privates.reveal(0, 32), [public])
            seed = keys.mask_seed(peer.exchange.label, agreed, run, 1, peer.client, 2)
            common.append((peer.client, seed))
    sent = []

    def observe(direction: str, client: int, message: bytes) -> None:
        if client == 2 and direction == "vector":
            sent.append(SHAPE.ring.unpack(message, SHAPE.length))

    federation._observe = observe
    federation.sum(lambda _client: [np.ones(SHAPE.length, int)])
    return sent[0].copy(), own, common


def uniform(words: np.ndarray) -> bool:
    counts = np.bincount(words & 15, minlength=16)
    return bool(chisquare(counts).pvalue > 1e-6)


def test_each_kind_of_mask_hides_a_vector_alone() -> None:
    """Test that with all common masks known the own mask still hides the vector, and vice versa."""
    masked, own, common = a_masked_vector()
    generator = MaskGenerator()
    assert uniform(masked)
    without_own = masked.copy()
    generator.subtract(without_own, 0, [own])
    assert uniform(without_own)
    assert uniform(without_own - masked)  # there was one
    without_common = masked.copy()
    generator.subtract(without_common, 0, [seed for peer, seed in common if peer > 2])
    generator.add(without_common, 0, [seed for peer, seed in common if peer < 2])
    assert uniform(without_common)
    assert uniform(without_common - masked)
    generator.subtract(without_common, 0, [own])
    assert ((without_common & 15) == 1).all()  # the vector itself


# --- the server's parameters ----------------------------------------------------------------------


def told(run: Run) -> Neighbours:
    run.advertise()
    message = decode(dict(run.next_messages())[0])
    assert isinstance(message, Neighbours)
    return message


def test_fewer_neighbours_are_refused_even_if_they_hide_enough() -> None:
    run = start("secagg+", clients=300, shares=(0.1, 0.1))
    given = told(run)
    fewer = Parameters(given.neighbours - 2, given.threshold)
    statement = Statement.of(300, 0.1, 0.1)
    assert is_secure(statement, fewer)  # only the drop-outs would be too many for it
    with pytest.raises(WeakParameters):
        run.clients[0].receive(encode(replace(given, neighbours=fewer.neighbours)))


def test_a_degree_that_no_ring_has_is_refused() -> None:
    run = start("secagg+", clients=100)
    given = told(run)
    odd = replace(given, neighbours=given.neighbours + 1, threshold=given.threshold + 1)
    with pytest.raises(WeakParameters):
        run.clients[0].receive(encode(odd))


def test_a_client_may_ask_for_more_bits_than_are_announced() -> None:
    run = start("secagg+", clients=300, shares=(0.1, 0.1), policy=ClientPolicy(security_bits=80))
    with pytest.raises(WeakParameters):
        run.clients[0].receive(encode(told(run)))


def test_a_graph_that_may_fall_apart_is_not_secure() -> None:
    """Test without corrupt clients: any threshold is private, but two neighbours are too few."""
    statement = Statement.of(100, 0.0, 0.1)
    assert not is_connected(statement, 2)
    assert not is_secure(statement, Parameters(2, 1))


def test_all_sums_of_a_run_share_its_bits() -> None:
    """Test a graph whose connectivity suffices for one sum but not for a thousand."""
    once = Statement.of(1000, 0.05, 0.05)
    often = replace(once, rounds=4096)
    enough = next(degree for degree in range(2, 999, 2) if is_connected(once, degree))
    assert not is_connected(often, enough)
    assert sparse_parameters(often).neighbours > sparse_parameters(once).neighbours


def test_corrupt_clients_have_two_shares_each() -> None:
    statement = Statement.of(10, 0.1, 0.0)
    assert statement.corrupt == 1
    assert is_steadfast(statement, Parameters(9, 6))
    assert not is_steadfast(statement, Parameters(9, 5))  # 9 + 1 shares are twice 5


def test_every_run_and_every_cohort_has_a_graph_of_its_own() -> None:
    seeds = {
        graph_seed(announcement, participants)
        for announcement in (bytes(32), bytes(31) + b"\1")
        for participants in (b"\7", b"\3")
    }
    assert len(seeds) == 4


# --- LightSecAgg ----------------------------------------------------------------------------------


def test_a_signature_of_somebody_who_is_not_in_the_sum_does_not_count() -> None:
    """Test client 7, which is declared gone and signs that it is."""
    run = light.start().go_to("confirm")
    survivors = write_participants(range(7), run.roster)
    told_it = light.told(run, LightSurvivors)
    assert run.clients[light.VICTIM].receive(encode(replace(told_it, survivors=survivors)))
    statement = survivors_statement(light.digest_of(run), b"\xff", survivors)
    signers = (0, 1, 2, 4, 7)
    opening = Open(
        told_it.run,
        1,
        light.VICTIM,
        write_participants(signers, run.roster),
        tuple(run.identities[client].sign(statement) for client in signers),
        0,
        b"",
    )
    light.refuses(run.clients[light.VICTIM], opening, Stranger)
