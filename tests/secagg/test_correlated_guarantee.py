"""Tests of the promise of correlated noise, by exact arithmetic on small graphs and real
uploads."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from math import comb, exp, log2, pi, sqrt

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy.stats import norm

from privirec.extra.correlated.guarantee import (
    crowds,
    distinguishability,
    honest_ahead,
    honest_edges,
)
from privirec.extra.correlated.levels import NoiseLevels, graph_degree
from privirec.federated.dp.sampler import GaussianNoise, NoiseGenerator
from privirec.secagg import keys
from privirec.secagg.graph import RingGraph
from privirec.secagg.parameters import Statement
from privirec.secagg.ring import VectorShape

from .correlated_run import started


def ring(size: int, degree: int, seed: int = 0) -> np.ndarray:
    return RingGraph(size, degree, bytes([seed]) * 32).all_neighbours()


@st.composite
def graphs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Return the neighbourhoods of a ring graph, and the honest clients."""
    size = draw(st.integers(3, 9))
    degree = draw(st.sampled_from([*range(2, size - 1, 2), size - 1]))
    honest = np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    assume(honest.any())
    return ring(size, degree, draw(st.integers(0, 255))), honest


def levels() -> st.SearchStrategy[NoiseLevels]:
    return st.builds(NoiseLevels, st.integers(-5, 5), st.integers(4, 8), st.integers(4, 16))


def covariance(neighbours: np.ndarray, honest: np.ndarray, given: NoiseLevels) -> np.ndarray:
    """Return the covariance of the honest uploads in upload units, from one column per noise."""
    columns = []
    for client in np.flatnonzero(honest):
        column = np.zeros(len(honest))
        column[client] = sqrt(4**given.own_bits - 4)
        columns.append(column)
        for peer in neighbours[client]:
            if honest[peer] and client < peer:
                column = np.zeros(len(honest))
                column[client], column[peer] = 2.0**given.pair_bits, -(2.0**given.pair_bits)
                columns.append(column)
    noise = np.array(columns)[:, honest]
    return noise.T @ noise


def exact_crowds(edges: np.ndarray, given: NoiseLevels) -> list[Fraction]:
    """Return 1 / (own^2 (own^2 I + pair^2 L)^-1_ii) in rationals, by Gauss-Jordan elimination."""
    own, pair = Fraction(4**given.own_bits - 4), Fraction(4**given.pair_bits)
    size = len(edges)
    rows = []
    for one in range(size):
        row = [-pair * int(edges[one, other]) for other in range(size)]
        row[one] += own + pair * int(edges[one].sum())
        rows.append(row + [Fraction(one == other) for other in range(size)])
    for pivot in range(size):
        rows[pivot] = [value / rows[pivot][pivot] for value in rows[pivot]]
        for other in range(size):
            if other != pivot and (factor := rows[other][pivot]):
                pairs = zip(rows[other], rows[pivot], strict=True)
                rows[other] = [value - factor * above for value, above in pairs]
    return [1 / (own * rows[one][size + one]) for one in range(size)]


@given(
    graphs(),
    st.builds(NoiseLevels, st.integers(-5, 5), st.integers(4, 30), st.integers(0, 40)),
)
@example((ring(9, 4), np.ones(9, bool)), NoiseLevels(0, 4, 30))
def test_crowds_never_exceed_the_exact_ones(
    graph: tuple[np.ndarray, np.ndarray], given: NoiseLevels
) -> None:
    """Test pair noise up to 2^36 times own noise, where an eigenproblem has no correct digits."""
    edges = honest_edges(*graph)
    found = crowds(given, edges)
    for crowd, exact in zip(found.tolist(), exact_crowds(edges, given), strict=True):
        assert Fraction(crowd) <= exact
        assert crowd >= float(exact) * (1 - 1e-12)
        shift = 3.0
        mu = distinguishability(shift * 2.0**given.unit, given, crowd)
        assert Fraction(mu) ** 2 >= Fraction(shift) ** 2 / (exact * (4**given.own_bits - 4))


