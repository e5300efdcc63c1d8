"""Tests of the limits on opened sums, and of aimed blocks.

Opened shares add up over the items in use and over the life of a client. Without the guard each
attack reads histories; with it the attack is refused.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from privirec.errors import FederationError
from privirec.federated.contributions.outer import OuterProducts
from privirec.federated.programs import PrivirecKSettings, power
from privirec.filters import eigen
from privirec.privacy.attacks.peeling import peel
from privirec.privacy.policy import Policy, allowing
from privirec.runtime.coordinator import Stage
from privirec.runtime.node.memory import Memory
from privirec.runtime.refusals import Code

from .chaos import EXACT
from .silos import Silos, refusals, run, sums_opened
from .test_node import Talk, refused
from .test_people import codes

ALLOWED = allowing(EXACT)
WIDE = allowing(EXACT, largest_item_share=1, largest_item_leverage=1)
LONGEST = 8
MULTIPLE = 840
"""Common multiple of the lengths 1 to 8: times a weight 1/d it is an integer."""


def histories(rng: np.random.Generator, users: int, items: int, in_use: int) -> np.ndarray:
    """Return short histories over the first items, each of which at least one user has."""
    touched = np.zeros((users, items), bool)
    for user in range(users):
        length = int(rng.integers(3, LONGEST + 1))
        touched[user, rng.choice(in_use, length, replace=False)] = True
    for item in range(in_use):
        if not touched[:, item].any():
            touched[int(rng.integers(users)), item] = True
    assert touched.sum(axis=1).max() <= LONGEST + 4
    return touched


def silos(folder: Path, touched: np.ndarray, policy: Policy = ALLOWED, **settings: Any) -> Silos:
    parts = np.array_split(touched, 3)
    return Silos(folder, parts, policy, program=PrivirecKSettings(**settings))


def item_item(seen: list[tuple[Any, Any]], used: np.ndarray) -> np.ndarray:
    """Solve for P' between the items in use: symmetric, with P' W = Y for every block."""
    m = len(used)
    places = np.zeros((m, m), int)
    upper = np.triu_indices(m)
    places[upper] = places.T[upper] = np.arange(len(upper[0]))
    blocks = [(np.ones((m, 1)), seen[0][1][used, None].astype(float))]  # P' 1 = V
    for ask, total in seen[1:]:
        if hasattr(ask, "item_degrees"):
            step = getattr(ask, "step", ask)
            w = np.ldexp(step.block.astype(float), -step.block_bits)[used]
            blocks.append((w, ask.encoding.decode(total)[used]))
        else:
            blocks.append((np.ones((m, 1)), total[used, None].astype(float)))
    w, y = (np.concatenate([block[side] for block in blocks], axis=1) for side in (0, 1))
    equations = np.zeros((m * w.shape[1], m * (m + 1) // 2))
    for row in range(m):
        rows = slice(row * w.shape[1], (row + 1) * w.shape[1])
        for column in range(m):
            equations[rows, places[row, column]] += w[column]
    solved = np.linalg.lstsq(equations, y.reshape(-1), rcond=None)[0]
    return solved[places]


def recovered(seen: list[tuple[Any, Any]]) -> list[tuple[int, ...]]:
    """Recover histories from the opened sums: P' by least squares, then peeling."""
    degrees = seen[0][1].astype(np.int64)
    used = np.flatnonzero(degrees)
    lengths = np.arange(13)
    multiple = MULTIPLE * 11 * 9 * 3  # a multiple of every length up to 12
    exact = np.rint(item_item(seen, used) * multiple).astype(np.int64)
    weights = np.zeros(len(lengths), np.int64)
    weights[1:] = multiple // lengths[1:]
    peeled = peel(degrees[used], sp.csr_array(exact), weights)
    return sorted(
        tuple(used[peeled.indices[first:last]].tolist())
        for first, last in zip(peeled.indptr, peeled.indptr[1:], strict=False)
    )


def true_histories(touched: np.ndarray) -> list[tuple[int, ...]]:
    return sorted(tuple(np.flatnonzero(row).tolist()) for row in touched)


# --- few items in use -----------------------------------------------------------------------------


def test_one_run_over_few_items_in_use_gives_whole_histories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """56 of 2,000 items are in use; by the catalogue, the run opens an eighth of the matrix."""
    touched = histories(np.random.default_rng(5), 72, 2000, 56)
    with monkeypatch.context() as off:
        off.setattr(OuterProducts, "items_in_use", OuterProducts.n_items)
        seen, talk = run(silos(tmp_path / "off", touched, WIDE, rank=64, rounds=2), "server")
        assert talk.server.stage is Stage.COMPUTED
    found = recovered(seen)
    assert found == true_histories(touched)

    guarded = silos(tmp_path / "on", touched, rank=64, rounds=2)
    talk = Talk(guarded)
    talk.until("input", 2)  # only item degrees are open; now the clients know the items in use
    assert codes(guarded, talk) == {Code.OPENED_TOO_MUCH}
    assert not list(tmp_path.glob("on/client-*/runs/*/upload-4"))


# --- many runs ------------------------------------------------------------------------------------


