"""Tests of secure aggregation: an opened sum is the plain sum over the survivors."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from privirec.data import Interactions, load_dataset
from privirec.errors import FederationError
from privirec.federated.programs import (
    Privirec,
    PrivirecK,
    PrivirecKSettings,
    PrivirecSettings,
    ProgramSettings,
    SpectralSettings,
    program_of,
)
from privirec.filters.components import Components
from privirec.filters.operators import LowRankOperator, SparseOperator
from privirec.runtime.execute import execute
from privirec.runtime.local.client import clients_of
from privirec.runtime.local.in_process import InProcess
from privirec.runtime.local.secure import DropOuts, SecureInProcess
from privirec.runtime.spec import Assumptions
from privirec.secagg import ServerModel, protocol
from privirec.secagg.errors import (
    BelowThreshold,
    CohortChanged,
    CohortTooSmall,
    ProtocolError,
)
from privirec.secagg.protocol import Schedule

PROGRAMS = {
    "privirec, paper": Privirec.preset("paper", rank=3),
    "privirec": PrivirecSettings(rank=3, rounds=2),
    "privirec, low-pass by the server": PrivirecSettings(rank=3, low_pass_from="server"),
    "privirec for turbo-cf": PrivirecSettings(rank=0, alpha=0.6, ring_bits=40),
    "privirec-k, paper": PrivirecK.preset("paper", rank=3),
    "privirec-k": PrivirecKSettings(rank=3, rounds=2, ring_bits=24),
    "spectral": SpectralSettings(rank=3, columns=(2, 2)),
    "spectral, settled": SpectralSettings(rank=2, columns=(2,) * 4, settle=0.5),
}


def arrays(components: Components) -> list[NDArray]:
    operator = components.item_item
    parts: list[NDArray] = [components.item_degrees]
    if isinstance(operator, LowRankOperator):
        parts += [operator.basis, operator.eigenvalues]
    else:
        assert isinstance(operator, SparseOperator)
        matrix = operator.matrix
        parts += [matrix.data, matrix.indices, matrix.indptr]
    return parts if components.basis is None else [*parts, components.basis]


def histories(rng: np.random.Generator, users: int, items: int) -> Interactions:
    """Return distinct histories, so that a double count or a lost one shows."""
    while True:
        matrix = rng.random((users, items)) < 0.45
        matrix[:, 0] |= ~matrix.any(axis=1)
        if len(np.unique(matrix, axis=0)) == users:
            return Interactions.from_matrix(matrix)


def random_dropouts(
    rng: np.random.Generator, users: int, sums: int, schedule: Schedule
) -> DropOuts:
    """Return random drop-outs at any step: usually none or one."""
    stages = [(str(step.sum_number or "set-up"), step.name) for step in schedule.steps(sums)]
    at_set_up: dict[str, set[int]] = {}
    at_sums: dict[int, dict[str, set[int]]] = {}
    for client in rng.permutation(users)[: rng.choice(4, p=[0.2, 0.4, 0.3, 0.1])]:
        when, stage = stages[rng.choice(len(stages))]
        if rng.random() < 0.5:
            when, stage = ("1", "input")
        target = at_set_up if when == "set-up" else at_sums.setdefault(int(when), {})
        target.setdefault(stage, set()).add(int(client))
    return DropOuts(at_set_up, at_sums)


def secure_run(
    seed: int, name: str
) -> tuple[Interactions, ProgramSettings, SecureInProcess | None, Components | ProtocolError]:
    rng = np.random.default_rng(seed)
    settings = PROGRAMS[name].model_copy(update={"seed": seed})
    train = histories(rng, int(rng.integers(8, 13)), int(rng.integers(5, 9)))
    sums = program_of(settings, train.n_users, train.n_items).sums()
    aggregator = ("secagg", "secagg+", "lightsecagg")[seed % 3]
    model = tuple(ServerModel)[seed % 2]
    trust = Assumptions(corrupt_share=0.1, drop_share=0.25, server_model=model)
    statement = trust.statement(train.n_users, len(sums))
    schedule = protocol(aggregator).schedule_for(statement)
    dropouts = random_dropouts(rng, train.n_users, len(sums), schedule)
    runtime = None
    try:
        runtime = SecureInProcess(
            clients_of(train),
            sums,
            aggregator,
            assumptions=trust,
            dropouts=dropouts,
        )
        found, _ = execute(program_of(settings, train.n_users, train.n_items).steps(), runtime)
    except ProtocolError as error:
        return train, settings, runtime, error
    return train, settings, runtime, found


def check(seed: int, name: str) -> type[ProtocolError] | None:
    train, settings, runtime, found = secure_run(seed, name)
    where = f"seed {seed}, program {name!r}"
    if isinstance(found, ProtocolError):
        assert isinstance(found, CohortChanged | BelowThreshold | CohortTooSmall), (where, found)
        return type(found)
    assert runtime is not None
    clients = clients_of(train)
    survivors = [clients[number] for number in runtime.survivors]
    expected, _ = execute(
        program_of(settings, train.n_users, train.n_items).steps(), InProcess(survivors)
    )
    for ours, plain in zip(arrays(found), arrays(expected), strict=True):
        np.testing.assert_array_equal(ours, plain, err_msg=where)
    return None


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_under_secure_aggregation(name: str) -> None:
    for seed in range(4):
        check(seed, name)


@pytest.mark.long
def test_a_thousand_runs_with_drop_outs_anywhere() -> None:
    names = list(PROGRAMS)
    ends = [check(seed, names[seed % len(names)]) for seed in range(1000)]
    finished = ends.count(None)
    # The test is meaningful only if both outcomes are frequent.
    assert finished > 300
    assert ends.count(CohortChanged) > 100


def test_silos_and_users_give_the_same_bits() -> None:
    train = load_dataset("synthetic:small").train
    settings = PrivirecKSettings(rank=8, rounds=2)
    sums = program_of(settings, train.n_users, train.n_items).sums()
    results = []
    for n_clients, aggregator in ((8, "secagg+"), (40, "secagg+"), (40, "lightsecagg")):
        runtime = SecureInProcess(clients_of(train, n_clients), sums, aggregator)
        results.append(
            execute(program_of(settings, train.n_users, train.n_items).steps(), runtime)[0]
        )
    plain, _ = execute(
        program_of(settings, train.n_users, train.n_items).steps(), InProcess(clients_of(train, 3))
    )
    for components in results:
        for ours, theirs in zip(arrays(components), arrays(plain), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.long
def test_a_thousand_clients_one_in_twenty_drops_before_the_first_sum() -> None:
    train = load_dataset("synthetic:1000x400").train
    settings = PrivirecKSettings(rank=8, rounds=3)
    clients = clients_of(train)
    sums = program_of(settings, train.n_users, train.n_items).sums()
    runtime = SecureInProcess(
        clients, sums, "secagg+", dropouts=DropOuts.of_share(0.05, len(clients), seed=1)
    )
    found, ledger = execute(program_of(settings, train.n_users, train.n_items).steps(), runtime)
    assert len(runtime.survivors) == 950
    survivors = [clients[number] for number in runtime.survivors]
    expected, plain = execute(
        program_of(settings, train.n_users, train.n_items).steps(), InProcess(survivors)
    )
    for ours, theirs in zip(arrays(found), arrays(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert ledger.bytes_up > plain.bytes_up


def test_a_client_that_leaves_later_ends_the_run_with_the_reason() -> None:
    train = load_dataset("synthetic:small").train.rows(0, 40)
    settings = PrivirecKSettings(rank=4, rounds=2)
    runtime = SecureInProcess(
        clients_of(train),
        program_of(settings, train.n_users, train.n_items).sums(),
        "secagg+",
        assumptions=Assumptions(drop_share=0.2),
        dropouts=DropOuts(at_sums={2: {"input": {3}}}),
    )
    with pytest.raises(CohortChanged, match="differ"):
        execute(program_of(settings, train.n_users, train.n_items).steps(), runtime)


def test_a_sum_that_was_not_agreed_is_refused() -> None:
    train = load_dataset("synthetic:small").train.rows(0, 40)
    agreed = PrivirecKSettings(rank=4, rounds=2)
    asked = PrivirecKSettings(rank=5, rounds=2)
    sums = program_of(agreed, train.n_users, train.n_items).sums()
    runtime = SecureInProcess(clients_of(train), sums, "secagg+")
    with pytest.raises(FederationError, match="of the plan"):
        execute(program_of(asked, train.n_users, train.n_items).steps(), runtime)
