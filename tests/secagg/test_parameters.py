"""Tests of degree and threshold from exact tail conditions."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom

from privirec.secagg import parameters
from privirec.secagg.errors import ParametersInfeasible
from privirec.secagg.parameters import (
    Parameters,
    ServerModel,
    Statement,
    certain_to_stay,
    complete_parameters,
    is_connected,
    is_correct,
    is_secure,
    least_connected_degree,
    least_honest,
    most_corrupt,
    private_threshold,
    sparse_parameters,
    steadfast_threshold,
)

ACTIVE = ServerModel.ACTIVE
SIZES = (100, 1_000, 10_000, 30_000, 50_000)
TABLE = {
    (0.05, 0.05): "22/6 34/18 38/21 40/21 40/22",
    (0.1, 0.1): "32/11 52/28 60/32 62/33 64/34",
    (0.2, 0.2): "54/21 112/58 134/70 142/74 144/75",
    (0.33, 0.05): "52/34 86/64 102/75 106/78 108/79",
}


@pytest.mark.parametrize("shares", TABLE)
def test_the_table_of_known_parameters(shares: tuple[float, float]) -> None:
    derived = [sparse_parameters(Statement.of(size, *shares)) for size in SIZES]
    assert " ".join(f"{p.neighbours}/{p.threshold}" for p in derived) == TABLE[shares]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(4, 3000),
    st.integers(0, 300_000),
    st.integers(0, 300_000),
    st.integers(1, 40),
)
def test_the_conditions_hold_and_no_smaller_degree_satisfies_them(
    clients: int, corrupt: int, dropped: int, rounds: int
) -> None:
    statement = Statement(clients, corrupt, dropped, rounds=rounds)
    try:
        chosen = sparse_parameters(statement)
    except ParametersInfeasible:
        return
    degree, threshold = chosen.neighbours, chosen.threshold
    others = clients - 1
    corrupted = hypergeom(others, min(others, statement.corrupt), degree)
    gone = hypergeom(others, min(others, statement.dropped), degree)
    slack = 1 + 1e-6  # scipy's tails are floating point
    assert clients * rounds * corrupted.sf(threshold - 1) <= 2.0**-40 * slack
    assert clients * gone.sf(degree - threshold) <= 2.0**-30 * slack
    assert is_secure(statement, chosen)
    if threshold > 1 and degree < others:
        assert not is_secure(statement, Parameters(degree, threshold - 1))
    if 2 < degree < others:
        smaller = degree - 2
        lowest = private_threshold(statement, smaller)
        assert (
            not is_connected(statement, smaller)
            or lowest > smaller
            or not is_correct(statement, smaller, lowest)
        )


def test_rounds_add_their_logarithm_to_the_security_bits() -> None:
    for rounds, bits in ((2, 41), (16, 44), (1024, 50)):
        many = Statement.of(5_000, 0.1, 0.1, rounds=rounds)
        harder = Statement.of(5_000, 0.1, 0.1, security_bits=bits)
        assert sparse_parameters(many) == sparse_parameters(harder)


def test_in_the_complete_graph_two_thirds_must_agree_with_a_third_corrupt() -> None:
    assert complete_parameters(Statement.of(100, 0.33, 0.3)) == Parameters(99, 67)
    assert complete_parameters(Statement.of(10, 0.3, 0.1)) == Parameters(9, 7)
    # If that number may not be left, the threshold only has to exceed the corrupt clients.
    assert complete_parameters(Statement.of(100, 0.33, 0.4)) == Parameters(99, 34)


@given(st.integers(3, 200), st.integers(0, 400_000), st.integers(0, 200_000))
def test_a_lying_server_cannot_collect_both_secrets_in_the_complete_graph(
    clients: int, corrupt: int, dropped: int
) -> None:
    statement = Statement(clients, corrupt, dropped)
    try:
        chosen = complete_parameters(statement)
    except ParametersInfeasible:
        return
    honest = chosen.neighbours - statement.corrupt
    if chosen.threshold > private_threshold(statement, chosen.neighbours):
        assert honest + 2 * statement.corrupt < 2 * chosen.threshold


def test_a_broken_client_counts_as_a_whole() -> None:
    assert Statement.of(10, 0.05, 0.05).corrupt == 1
    assert Statement.of(10, 0.05, 0.05).dropped == 0
    assert Statement.of(100, 0.29, 0.29).dropped == 29


def test_the_corrupt_clients_are_a_share_of_the_roster() -> None:
    picked = Statement.of(1000, 0.1, 0.1).with_clients(900)
    assert (picked.clients, picked.corrupt, picked.dropped) == (900, 100, 90)
    assert picked.with_clients(850).corrupt == 100
    fair = sparse_parameters(Statement.of(900, 0.1, 0.1))
    assert sparse_parameters(picked).neighbours > fair.neighbours


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        (Statement.of(1, 0, 0), "at least 2 clients"),
        (Statement.of(100, 0.5, 0.5), "nobody to protect"),
        (Statement.of(10, 0.5, 0.4), "5 corrupt and 4 dropped"),
        (Statement.of(1000, 0.5, 0.499), "too few"),
        (Statement(100, -1, 0), "negative"),
        (Statement.of(100, 0.1, 0.1, rounds=0), "start at 1"),
        (
            Statement.of(6, 0.05, 0.34, server=ACTIVE),
            "active server.*lower the corrupt or the drop",
        ),
        (
            Statement.of(1000, 0.3, 0.4, server=ACTIVE),
            "300 may be corrupt and 400 missing",
        ),
    ],
)
def test_infeasible_statements_are_refused_with_the_reason(
    statement: Statement, reason: str
) -> None:
    for derive in (sparse_parameters, complete_parameters):
        with pytest.raises(ParametersInfeasible, match=reason):
            derive(statement)


def test_weaker_graphs_of_somebody_else_are_not_secure() -> None:
    statement = Statement.of(1_000, 0.1, 0.1)
    assert is_secure(statement, Parameters(52, 28))
    for degree, threshold in ((52, 27), (51, 28), (1000, 500), (52, 53), (0, 0), (10, 10)):
        assert not is_secure(statement, Parameters(degree, threshold))


def test_the_shares_that_are_certain_to_stay() -> None:
    assert certain_to_stay(Statement.of(100, 0.1, 0.3), 99) == 69
    for clients, corrupt, dropped in ((1000, 0.1, 0.1), (300, 0.05, 0.2)):
        statement = Statement.of(clients, corrupt, dropped)
        chosen = sparse_parameters(statement)
        stay = certain_to_stay(statement, chosen.neighbours)
        assert is_correct(statement, chosen.neighbours, stay)
        gone = hypergeom(clients - 1, statement.dropped, chosen.neighbours)
        assert clients * gone.sf(chosen.neighbours - stay) <= 2.0**-30
        assert clients * gone.sf(chosen.neighbours - stay - 1) > 2.0**-30


def test_the_bits_of_a_negligible_chance() -> None:
    assert parameters._negligible(3, 3 * 5 * 2**40, 5, 40)
    assert not parameters._negligible(3, 3 * 5 * 2**40 - 1, 5, 40)


@given(st.integers(1, 60), st.integers(0, 65), st.integers(1, 100), st.integers(1, 45))
@example(2, 1, 1, 1)  # a probability of one half, exactly the maximum
@example(9, 3, 3, 2)
def test_the_most_of_each_draw_is_the_most_of_one(
    population: int, marked: int, trials: int, bits: int
) -> None:
    expected = [
        parameters._most(population, marked, drawn, trials, bits) for drawn in range(population + 1)
    ]
    assert list(parameters._most_of_each(population, marked, trials, bits)) == expected


def test_a_statement_that_takes_every_degree_is_decided_by_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Test shares for which no degree suffices, with which a server could keep clients busy."""
    asked, exact = [], parameters._most

    def counted(*given: int) -> int:
        asked.append(given)
        return exact(*given)

    monkeypatch.setattr(parameters, "_most", counted)
    with pytest.raises(ParametersInfeasible, match="active server"):
        sparse_parameters(Statement.of(10_001, 0.3, 0.35, server=ACTIVE))
    assert len(asked) <= 3  # of the complete graph
    assert sparse_parameters(Statement.of(10_001, 0.4, 0.5)).neighbours == 3746
    assert len(asked) <= 3


