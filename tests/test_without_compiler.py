"""Tests of devices without a compiler and without SciPy: bit-identical results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from privirec import compiled
from privirec.data.few_rows import FewRows
from privirec.data.interactions import Interactions
from privirec.federated import kernels, kernels_in_numpy
from privirec.federated.contributions import Candidate, Histories
from privirec.federated.contributions.noisy import NoiseShare, NoisyPopularity
from privirec.federated.contributions.noisy_gram import NoisyHeadGram
from privirec.federated.contributions.noisy_power import NoisyPowerStep
from privirec.federated.dp import sampler_in_numpy, sampler_loops
from privirec.federated.dp.sampler import GaussianNoise
from privirec.federated.programs import SpectralValidationSettings, program_of
from privirec.federated.randomness import ClientRandomness
from privirec.runtime.execute import execute
from privirec.runtime.local.client import clients_of
from privirec.runtime.local.in_process import InProcess
from privirec.secagg import ring_in_numpy, ring_loops
from privirec.secagg.ring import Ring

seeds = st.integers(0, 2**32 - 1)


def histories(rng: np.random.Generator, users: int = 4, items: int = 23) -> sp.csr_array:
    return sp.csr_array((rng.random((users, items)) < 0.3).astype(np.float32))


@given(st.integers(1, 64), st.integers(0, 40), seeds)
def test_words_are_packed_alike(width: int, entries: int, seed: int) -> None:
    ring = Ring(width)
    words = np.random.default_rng(seed).integers(0, 1 << 63, entries).astype(ring.dtype)
    words = words * ring.dtype.type(3)
    size = (ring.packed_bytes(entries) + 3) // 4
    found, expected = np.zeros(size, "<u4"), np.zeros(size, "<u4")
    ring_in_numpy.pack(words, width, found)
    ring_loops.pack(words, width, expected)
    np.testing.assert_array_equal(found, expected)
    back, expected_back = np.empty(entries, ring.dtype), np.empty(entries, ring.dtype)
    ring_in_numpy.unpack(found, width, back)
    ring_loops.unpack(found, width, expected_back)
    np.testing.assert_array_equal(back, expected_back)


@given(st.sampled_from([8, 64, 700]), st.sampled_from([1, -1, 128]), seeds)
@pytest.mark.parametrize("dtype", [np.int64, np.uint16])
def test_noise_is_drawn_alike(dtype: Any, deviation: int, factor: int, seed: int) -> None:
    table = GaussianNoise(deviation).table
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 1 << 32, 500, dtype=np.uint32)
    # Words that leave the draw undecided: the first bits equal those of the threshold.
    cell = rng.integers(0, len(table.cells), 50).astype(np.uint32)
    bits = np.uint32(table.cell_bits)
    words[:50] = cell << (np.uint32(32) - bits) | table.cells[cell] >> bits
    drawn = rng.integers(0, 1 << 63, (500, 2)).astype(np.uint64)
    drawn[:10] = table.fine[cell[:10]]
    results = []
    for module in (sampler_in_numpy, sampler_loops):
        piece, undecided = np.arange(500).astype(dtype), np.empty(500, np.int64)
        count = module.add_decided(
            piece, words, table.cells, table.cell_bits, table.largest, factor, undecided
        )
        where = undecided[:count]
        module.add_undecided(
            piece, words, where, drawn[where], table.cells, table.fine, table.largest, factor
        )
        results.append((piece, where.copy()))
    for found, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert len(results[0][1]) >= 50


@given(seeds)
def test_loops_over_histories_are_alike(seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = histories(rng)
    by_item = sp.csr_array(matrix.T)
    users, items = matrix.shape
    block = rng.integers(-(2**31), 2**31, (items, 5)).astype(np.int32)
    weights = rng.integers(1, 2**20, items)
    user_weights = rng.integers(0, 2**40, users)
    rows = (matrix.indptr, matrix.indices)
    both = (by_item.indptr, by_item.indices, *rows)
    first, last = sorted(rng.integers(0, items + 1, 2).tolist())
    length = sum(items - item for item in range(first, last))
    scales = kernels.unit_pair_scales(*rows, weights, 2.0**30)
    np.testing.assert_array_equal(
        kernels_in_numpy.unit_pair_scales(*rows, weights, 2.0**30), scales
    )
    calls: list[tuple[str, tuple[Any, ...], Any]] = [
        ("sum_rows", (*rows, block), np.ones((users, 5), np.int64)),
        ("mean_rows", (*rows, block, 2.0**7), np.ones((users, 5), np.int64)),
        (
            "sum_scaled_rows",
            (
                by_item.indptr,
                by_item.indices,
                np.arange(items + 4) % items,
                np.repeat([0, 7], [items, 4]),
                rng.integers(-(2**31), 2**31, (users, 5)),
                rng.integers(0, 2**31, items),
                38,
                rng.integers(0, 2**64, dtype=np.uint64),
                int(rng.integers(0, 2**40)),
                int(rng.integers(0, 2**20)),
            ),
            np.ones((items + 4, 5), np.int64),
        ),
        ("add_squares", (block, rng.random(items)), rng.random(5)),
        (
            "add_triangle_rows",
            (first, last, *both, user_weights, items),
            np.ones(length, np.int64),
        ),
        ("add_pair_rows", (first, last, *both, weights, scales), np.ones(length, np.int64)),
        ("add_unit_rows", (*rows, block, weights, 2.0**30), np.ones((items, 5), np.int64)),
    ]
    for name, given_arguments, out in calls:
        found, expected = out.copy(), out.copy()
        getattr(kernels_in_numpy, name)(*given_arguments, found)
        getattr(kernels, name)(*given_arguments, expected)
        np.testing.assert_array_equal(found, expected, name)


@given(seeds)
def test_few_rows_are_a_sparse_matrix(seed: int) -> None:
    rng = np.random.default_rng(seed)
    users, items = int(rng.integers(1, 5)), int(rng.integers(1, 12))
    count = int(rng.integers(0, 30))
    rows, columns = rng.integers(0, users, count), rng.integers(0, items, count)
    shape = (users, items)
    expected = Interactions.from_indices(rows, columns, np.arange(users), np.arange(items)).matrix
    found = FewRows.from_entries(rows, columns, shape)
    chosen = np.flatnonzero(rng.random(items) < 0.5)
    active = rng.random(users) < 0.5
    pairs = [
        (found, expected),
        (found.T, sp.csr_array(expected.T)),
        (found[:, chosen], sp.csr_array(expected[:, chosen])),
        (found[active], expected[active]),
        (found[0:1], expected[0:1]),
    ]
    for one, other in pairs:
        assert one.shape == other.shape
        assert one.nnz == other.nnz
        np.testing.assert_array_equal(one.indptr, other.indptr)
        np.testing.assert_array_equal(one.indices, other.indices)
        np.testing.assert_array_equal(one.data, other.data)
    np.testing.assert_array_equal(found.tocoo().row, expected.tocoo().row)
    np.testing.assert_array_equal(found.tocoo().col, expected.tocoo().col)
    with pytest.raises(ValueError, match="outside"):
        FewRows.from_entries(np.array([users]), np.array([0]), shape)


@given(seeds)
def test_one_person_sends_the_same(seed: int) -> None:
    """Test the sums of the program for devices, noise included."""
    rng = np.random.default_rng(seed)
    items = np.flatnonzero(rng.random(40) < 0.4)
    names = (np.array(["me"]), np.arange(40))
    share = NoiseShare(20, 100, 80, 12)
    fixed: dict[str, Any] = {"n_items": 40, "n_users": 100, **vars(share)}
    head, weights = np.arange(0, 40, 2), rng.integers(1, 1000, 20)
    block = rng.integers(-1000, 1000, (20, 3)).astype(np.int32)
    asks = [
        NoisyPopularity(**fixed),
        NoisyHeadGram(**fixed, items=head, weights=weights),
        NoisyPowerStep(**fixed, items=head, weights=weights, block=block),
    ]
    sent = []
    for light in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(compiled._state, "compile", not light)
            own = Interactions.from_indices(np.zeros(len(items), int), items, *names)
            assert isinstance(own.matrix, FewRows) is light
            sent.append(
                [
                    np.concatenate(
                        list(
                            ask.blocks(
                                Histories(own.matrix, 0), ClientRandomness(bytes(32)).stream(1, "a")
                            )
                        )
                    )
                    for ask in asks
                ]
            )
            prints = own.fingerprint()
    for found, expected in zip(*sent, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert (
        prints == Interactions.from_indices(np.zeros(len(items), int), items, *names).fingerprint()
    )


def test_one_person_takes_the_steps_of_spectral_and_validates_alike() -> None:
    """Test from the first sum to the metrics of the held-out items."""
    rng = np.random.default_rng(5)
    rows, columns = np.nonzero(rng.random((12, 30)) < 0.4)
    names = (np.arange(12), np.arange(30))
    settings = SpectralValidationSettings(
        rank=4,
        columns=(6, 6),
        candidates=(Candidate(rank=4, history_exponent=0.5, item_exponent=0.5),),
    )
    found = []
    for light in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(compiled._state, "compile", not light)
            train = Interactions.from_indices(rows, columns, *names)
            assert isinstance(train.matrix, FewRows) is light
            program = program_of(settings, 12, 30)
            clients = InProcess(clients_of(train, 12, 3, program.held_out))
            components, ledger = execute(program.steps(), clients)
            found.append((components.basis, (ledger.as_rows(), program.found())))
    (basis, more), (light_basis, light_more) = found
    assert more == light_more
    np.testing.assert_array_equal(basis, light_basis)


# --- the process ----------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_client_starts_without_the_compiler_and_without_scipy() -> None:
    """Test also that modules imported later work as usual."""
    program = """
