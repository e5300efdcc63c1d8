"""One limit on the number of threads for both BLAS and compiled kernels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numba
from threadpoolctl import threadpool_limits


def available() -> int:
    """Return the number of cores that this process may use."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # exists on Linux only
        cores = os.cpu_count() or 1
    return min(cores, int(numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]


@contextmanager
def one_kernel_thread() -> Iterator[None]:
    """Run compiled loops on one thread, for many small calls that do not repay a second one."""
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        yield
    finally:
        numba.set_num_threads(before)


@contextmanager
def limit(threads: int | None) -> Iterator[int]:
    """Run the body with this number of threads, or one per core if None."""
    wanted = available() if threads is None else max(1, min(threads, available()))
    before = numba.get_num_threads()
    numba.set_num_threads(wanted)
    try:
        with threadpool_limits(limits=wanted):
            yield wanted
    finally:
        numba.set_num_threads(before)
