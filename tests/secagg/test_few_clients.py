"""Tests of secure aggregation over few clients, of which one or more may be missing."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from privirec.secagg import ServerModel, Statement
from privirec.secagg.bell2020 import BellClient
from privirec.secagg.errors import ParametersInfeasible
from privirec.secagg.parameters import (
    PPM,
    Parameters,
    complete_parameters,
    is_secure,
    is_unanimous,
    most_missing,
    share_of,
    sparse_parameters,
)
from secagg.testing.lying_server import LyingServer, Setting

ACTIVE = ServerModel.ACTIVE
FOUR = Setting(4, (0.05, 0.25), corrupt=frozenset({3}))


def counted(clients: int, corrupt: int, missing: int) -> Statement:
    bad = corrupt * PPM // clients
    return Statement(clients, bad, share_of(missing, clients), rounds=9, server=ACTIVE)


def test_shares_for_a_count_stand_for_that_count() -> None:
    for clients in range(2, 200):
        for count in range(clients):
            statement = counted(clients, count, count)
            assert (statement.corrupt, statement.dropped) == (count, count)


def test_four_clients_bear_the_loss_of_one_and_one_that_colludes() -> None:
    four = Statement.of(4, 0.05, 0.25, rounds=9, server=ACTIVE)
    assert sparse_parameters(four) == complete_parameters(four) == Parameters(3, 2)
    assert is_secure(four, Parameters(3, 2))
    assert not is_secure(four, Parameters(3, 1))
    # One has not come: the other three may not lose another one.
    assert sparse_parameters(four.with_clients(3)) == Parameters(2, 2)


def test_a_threshold_is_not_enough_without_unanimity() -> None:
    six = counted(6, 1, 2)
    assert not is_unanimous(six)
    assert not is_secure(six, Parameters(5, 3))
    with pytest.raises(ParametersInfeasible, match="1 may be corrupt and 2 missing"):
        complete_parameters(six)


def test_any_two_lists_share_an_honest_client_where_parameters_exist() -> None:
    """Count over all numbers of clients that come, and all that drop out of them."""
    for clients in range(2, 21):
        for corrupt, missing in product(range(clients), repeat=2):
            if corrupt + missing >= clients:
                continue
            statement = counted(clients, corrupt, missing)
            lists = {
                left
                for come in range(clients - missing, clients + 1)
                for left in range(
                    come - statement.with_clients(come).dropped, statement.clients + 1
                )
            }
            # The lists share no honest client if the corrupt ones are in both and no other is.
            apart = any(one + other - corrupt <= clients for one, other in product(lists, repeat=2))
            assert is_unanimous(statement) is not apart


def test_few_clients_need_one_more_than_twice_the_missing_and_the_corrupt() -> None:
    for clients, missing, corrupt in ((4, 1, 1), (3, 1, 0), (5, 1, 2), (3, 0, 1)):
        assert most_missing(clients, corrupt) == missing
        assert complete_parameters(counted(clients, corrupt, missing)).threshold > corrupt
        with pytest.raises(ParametersInfeasible, match="lower the corrupt or the dropped share"):
            complete_parameters(counted(clients, corrupt, missing + 1))
    assert most_missing(2, 1) is None
    for clients in range(3, 40):
        for corrupt in range(clients - 1):
            most = most_missing(clients, corrupt)
            if most is None:
                continue
            assert clients > 2 * most + corrupt
            assert clients - most - corrupt >= 2  # honest clients in the sum


def two_stories(server: LyingServer) -> None:
    """Tell client 0 that client 2 dropped, and client 2 that client 0 did."""
    server.tell({0: frozenset({0, 1, 3}), 1: frozenset({0, 1, 3}), 2: frozenset({1, 2, 3})})


def test_a_server_with_one_of_four_clients_never_gets_less_than_a_sum_over_two() -> None:
    """Try every list that the server can tell each of the three honest clients."""
    gathered = LyingServer(FOUR)
    gathered.gather()
    assert gathered.parameters == Parameters(3, 2)
    everybody = range(4)
    views = [
        [
            frozenset(view)
            for size in (2, 3, 4)
            for view in combinations(everybody, size)
            if client in view
        ]
        for client in range(3)
    ]
    opened = set()
    for told in product(*views):
        server = gathered.fork()
        server.tell(dict(enumerate(told)))
        groups = server.groups()
        assert not server.opened_seeds() & server.opened_keys() & set(range(3))
        assert len(groups) <= 1
        opened.update(groups)
        if groups:
            honest = told[min(groups[0])] - {3}
            assert groups == [honest]
            assert len(honest) >= 2
    assert opened == {frozenset(pair) for pair in combinations(range(3), 2)} | {frozenset(range(3))}


@pytest.mark.parametrize("withheld", [0, 3])
def test_shares_that_are_kept_back_do_not_help_it(withheld: int) -> None:
    for client in {0, 1, 2} - {withheld}:
        server = LyingServer(FOUR)
        server.gather(kept_back=lambda client=client: {client: {withheld}})
        for views in product([{0, 1, 2, 3}, {0, 1, 3}, {1, 2, 3}, {0, 1, 2}, {0, 2, 3}], repeat=3):
            other = server.fork()
            other.tell({n: frozenset(v) for n, v in enumerate(views) if n in v})
            assert not other.opened_seeds() & other.opened_keys() & {0, 1, 2}
            assert all(len(group) >= 2 for group in other.groups())


@pytest.mark.parametrize("confirmed", [True, False])
def test_it_is_the_confirmation_by_all_that_protects_four_clients(
    confirmed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not confirmed:
        monkeypatch.setattr(BellClient, "check_confirmed", lambda *_: None)
    server = LyingServer(FOUR)
    server.gather()
    two_stories(server)
    both = server.opened_seeds() & server.opened_keys() & {0, 1, 2}
    assert bool(both) is not confirmed