def test_runs_that_differ_in_their_seed_give_whole_histories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run alone opens less than half of the matrix."""
    touched = histories(np.random.default_rng(6), 60, 40, 40)

    def runs(federation: Silos, count: int) -> tuple[list[Any], list[Talk]]:
        seen: list[Any] = []
        talks = []
        for seed in range(count):
            settings = PrivirecKSettings(rank=4, rounds=2, seed=seed)
            spec = federation.spec.model_copy(update={"program": settings})
            more, talk = run(federation, f"server {seed}", spec=spec)
            seen, talks = seen + more, [*talks, talk]
        return seen, talks

    with monkeypatch.context() as off:
        off.setattr(Memory, "opened_share", lambda _: 0.0)
        seen, _ = runs(silos(tmp_path / "off", touched), 5)
    assert len(seen) == 15
    assert recovered(seen) == true_histories(touched)

    guarded = silos(tmp_path / "on", touched)
    seen, talks = runs(guarded, 3)
    assert len(seen) == 3  # of the first run
    assert all(talk.server.stage is Stage.STOPPED for talk in talks[1:])
    (said,) = refusals(talks[1])
    assert "with those of earlier runs, open 0.88 times the numbers" in said
    again = Talk(guarded, name="again", spec=talks[0].server.spec)
    again.until("advertise")
    assert codes(guarded, again) == {Code.OPENED_TOO_MUCH}  # by the plan alone


def test_what_was_opened_is_counted_with_the_upload_and_once(tmp_path: Path) -> None:
    touched = histories(np.random.default_rng(6), 60, 40, 40)
    federation = silos(tmp_path, touched, allowing(EXACT, largest_opened_share=9), rank=4)
    talk = Talk(federation)
    memory = Memory(tmp_path / "client-0/runs")
    shares = []
    for number in (1, 2, 3):
        talk.until("input", number)
        shares.append(memory.opened_share())
        message = talk.message_for(0)
        federation.node(0).answer(message)
        federation.node(0).answer(message)
    shares.append(memory.opened_share())
    assert np.allclose(shares, np.array([0, 1, 5, 9]) * 40 / 820)


def test_a_memory_of_an_earlier_version_is_refused_in_one_line(tmp_path: Path) -> None:
    """Older versions did not record opened sums or spoilt runs."""
    Memory(tmp_path).close()
    with sqlite3.connect(tmp_path / "memory.db") as database:
        database.execute("PRAGMA user_version = 1")
    with pytest.raises(FederationError, match="did not remember all") as error:
        Memory(tmp_path)
    assert "\n" not in str(error.value)


# --- aimed blocks ---------------------------------------------------------------------------------

GROUP = 20
"""Number of items with powers of two in one column."""


def aimed(item_degrees: np.ndarray) -> np.ndarray:
    """Return X = V^1/2 W with orthonormal columns, where the entries of W are powers of two."""
    items = len(item_degrees)
    w = np.zeros((items, -(-items // GROUP)))
    w[np.arange(items), np.arange(items) // GROUP] = 2.0 ** (np.arange(items) % GROUP)
    x = w * np.sqrt(item_degrees)[:, None]
    return x / np.linalg.norm(x, axis=0)


def read_row(values: np.ndarray, w: np.ndarray) -> tuple[int, ...]:
    """Return the history whose mean of W is q: for some length, the powers that add up to it."""
    smallest = np.where(w > 0, w, np.inf).min(axis=0)
    for length in range(1, 20):
        left, items = values * length, []
        for item in reversed(range(len(w))):
            column = item // GROUP
            if left[column] > w[item, column] - smallest[column] / 2:
                left[column] -= w[item, column]
                items.append(item)
        if len(items) == length and (np.abs(left) < 0.2 * smallest).all():
            return tuple(sorted(items))
    return ()


def rare(rng: np.random.Generator) -> np.ndarray:
    """Return histories of 300 people over 200 items, 91 of which only one person has."""
    touched = np.zeros((300, 200), bool)
    touched[:, :109] = rng.random((300, 109)) < 0.05
    touched[np.arange(91), np.arange(109, 200)] = True
    touched[touched.sum(axis=1) == 0, 0] = True
    return touched


def test_a_block_of_powers_of_two_reads_every_row_of_one_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched = rare(np.random.default_rng(8))
    off = silos(tmp_path / "off", touched, WIDE, rank=200 // GROUP, rounds=2)
    monkeypatch.setattr(power, "orthonormalize", lambda _: (aimed(touched.sum(axis=0)), 0))
    talk = Talk(off)
    with sums_opened() as seen:
        talk.until("input", 3)
        with suppress(Exception):  # the server has what it wants, and no model
            for _ in range(6):
                talk.step()
    ask, total = seen[2]
    w = np.ldexp(ask.block.astype(float), -ask.block_bits)
    alone = np.flatnonzero(seen[0][1] == 1)
    assert len(alone) == 91
    rows = ask.encoding.decode(total)[alone]
    read = [read_row(row, w) for row in rows]
    assert read == [tuple(np.flatnonzero(touched[touched[:, i]][0]).tolist()) for i in alone]

    guarded = silos(tmp_path / "on", touched, rank=200 // GROUP, rounds=2)
    talk = Talk(guarded)
    talk.until("input", 3)
    assert codes(guarded, talk) == {Code.AIMED_BLOCK}


def test_a_block_that_is_not_orthonormal_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded = silos(tmp_path, rare(np.random.default_rng(8)), rank=4, rounds=2)
    monkeypatch.setattr(power, "orthonormalize", lambda x: (eigen.orthonormalize(x)[0] * 1.01, 0))
    talk = Talk(guarded)
    talk.until("input", 3)
    reply = guarded.node(0).answer(talk.message_for(0))
    refused(reply, "columns are not orthonormal", Code.BAD_ASK, final=True)