import sys
sys.argv = ["privirec", "client", "up", "nowhere"]
from privirec.app.cli import start
try:
    start()
except SystemExit as stop:
    assert stop.code == 2
from privirec.runtime.https import client
import httpcore
import privirec.device.installed
loaded = {name.split(".")[0] for name, module in sys.modules.items() if module is not None}
heavy = {"numba", "llvmlite", "matplotlib", "flwr", "typer", "rich", "click"}
assert not loaded & (heavy | {"asyncio", "anyio"}), loaded
assert not {"scipy.sparse._base", "numpy.ma"} & sys.modules.keys()
(peak,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print("PEAK", int(peak) // 1024)
import scipy.sparse as sp
import scipy.sparse.linalg
from scipy.sparse import csgraph
assert sp.csr_array([[1, 0]]).nnz == 1 and csgraph.connected_components
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "nowhere: no such folder" in done.stderr
    peak = int(done.stdout.split("PEAK")[1].split()[0])
    assert peak < 72, f"{peak} MB before it has done anything; a run needs some too"


@pytest.mark.check
def test_people_hear_that_loops_are_compiled_once(tmp_path: Path) -> None:
    """Test with an empty cache and with a warm one, at a terminal."""
    script = (
        "import sys; sys.stderr.isatty = lambda: True\n"
        "import numpy as np\n"
        "from privirec.filters.operators import kernels\n"
        "for _ in range(2): kernels.aligned((2, 2)), kernels.top_items("
        "np.eye(2, dtype=np.float32), np.zeros((2, 1), np.int64), np.zeros((2, 1), np.float32))\n"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stderr
        for _ in range(2)
    ]
    assert said[0].count("compiling loops") == 1
    assert said[1] == ""


def test_loops_are_compiled_where_nothing_can_be_kept(tmp_path: Path) -> None:
    """Test a read-only installation and a user without a home: no place for the cache."""
    script = (
        "from privirec.filters.operators import kernels\nprint(kernels.top_items._cache.cache_path)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ
        | {"NUMBA_CACHE_LOCATOR_CLASSES": "IPythonCacheLocator", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(str(tmp_path / "privirec-loops-"))
    assert not list(tmp_path.iterdir())
