"""Tests of agreed terms, and of the server's lists of participants and summed clients."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from privirec.errors import UsageError
from privirec.secagg import (
    Agreement,
    ClientPolicy,
    ServerModel,
    ServerSettings,
    VectorShape,
    protocol,
)
from privirec.secagg.errors import AgreementMismatch, CohortChanged, OutOfOrder, SessionClosed
from secagg.testing import InsecureSeededBytes

from .test_attacks import SHAPE, Run, start, vector

ALL = pytest.mark.parametrize("name", ["secagg+", "secagg", "none"])
MODELS = pytest.mark.parametrize("server", ServerModel)
RUN = bytes(range(16))


def agreed(name: str) -> Agreement:
    """Return the terms of `start` with the settings below."""
    terms = begun(name).server.terms
    return Agreement(terms.run, terms.statement, terms.shapes, terms.block_entries)


def begun(name: str, policy: ClientPolicy | None = None) -> Run:
    settings = ServerSettings(block_entries=8, run=RUN)
    return start(name, clients=8, rounds=2, settings=settings, policy=policy)


@ALL
def test_what_was_agreed_is_accepted(name: str) -> None:
    agreement = agreed(name)
    assert agreement.run == RUN
    run = begun(name, ClientPolicy(agreement=agreement))
    run.set_up()


@ALL
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"run": bytes(16)}, "run"),
        ({"shapes": (SHAPE,)}, "vectors"),
        ({"shapes": (SHAPE, replace(SHAPE, signed=True))}, "vectors"),
        ({"shapes": (SHAPE, VectorShape(SHAPE.length + 1, SHAPE.width, SHAPE.bound))}, "vectors"),
        ({"block_entries": 16}, "size of blocks"),
    ],
)
def test_an_announcement_that_was_not_agreed_is_refused(
    name: str, change: dict[str, Any], said: str
) -> None:
    other = replace(agreed(name), **change)
    run = begun(name, ClientPolicy(agreement=other))
    with pytest.raises(AgreementMismatch, match=f"the announced {said}: not what was agreed"):
        run.clients[0].receive(run.server.announcement)
    with pytest.raises(SessionClosed):
        run.clients[0].dump()


@ALL
@pytest.mark.parametrize(
    "change",
    [
        {"corrupt_ppm": 60_000},
        {"dropped_ppm": 10},
        {"security_bits": 80},
        {"correctness_bits": 29},
        {"server": ServerModel.ACTIVE},
    ],
)
def test_other_assumptions_than_agreed_are_refused(name: str, change: dict[str, Any]) -> None:
    agreement = agreed(name)
    other = replace(agreement, statement=replace(agreement.statement, **change))
    run = begun(name, ClientPolicy(agreement=other))
    with pytest.raises(AgreementMismatch, match="assumptions"):
        run.clients[0].receive(run.server.announcement)


def test_a_run_has_a_number_of_16_bytes() -> None:
    with pytest.raises(UsageError, match="16 bytes, not 3"):
        start(settings=ServerSettings(block_entries=8, run=b"run"))


# --- participants and summed clients --------------------------------------------------------------


def opened(
    name: str,
    clients: int = 20,
    *,
    absent: Collection[int] = (),
    unshared: Collection[int] = (),
    dropped: Collection[int] = (),
    server: ServerModel = ServerModel.SEMI_HONEST,
) -> Run:
    """Return a run with an answered first sum; some clients never joined, or sent no shares or
    vector."""
    run = start(name, clients=clients, rounds=2, shares=(0.05, 0.15), server=server)
    assert run.clients[0].participants == frozenset()
    run.advertise([client for client in range(clients) if client not in absent])
    for client, message in run.next_messages():
        reply = run.clients[client].receive(message)
        if client not in unshared and reply is not None:
            run.server.receive(client, reply)
    run.answer(run.next_messages())
    for client in run.server.waiting_for() - set(dropped):
        run.server.add_vector(
            client, 1, b"".join(run.clients[client].contribute(1, [vector(client)]))
        )
    run.recover()
    return run


@ALL
def test_a_client_knows_who_takes_part_and_remembers_it(name: str) -> None:
    run = opened(name, absent={19})
    assert run.clients[0].participants == frozenset(range(19))
    assert run.clients[19].participants == frozenset()


@ALL
@MODELS
def test_a_list_of_those_summed_that_fits_is_accepted(name: str, server: ServerModel) -> None:
    run = opened(name, absent={19}, dropped={4}, unshared={7}, server=server)
    summed = frozenset(range(19)) - {4, 7}
    assert frozenset(run.server.survivors) == summed
    for client in summed:
        run.clients[client].check_summed(summed)


@ALL
def test_nothing_was_summed_before_a_sum_was_answered(name: str) -> None:
    run = start(name, clients=20, shares=(0.1, 0.2))
    with pytest.raises(OutOfOrder):
        run.clients[0].check_summed(frozenset(range(20)))
    run.set_up()
    with pytest.raises(OutOfOrder):
        run.clients[0].check_summed(frozenset(range(20)))


@ALL
@MODELS
def test_any_other_list_of_those_summed_is_refused(name: str, server: ServerModel) -> None:
    """Test every client in the list, neighbour or not: a client knows all of them by name."""
    run = opened(name, 40, absent={39}, dropped={4}, unshared={7}, server=server)
    summed = frozenset(range(39)) - {4, 7}
    client = run.clients[0]
    client.check_summed(summed)
    for one in range(40):
        with pytest.raises(CohortChanged):
            client.check_summed(summed ^ {one})
    for one in range(1, 39):
        with pytest.raises(CohortChanged):  # of the right size
            client.check_summed((summed | {4}) - {one} if one != 4 else summed | {39})


def test_the_check_survives_a_restart() -> None:
    run = opened("secagg", absent={19}, dropped={4})
    restored = protocol("secagg").load_client(
        run.clients[0].dump(),
        run.identities[0],
        run.roster,
        ClientPolicy(),
        InsecureSeededBytes("restored"),
    )
    assert restored.participants == frozenset(range(19))
    restored.check_summed(frozenset(range(19)) - {4})
    with pytest.raises(CohortChanged):
        restored.check_summed(frozenset(range(19)) - {5})