@given(graphs(), levels())
def test_crowds_are_those_of_the_uploads_covariance(
    graph: tuple[np.ndarray, np.ndarray], given: NoiseLevels
) -> None:
    neighbours, honest = graph
    found = exact_crowds(honest_edges(neighbours, honest), given)
    own = 4**given.own_bits - 4
    inverse = np.linalg.inv(covariance(neighbours, honest, given))
    # LAPACK's inverse: the condition number is below 10 4^16 / 252, and a double has 53 bits.
    assert np.allclose(np.array(found, float), 1 / (own * np.diag(inverse)), rtol=1e-6)
    assert min(found) >= 1
    assert max(found) <= int(honest.sum())


def test_the_two_limits() -> None:
    neighbours, honest = ring(11, 4), np.ones(11, bool)
    honest[[2, 7]] = False
    edges = honest_edges(neighbours, honest)
    alone = crowds(NoiseLevels(0, 26, 0), edges)  # hardly any pair noise
    assert np.allclose(alone, 1)
    together = crowds(NoiseLevels(0, 4, 30), edges)
    assert np.allclose(together, 9)
    assert distinguishability(1, NoiseLevels(0, 26, 0), alone[0]) == pytest.approx(2.0**-26)
    central = 1 / sqrt(9 * (4**4 - 4))
    assert distinguishability(1, NoiseLevels(0, 4, 30), together[0]) == pytest.approx(central)


def test_without_an_honest_neighbour_there_is_no_crowd() -> None:
    neighbours = ring(9, 2)
    honest = np.ones(9, bool)
    honest[neighbours[4]] = False
    place = int(honest[:4].sum())
    assert crowds(NoiseLevels(0, 4, 20), honest_edges(neighbours, honest))[place] == 1


@given(graphs(), levels())
def test_uploads_that_the_server_does_not_get_tell_it_nothing(
    graph: tuple[np.ndarray, np.ndarray], given: NoiseLevels
) -> None:
    """Test that honest drop-outs count as if they had sent: the server sees less."""
    neighbours, honest = graph
    full = covariance(neighbours, honest, given)
    kept = np.arange(len(full)) % 3 != 1
    fewer = full[np.ix_(kept, kept)]
    with_all = np.diag(np.linalg.inv(full))[kept]
    assert (np.diag(np.linalg.inv(fewer)) <= with_all * (1 + 1e-9)).all()


@given(graphs(), levels(), st.integers(0, 2**32 - 1))
def test_noise_that_only_one_side_adds_hides_no_less(
    graph: tuple[np.ndarray, np.ndarray], given: NoiseLevels, chance: int
) -> None:
    """Test noise that does not cancel, because the server names different participants to
    clients."""
    neighbours, honest = graph
    full = covariance(neighbours, honest, given)
    loose = full.copy()
    rng = np.random.default_rng(chance)
    for one, other in combinations(range(len(full)), 2):
        if rng.random() < 0.5:
            loose[one, other] = loose[other, one] = 0
    before, after = (np.diag(np.linalg.inv(matrix)) for matrix in (full, loose))
    assert (after <= before * (1 + 1e-9)).all()


