"""Set up hypothesis, temporary folders and small data sets for all tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from privirec import threads
from privirec.data import Dataset, Interactions
from privirec.data.synthetic import synthetic

# Compiled kernels make the first example slow, so no deadline; few examples, so that CI has time
# for all of the property tests. PRIVIREC_EXAMPLES=200 make unit looks further.
settings.register_profile(
    "privirec",
    deadline=None,
    max_examples=int(os.environ.get("PRIVIREC_EXAMPLES", "10")),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("privirec")

# Clients and servers wait for the disk at every step, which takes most of a federation's time.
# No test is about the disk itself, so the files are in memory where there is room.
MEMORY_DISK = Path("/dev/shm")  # noqa: S108
if os.access(MEMORY_DISK, os.W_OK) and shutil.disk_usage(MEMORY_DISK).free > 2 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY_DISK))

FIRST = (
    # The slowest files first, so that no worker is left with one of them at the end.
    *(
        "test_programs.py",
        "test_paths.py",
        "test_first_model.py",
        "test_flower.py",
        "test_unlike_machines.py",
    ),
    # Files whose kernels take about 15 seconds to compile, and are used by other files too.
    "test_peeling.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slow files before all others."""
    items.sort(key=lambda item: item.path.name not in FIRST)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Use a single thread: on arrays this small, several threads are ten times slower."""
    with threads.limit(1):
        yield


@pytest.fixture(scope="session")
def small() -> Dataset:
    """Return a data set of about 200 users and 300 items, with communities."""
    return synthetic("synthetic:small")


@pytest.fixture(scope="session")
def holes() -> Interactions:
    """Return random histories in which user 0 has no items and item 2 has no users."""
    rng = np.random.default_rng(1)
    touched = rng.random((30, 17)) < 0.25
    touched[0] = False
    touched[:, 2] = False
    return Interactions.from_matrix(touched.astype(np.float32))
