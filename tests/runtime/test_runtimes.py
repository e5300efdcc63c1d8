"""Tests of one program in two runtimes: bit-identical components, ledgers and saved files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from privirec.data import Dataset, Interactions
from privirec.errors import FederationError, OverflowRefused, UsageError
from privirec.evaluation import evaluate
from privirec.extra.linkprop_multi import LinkPropMultiSettings
from privirec.federated.contributions import Contribution, Histories, ItemDegrees, ItemItem, base
from privirec.federated.programs import (
    HeadGramSettings,
    Privirec,
    PrivirecK,
    PrivirecKSettings,
    PrivirecSettings,
    ProgramSettings,
    SpectralSettings,
    program_of,
)
from privirec.federated.randomness import ClientRandomness
from privirec.filters import Components, LowRankOperator, SparseOperator
from privirec.models import EASE, GFCF, LinkProp, Recommender, TurboCF
from privirec.privacy.ledger import Ledger
from privirec.runtime.execute import Runtime, execute
from privirec.runtime.local.client import LocalClient, clients_of
from privirec.runtime.local.in_process import InProcess
from privirec.runtime.local.simulation import Simulation

RANK = 6
PROGRAMS = {
    "privirec, paper": Privirec.preset("paper", rank=RANK),
    "privirec, default": PrivirecSettings(rank=RANK),
    "privirec, low-pass by the server": PrivirecSettings(
        rank=RANK,
        low_pass_from="server",
    ),
    "privirec, alpha 0.6": PrivirecSettings(rank=0, alpha=0.6),
    "privirec, for linkprop": PrivirecSettings(rank=0, alpha=0.335, left=0.5, right=0.34),
    "privirec, for ease": PrivirecSettings(rank=0, alpha=0, left=0, right=0),
    "head-gram": HeadGramSettings(alpha=0, left=0, right=0, head=RANK),
    "head-gram, weighted": HeadGramSettings(alpha=0.5, head=5),
    "linkprop-multi": LinkPropMultiSettings(alpha=0.25, left=0.5, right=0.3, updates=2),
    "linkprop-multi, 12 bits": LinkPropMultiSettings(alpha=0.5, link_share=1.0, ring_bits=12),
    "privirec, 64 bits": PrivirecSettings(rank=RANK, ring_bits=64),
    "privirec, 16 bits": PrivirecSettings(rank=RANK, ring_bits=16),
    "privirec-k, paper": PrivirecK.preset("paper", rank=RANK),
    "privirec-k, rayleigh-ritz": PrivirecKSettings(rank=RANK, rounds=3),
    "spectral": SpectralSettings(rank=RANK),
    "spectral, 8 bits": SpectralSettings(rank=RANK, ring_bits=8, columns=(4, 2, 3, 1)),
    "spectral, settled": SpectralSettings(rank=RANK, columns=(4,) * 9, settle=0.1),
    "spectral, rayleigh-ritz": SpectralSettings(rank=RANK, pairs="rayleigh-ritz", block_bits=8),
    "privirec-k, from users": PrivirecKSettings(rank=RANK, rounds=3, start="users"),
}
each_program = pytest.mark.parametrize("wanted", PROGRAMS.values(), ids=PROGRAMS)


def run(
    train: Interactions, wanted: ProgramSettings, runtime: Runtime
) -> tuple[Components, Ledger]:
    return execute(program_of(wanted, train.n_users, train.n_items).steps(), runtime)


def assert_identical(first: Components, second: Components) -> None:
    np.testing.assert_array_equal(first.item_degrees, second.item_degrees)
    assert first.normalisation == second.normalisation
    assert type(first.item_item) is type(second.item_item)
    if isinstance(first.item_item, SparseOperator):
        assert isinstance(second.item_item, SparseOperator)
        for part in ("indptr", "indices", "data"):
            one, other = (getattr(c.item_item.matrix, part) for c in (first, second))
            np.testing.assert_array_equal(one, other)
    else:
        assert isinstance(first.item_item, LowRankOperator)
        assert isinstance(second.item_item, LowRankOperator)
        np.testing.assert_array_equal(first.item_item.basis, second.item_item.basis)
        np.testing.assert_array_equal(first.item_item.eigenvalues, second.item_item.eigenvalues)
    if first.basis is None or second.basis is None:
        assert first.basis is second.basis
    else:
        np.testing.assert_array_equal(first.basis, second.basis)


def a_model(components: Components) -> Recommender:
    found = components.normalisation
    if found == EASE().config.normalisation:
        return EASE(head=RANK).use(components)
    if found.alpha is None:
        return LinkProp(beta=found.left, gamma=found.user, delta=found.right).use(components)
    if components.basis is None:
        return TurboCF(alpha=found.alpha).use(components)
    return GFCF(rank=RANK).use(components)


@each_program
@pytest.mark.parametrize("n_clients", [None, 7, 1], ids=["users", "silos", "one silo"])
def test_runtimes_agree_in_every_bit(
    small: Dataset, wanted: ProgramSettings, n_clients: int | None, tmp_path: Path
) -> None:
    train = small.train
    simulated, simulated_ledger = run(train, wanted, Simulation(train))
    clients = clients_of(train, n_clients)
    real, real_ledger = run(train, wanted, InProcess(clients))
    assert_identical(simulated, real)
    assert simulated_ledger.as_rows() == real_ledger.as_rows()
    first, second = (a_model(c).save(tmp_path / n) for c, n in ((simulated, "a"), (real, "b")))
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()


@settings(max_examples=12)
@given(
    st.integers(0, 2**32),
    st.sampled_from(sorted(PROGRAMS)),
    st.integers(1, 12),
    st.integers(6, 12),
    st.sampled_from([1, 5, 30]),
)
def test_runtimes_agree_on_any_cohort_in_any_order(
    seed: int, name: str, n_users: int, n_items: int, entries: int
) -> None:
    rng = np.random.default_rng(seed)
    touched = rng.random((n_users, n_items)) < rng.choice([0.1, 0.4, 0.9])
    train = Interactions.from_matrix(touched.astype(np.float32))
    simulated, _ = run(train, PROGRAMS[name], Simulation(train))
    clients = clients_of(train, int(rng.integers(1, n_users + 1)))
    shuffled = [clients[i] for i in rng.permutation(len(clients))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "BLOCK_ENTRIES", entries)
        real, _ = run(train, PROGRAMS[name], InProcess(shuffled))
    assert_identical(simulated, real)
    for array in (simulated.basis, a_model(simulated).score(train.matrix)):
        assert array is None or np.isfinite(array).all()


@each_program
@pytest.mark.parametrize("touched", [np.zeros((3, RANK)), np.ones((1, RANK)), np.eye(RANK)])
def test_degenerate_cohorts(wanted: ProgramSettings, touched: NDArray[np.float64]) -> None:
    train = Interactions.from_matrix(touched)
    simulated, _ = run(train, wanted, Simulation(train))
    real, _ = run(train, wanted, InProcess(clients_of(train)))
    assert_identical(simulated, real)
    assert np.isfinite(a_model(real).score(train.matrix)).all()


def test_rounds_are_announced_and_every_user_counts_once(holes: Interactions) -> None:
    heard: list[str] = []
    wanted = Privirec.preset("paper", rank=RANK, rounds=3)
    asks = program_of(wanted, holes.n_users, holes.n_items).steps()
    components, _ = execute(asks, InProcess(clients_of(holes, 4)), heard.append)
    assert heard == ["item-degrees", "item-item", "user-start", "power-step", "power-step"]
    np.testing.assert_array_equal(components.item_degrees, holes.item_degrees)


def test_silos_hold_consecutive_users_and_all_of_them(holes: Interactions) -> None:
    for n_clients in range(1, holes.n_users + 1):
        held = [client.histories for client in clients_of(holes, n_clients)]
        assert len(held) == n_clients
        assert min(silo.n_users for silo in held) >= 1
        assert [silo.first_user for silo in held] == [
            sum(silo.n_users for silo in held[:i]) for i in range(n_clients)
        ]
        stacked = np.concatenate([silo.matrix.toarray() for silo in held])
        np.testing.assert_array_equal(stacked, holes.matrix.toarray())
    for impossible in (0, holes.n_users + 1):
        with pytest.raises(UsageError, match="clients for 30 users"):
            clients_of(holes, impossible)


# --- results --------------------------------------------------------------------------------------


def test_enough_rounds_give_what_one_machine_gives(small: Dataset) -> None:
    central = evaluate(GFCF(rank=7).fit(small.train), small)
    train = small.train
    wanted = PrivirecSettings(rank=7, rounds=150)
    components, _ = run(train, wanted, Simulation(train))
    federated = evaluate(GFCF(rank=7).use(components), small)
    assert central.ndcg > 0.1
    assert abs(federated.ndcg - central.ndcg) < 1e-3
    assert abs(federated.recall - central.recall) < 1e-3


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        (EASE(regularisation=5), PrivirecSettings(rank=0, alpha=0, left=0, right=0)),
        (
            EASE(regularisation=5, head=80),
            HeadGramSettings(alpha=0, left=0, right=0, head=80),
        ),
        (
            LinkProp(beta=0.5, gamma=0.67, delta=0.34),
            PrivirecSettings(rank=0, alpha=0.335, left=0.5, right=0.34, ring_bits=48),
        ),
    ],
    ids=["ease", "ease on a head", "linkprop"],
)
def test_relatives_from_federated_sums_are_those_of_one_machine(
    small: Dataset, model: Recommender, wanted: ProgramSettings
) -> None:
    train = small.train
    central = type(model)(model.config).fit(train)
    components, _ = run(train, wanted, Simulation(train))
    np.testing.assert_array_equal(components.item_degrees, central.components.item_degrees)
    federated = model.use(components).score(train.matrix)
    expected = central.score(train.matrix)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(federated, expected, atol=1e-5 * np.abs(expected).max())


def test_few_rounds_are_not_mistaken_for_many(small: Dataset) -> None:
    """Test that the test above can fail."""
    train = small.train
    exact = GFCF(rank=7).fit(train).score(train.matrix)

    def distance(rounds: int) -> float:
        wanted = PrivirecSettings(rank=7, rounds=rounds)
        components, _ = run(train, wanted, Simulation(train))
        return float(np.abs(GFCF(rank=7).use(components).score(train.matrix) - exact).max())

    assert distance(150) < 0.01 * distance(1)


def test_turbo_cf_needs_no_rounds_to_be_exact(small: Dataset) -> None:
    train = small.train
    central = TurboCF(alpha=0.6, s=0.7).fit(train).score(train.matrix)
    components, _ = run(train, PROGRAMS["privirec, alpha 0.6"], Simulation(train))
    federated = TurboCF(alpha=0.6, s=0.7).use(components).score(train.matrix)
    np.testing.assert_allclose(federated, central, rtol=1e-3, atol=1e-4)


# --- costs ----------------------------------------------------------------------------------------


def test_the_ledger_names_every_sum_and_its_bytes(small: Dataset) -> None:
    train = small.train
    users, items = train.n_users, train.n_items
    components, ledger = run(train, Privirec.preset("paper", rank=RANK), Simulation(train))
    triangle = items * (items + 1) // 2
    assert isinstance(components.item_item, SparseOperator)
    matrix = components.item_item.matrix
    filters = 8 * matrix.nnz + matrix.indptr.nbytes + 4 * items * RANK
    assert [
        (e.what, e.entries, e.ring_bits, e.bytes_up_per_client, e.bytes_down_per_client)
        for e in ledger.entries
    ] == [
        ("item-degrees", items, users.bit_length(), -(-items * users.bit_length() // 8), 0),
        ("item-degrees", 0, 0, 0, 4 * items),
        ("item-item", triangle, 32, 4 * triangle, 8),
        ("user-start", items * RANK, 32, 4 * items * RANK, 4 * users * RANK),
        ("power-step", items * RANK, 32, 4 * items * RANK, 4 * items * RANK),
        ("filters", 0, 0, 0, filters),
    ]
    assert ledger.bytes_up == sum(entry.bytes_up_per_client for entry in ledger.entries)
    assert ledger.bytes_down == sum(entry.bytes_down_per_client for entry in ledger.entries)
    assert {e.revealed_to for e in ledger.entries if e.entries} == {"server"}
    assert {e.revealed_to for e in ledger.entries if not e.entries} == {"every client"}
    # The format of manifests in all versions.
    assert {row["noise"] for row in json.loads(json.dumps(ledger.as_rows()))} == {"none"}
    assert all(row["gives_away"] for row in ledger.as_rows() if row["entries"])


def test_rank_decides_what_privirec_k_costs(small: Dataset) -> None:
    train = small.train
    _, ledger = run(train, PROGRAMS["privirec-k, rayleigh-ritz"], Simulation(train))
    names = [entry.what for entry in ledger.entries]
    assert names == ["item-degrees"] * 2 + ["seeded-step", "power-step", "power-step", "filters"]
    degrees = ledger.entries[0].bytes_up_per_client
    assert ledger.bytes_up == degrees + 3 * 4 * train.n_items * RANK
    down = 4 * train.n_items + 32 + 2 * 4 * train.n_items * RANK + 4 * (train.n_items + 1) * RANK
    assert ledger.bytes_down == down


def test_overhead_is_added_to_the_payload() -> None:
    ledger = Ledger()
    ledger.add_sum(ItemDegrees(10, 255), overhead_up=100, overhead_down=1000)
    assert (ledger.bytes_up, ledger.bytes_down) == (110, 1000)


@pytest.mark.parametrize("make", [Simulation, lambda train: InProcess(clients_of(train))])
def test_a_ring_too_narrow_ends_the_run_before_the_sum(small: Dataset, make: type) -> None:
    ledger = Ledger()
    ask = ItemItem(small.train.n_items, int(small.train.item_degrees.max()), width=8)
    with pytest.raises(OverflowRefused, match="8-bit ring is too narrow"):
        make(small.train).sum(ask, ledger)
    assert ledger.entries == []


# --- refusals by a client -------------------------------------------------------------------------


@dataclass(frozen=True)
class Spoof(ItemDegrees):
    """A sum that calls itself item-degrees and asks for the history itself."""

    def blocks(self, histories: Histories) -> Iterator[NDArray[np.int64]]:
        yield histories.matrix.indices.astype(np.int64)


@dataclass(frozen=True)
class Unknown(ItemDegrees):
    name = "everything"  # type: ignore[misc]


@pytest.mark.parametrize("ask", [Spoof(17, 30), Unknown(17, 30)])
def test_only_registered_contributions_are_computed(holes: Interactions, ask: Contribution) -> None:
    (client, *_) = clients_of(holes)
    with pytest.raises(FederationError, match="not in the registry"):
        list(client.answer(ask, 1))


def test_other_catalogues_are_refused(holes: Interactions) -> None:
    (client, *_) = clients_of(holes)
    for ask in (ItemDegrees(18, 30), ItemItem(16, 5)):
        with pytest.raises(FederationError, match="another catalogue"):
            list(client.answer(ask, 1))


def test_a_client_does_not_print_what_it_holds(holes: Interactions) -> None:
    assert (
        repr(LocalClient(Histories(holes.matrix), ClientRandomness.fresh()))
        == "LocalClient(<redacted>)"
    )


def test_an_answer_is_whole_numbers(holes: Interactions) -> None:
    client = LocalClient(Histories(holes.matrix), ClientRandomness.fresh())
    (answer,) = client.answer(ItemDegrees(holes.n_items, holes.n_users), 1)
    assert answer.dtype == np.int64
    np.testing.assert_array_equal(answer, holes.item_degrees)