# --- the random ring graph ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clients", "shares"),
    [
        (40, (0.1, 0.0)),
        pytest.param(150, (0.05, 0.05), marks=pytest.mark.check),
        pytest.param(150, (0.2, 0.1), marks=pytest.mark.check),
        (9, (0.2, 0.2)),
    ],
)
@pytest.mark.parametrize("pair_bits", [5, 9, 14])
def test_the_rings_crowd_is_a_lower_bound(
    clients: int, shares: tuple[float, float], pair_bits: int
) -> None:
    statement = Statement.of(clients, *shares)
    degree = min(graph_degree(statement), clients - 1)
    given = NoiseLevels(0, 4, pair_bits)
    hidden = clients - statement.corrupt
    steps = np.arange(1, min(honest_ahead(statement, degree), hidden // 2) + 1)
    places = (np.arange(hidden)[:, None] + np.concatenate([steps, -steps])) % hidden
    bound = crowds(given, honest_edges(places, np.ones(hidden, bool))).min()
    assert 1 <= bound <= hidden
    for seed in range(5):
        honest = np.ones(clients, bool)
        honest[: statement.corrupt] = False
        found = crowds(given, honest_edges(ring(clients, degree, seed), honest))
        # `crowds` is lowered by this, and if the graph is complete both are the same number.
        lowered = 2 * clients * (clients + 5) * 2.0**-53
        assert found.min() >= bound * (1 - lowered)


def test_crowds_are_added_in_a_fixed_order() -> None:
    """Test the order of places with one rounding each, in Python floats, bit for bit."""
    rng = np.random.default_rng(5)
    edges = np.triu(rng.random((40, 40)) < 0.4, 1).astype(float)
    edges += edges.T
    given = NoiseLevels(0, 4, 9)
    own, pair = 4.0**4 - 4, 4.0**9
    size = len(edges)
    between = [[float(edges[one, other]) * pair for other in range(size)] for one in range(size)]
    ground = [own] * size
    for node in range(size - 1, 0, -1):
        total = 0.0
        for towards in between[node][:node]:
            total += towards
        share = [towards / (ground[node] + total) for towards in between[node][:node]]
        for one in range(node):
            ground[one] += share[one] * ground[node]
            for other in range(node):
                if one != other:
                    between[one][other] += share[one] * between[node][other]
    lowered = ground[0] / own * (1 - 2 * size * (size + 5) * 2.0**-53)
    assert crowds(given, edges)[0] == lowered


def test_honest_clients_ahead_by_counting_orders() -> None:
    """Test all placements of the corrupt clients on a ring of 12 with 3 in view ahead."""
    clients, corrupt, half = 12, 3, 3
    for bits in range(1, 12):
        statement = Statement(clients, 250_000, 0, bits)
        ahead = honest_ahead(statement, 2 * half)

        def chance(fewer_than: int) -> float:
            hit = sum(
                half - sum(place < half for place in placed) < fewer_than
                for placed in combinations(range(clients), corrupt)
            )
            return clients * hit / comb(clients, corrupt)

        assert statement.corrupt == corrupt
        assert chance(ahead) <= 2.0**-bits
        assert ahead == half or chance(ahead + 1) > 2.0**-bits


def test_integers_are_fine_enough_wherever_they_are_called_smooth() -> None:
    """Test the error bound 2 m e^(-2 pi^2 / q): m edges, q the largest eigenvalue of the form (L /
    own^2 + 1 / pair^2). A ring's Laplacian has eigenvalues 1 + k minus a Dirichlet kernel."""
    angles = np.linspace(1e-6, pi, 20_001)
    for degree in range(2, 300, 2):
        largest = degree + 1 - (np.sin((degree + 1) * angles / 2) / np.sin(angles / 2)).min()
        given = NoiseLevels(0, 4, 4)
        while not given.is_smooth(degree):
            given = NoiseLevels(0, given.own_bits + 1, given.pair_bits + 1)
        own, pair = 4**given.own_bits - 4, 4**given.pair_bits
        assert largest / own + 1 / pair <= 1 / 4
        # The complete graph has less, and so has every part of a graph.
        assert (degree + 1) / own + 1 / pair <= 1 / 4
    assert log2(2 * exp(-8 * pi**2)) < -112
    assert not NoiseLevels(0, 4, 3).is_smooth(6)
    assert not NoiseLevels(0, 3, 9).is_smooth(6)
    assert not NoiseLevels(0, 4, 9).is_smooth(50)


def test_a_part_of_a_graph_has_smaller_eigenvalues() -> None:
    neighbours, honest = ring(40, 8), np.arange(40) % 5 != 0
    largest = []
    for those in (honest, np.ones(40, bool)):
        edges = honest_edges(neighbours, those)
        largest.append(np.linalg.eigvalsh(np.diag(edges.sum(axis=1)) - edges)[-1])
    assert largest[0] <= largest[1]


# --- integers -------------------------------------------------------------------------------------


def exact_law(own: float, pair: float, reach: int) -> np.ndarray:
    """Return P[two neighbours' noises] for every pair of integers up to `reach`."""
    values = np.arange(-reach, reach + 1)
    single = np.exp(-(values**2) / (2 * own**2))
    single /= single.sum()
    common = np.arange(-6 * int(pair), 6 * int(pair) + 1)
    weights = np.exp(-(common**2) / (2 * pair**2))
    weights /= weights.sum()

    def at(positions: np.ndarray) -> np.ndarray:
        return np.exp(-(positions**2) / (2 * own**2)) / np.exp(-(values**2) / (2 * own**2)).sum()

    law = np.zeros((len(values), len(values)))
    for shift, weight in zip(common.tolist(), weights.tolist(), strict=True):
        law += weight * np.outer(at(values - shift), at(values + shift))
    return law


@pytest.mark.parametrize(("own_bits", "pair_bits", "step"), [(4, 4, 9), (4, 5, 20), (4, 6, 30)])
def test_the_integers_keep_the_promise_of_real_numbers(
    own_bits: int, pair_bits: int, step: int
) -> None:
    """Test all uploads of two honest neighbours: the exact delta for each epsilon, by summation."""
    given = NoiseLevels(0, own_bits, pair_bits)
    reach = 7 * int(sqrt(4**own_bits + 4**pair_bits))
    law = exact_law(2.0**own_bits, 2.0**pair_bits, reach)
    assert law.sum() == pytest.approx(1, abs=1e-8)
    moved = np.zeros_like(law)
    moved[step:] = law[:-step]  # the first client's value is `step` larger
    crowd = crowds(given, np.array([[0.0, 1.0], [1.0, 0.0]]))[0]
    mu = distinguishability(step, given, crowd)
    loss = 1 + step / reach  # the part beyond the edge of the grid
    assert loss < 2
    for eps in (0.0, 0.25, 0.5, 1.0, 2.0):
        exact = np.maximum(moved - exp(eps) * law, 0).sum()
        promised = norm.cdf(mu / 2 - eps / mu) - exp(eps) * norm.cdf(-mu / 2 - eps / mu)
        assert exact <= promised + 1e-9
        assert exact >= 0.8 * promised - 1e-6  # and the promise is not much weaker than the truth


# --- real uploads ---------------------------------------------------------------------------------


def test_the_best_attack_on_real_uploads_is_as_good_as_stated() -> None:
    """Test the best attack: the server weighs all honest uploads by the inverse covariance and
    subtracts the noise that its corrupt clients know. One client's change is then visible with mu,
    no more."""
    length = 40_000
    shape = VectorShape(length, 12, 9, signed=True)
    run = started(clients=9, shapes=(shape,), shares=(0.2, 0.2), block_entries=1 << 16)
    level, wire = run.announce().noise[0], run.server.wire_shape(1)
    corrupt = {0, 5}
    honest = np.array([client not in corrupt for client in range(9)])
    known = np.zeros((9, length), np.int64)
    generator = NoiseGenerator(GaussianNoise(1 << level.pair_bits))
    for client in corrupt:
        state = run.clients[client].state
        secrets, run_number = state.pair_secrets.reveal(), run.announce().run
        for number, peer in enumerate(state.peers):
            pair = (min(client, peer), max(client, peer))
            secret = secrets[32 * number : 32 * (number + 1)]
            seed = keys.derive(
                run.server.exchange.label, secret, b"asks", run_number, 1, pair, keys.NOTHING_ASKED
            )
            apply = generator.add if peer < client else generator.subtract
            apply(known[peer], 0, [seed])
    noise = np.empty((9, length), np.int64)
    for client in range(9):
        (message,) = run.clients[client].contribute(1, [run.vector(client)])
        upload = wire.ring.decode_signed(wire.ring.unpack(message, length))
        noise[client] = upload - (run.vector(client) << -level.unit)
    left = noise[honest] - known[honest]
    left = wire.ring.decode_signed(wire.ring.reduce(left.astype(wire.ring.dtype)))

    own, pair = 4.0**level.own_bits, 4.0**level.pair_bits
    edges = honest_edges(ring(9, 8), honest)  # all clients are neighbours
    sigma = own * np.eye(7) + pair * (np.diag(edges.sum(axis=1)) - edges)
    measured = left @ left.T / length
    spread = np.sqrt((sigma**2 + np.outer(np.diag(sigma), np.diag(sigma))) / length)
    assert (np.abs(measured - sigma) <= 6 * spread).all()
    inverse = np.linalg.inv(sigma)
    mu = sqrt(inverse[0, 0])  # for a change of one upload unit
    assert (inverse[0] @ left).std() == pytest.approx(mu, rel=0.02)
    stated = distinguishability(2.0**level.unit, level, crowds(level, edges)[0])
    assert mu <= stated <= 1.01 * mu
    # Among honest clients the pair noise cancels, and own noise is left.
    assert left.sum(axis=0).std() == pytest.approx(sqrt(7 * own), rel=0.02)