@given(st.integers(2, 400), st.integers(0, 700_000), st.integers(0, 299_999), st.integers(1, 60))
def test_the_least_connected_degree_is_found_by_bisection(
    clients: int, corrupt: int, dropped: int, bits: int
) -> None:
    statement = Statement(clients, corrupt, dropped, bits)
    connected = (each for each in range(2, clients - 1, 2) if is_connected(statement, each))
    assert least_connected_degree(statement) == next(connected, clients - 1)


# --- against an active server ---------------------------------------------------------------------

ACTIVE_TABLE = {
    (0.05, 0.05): "22/17 108/84 138/106 142/109",
    (0.05, 0.2): "52/32 274/178 406/263 430/278",
    (0.1, 0.1): "42/32 198/149 264/197 276/205",
}


@pytest.mark.parametrize("shares", ACTIVE_TABLE)
def test_the_table_of_known_parameters_against_an_active_server(
    shares: tuple[float, float],
) -> None:
    found = [
        sparse_parameters(Statement.of(size, *shares, rounds=10, server=ACTIVE))
        for size in (100, 1_000, 10_000, 30_000)
    ]
    assert " ".join(f"{p.neighbours}/{p.threshold}" for p in found) == ACTIVE_TABLE[shares]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(4, 2000),
    st.integers(0, 200_000),
    st.integers(0, 250_000),
    st.integers(1, 40),
)
def test_the_conditions_against_an_active_server_hold_and_no_smaller_degree_satisfies_them(
    clients: int, corrupt: int, dropped: int, rounds: int
) -> None:
    """Test against floating-point tails of scipy, independent of our own."""
    statement = Statement(clients, corrupt, dropped, rounds=rounds, server=ACTIVE)
    try:
        chosen = sparse_parameters(statement)
    except ParametersInfeasible:
        return
    degree, threshold, others = chosen.neighbours, chosen.threshold, clients - 1
    count = min(others, statement.corrupt)
    slack = 1 + 1e-6
    gone = hypergeom(others, min(others, statement.dropped), degree)
    assert clients * gone.sf(degree - threshold) <= 2.0**-30 * slack
    # No neighbourhood has enough corrupt clients to confirm two stories ...
    too_many = 2 * threshold - degree
    near = hypergeom(others, count, degree)
    assert clients * rounds * near.sf(too_many - 1) <= 2.0**-80 * slack
    if degree < others:
        # ... and no side of one has enough to answer without an honest client.
        half = degree // 2
        side = hypergeom(others, count, half)
        assert 2 * clients * rounds * side.sf(threshold - half - 1) <= 2.0**-80 * slack
        assert not is_secure(statement, Parameters(degree, threshold - 1))
    assert is_secure(statement, chosen)
    for smaller in range(2, min(degree, others), 2):
        assert steadfast_threshold(statement, smaller) > certain_to_stay(statement, smaller)


def test_an_active_server_has_forty_bits_of_tries() -> None:
    tried = Statement.of(1_000, 0.05, 0.05, security_bits=40, server=ACTIVE)
    trusted = Statement.of(1_000, 0.05, 0.05, security_bits=80)
    for places in (10, 50, 100):
        assert most_corrupt(tried, places, 1000) == most_corrupt(trusted, places, 1000)


def test_in_the_complete_graph_an_active_server_changes_nothing_but_what_is_refused() -> None:
    for clients in (5, 20, 100, 500):
        trusted, active = (
            complete_parameters(Statement.of(clients, 0.1, 0.2, server=model))
            for model in ServerModel
        )
        assert trusted == active
    assert complete_parameters(Statement.of(100, 0.33, 0.4)) == Parameters(99, 34)
    with pytest.raises(ParametersInfeasible, match="active server"):
        complete_parameters(Statement.of(100, 0.33, 0.4, server=ACTIVE))


def test_the_fewest_honest_clients_in_a_sum() -> None:
    for model in ServerModel:
        all_there = Statement.of(1_000, 0.05, 0.05, rounds=10, server=model)
        assert least_honest(all_there) == 900
        # 50 absent clients may all be honest, and 47 of those present may drop out.
        assert least_honest(all_there.with_clients(950)) == 950 - 47 - 50
    assert least_honest(Statement.of(3, 0.9, 0.3)) == 0
