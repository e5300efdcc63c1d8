"""Faults at every write of a process: it dies there, or the disk is full.

The trap sees writes below all buffers: files opened for writing, each `write` and `truncate` of
them, `fsync`, and names that are created, replaced or removed. Inside SQLite it sees the system
calls of SQLite's VFS. `kernel_writes` shows whether it has seen every write.
"""

from __future__ import annotations

import _sqlite3  # to find the path of the SQLite library in use
import builtins
import ctypes
import errno
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any
from unittest import mock

from privirec.federated import kernels as federated_kernels
from privirec.filters import kernels as filter_kernels

KILLED = 9
_AUDITED = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate")
_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Fault(Enum):
    """Fault at a write."""

    KILL = "killed before it"
    KILL_HALFWAY = "killed in the middle of it"
    FULL = "no room for it"
    FULL_HALFWAY = "room for half of it"
    FULL_FROM_NOW_ON = "no room for it or anything later"

    @property
    def kills(self) -> bool:
        return self in (Fault.KILL, Fault.KILL_HALFWAY)

    @property
    def halfway(self) -> bool:
        return self in (Fault.KILL_HALFWAY, Fault.FULL_HALFWAY)


class Trap:
    """Counter of writes that makes one of them fail, or all from a given one on."""

    def __init__(self, at: int = 1 << 60, fault: Fault = Fault.KILL) -> None:
        self.at = at
        self.fault = fault
        self.seen: list[str] = []

    @property
    def sprung(self) -> bool:
        return len(self.seen) > self.at

    @property
    def writes(self) -> int:
        """Number of writes of bytes into a file."""
        return self.seen.count("write")

    def passes(self, what: str) -> bool:
        """Return True if this write succeeds; kill the process if it is to die before it."""
        place = len(self.seen)
        self.seen.append(what)
        goes_wrong = place == self.at or (
            place > self.at and self.fault is Fault.FULL_FROM_NOW_ON and what != "os.remove"
        )
        if goes_wrong and self.fault is Fault.KILL:
            os._exit(KILLED)
        return not goes_wrong

    def visit(self, what: str) -> None:
        """Let a call that cannot fail halfway succeed or fail."""
        if not self.passes(what):
            if self.fault.kills:
                os._exit(KILLED)
            raise no_room()


def no_room() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


_trap: Trap | None = None


def _audited(event: str, arguments: tuple[Any, ...]) -> None:
    if _trap is None:
        return
    if event in _AUDITED:
        _trap.visit(event)
    elif event == "open" and not isinstance(arguments[0], int) and arguments[2] & _TO_WRITE:
        _trap.visit("open")


class _WatchedFile(io.FileIO):
    def write(self, content: Any) -> int:
        assert _trap is not None
        if _trap.passes("write"):
            return super().write(content)
        if _trap.fault.halfway:
            super().write(bytes(content)[: len(content) // 2])
        if _trap.fault.kills:
            os._exit(KILLED)
        raise no_room()

    def truncate(self, size: int | None = None) -> int:
        assert _trap is not None
        _trap.visit("truncate")
        return super().truncate(size)


_real_open, _real_fsync = io.open, os.fsync


def _open(file: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
    if "b" not in mode or not set(mode) & set("wxa+"):
        return _real_open(file, mode, *more, **options)
    raw = _WatchedFile(file, mode)
    return io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)


def _fsync(descriptor: int) -> None:
    assert _trap is not None
    _trap.visit("fsync")
    _real_fsync(descriptor)


# --- SQLite's own system calls --------------------------------------------------------------------

_libc = ctypes.CDLL(None, use_errno=True)
_INT, _SIZE, _POINTER, _TEXT = ctypes.c_int, ctypes.c_ssize_t, ctypes.c_void_p, ctypes.c_char_p
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "open": (_INT, _TEXT, _INT, _INT),
    "write": (_SIZE, _INT, _POINTER, _SIZE),
    "pwrite": (_SIZE, _INT, _POINTER, _SIZE, ctypes.c_int64),
    "pwrite64": (_SIZE, _INT, _POINTER, _SIZE, ctypes.c_int64),
    "ftruncate": (_INT, _INT, ctypes.c_int64),
    "unlink": (_INT, _TEXT),
}


class _Vfs(ctypes.Structure):
    _fields_ = [
        *[(name, _INT) for name in ("iVersion", "szOsFile", "mxPathname")],
        *[(name, _POINTER) for name in ("pNext", "zName", "pAppData")],
        *[(f"method{number}", _POINTER) for number in range(13)],
        ("xSetSystemCall", ctypes.CFUNCTYPE(_INT, _POINTER, _TEXT, _POINTER)),
        ("xGetSystemCall", ctypes.CFUNCTYPE(_POINTER, _POINTER, _TEXT)),
    ]


def _watching(name: str, signature: tuple[Any, ...]) -> Any:
    """Return a function that replaces a system call of SQLite."""
    kind = ctypes.CFUNCTYPE(*signature, use_errno=True)
    real = kind((name, _libc))
    what = "write" if "write" in name else f"sqlite {name}"

    def called(*arguments: Any) -> int:
        trap = _trap
        if trap is None or (name == "open" and not arguments[1] & _TO_WRITE):
            return int(real(*arguments))
        if trap.passes(what):
            return int(real(*arguments))
        if what == "write" and trap.fault.halfway:
            descriptor, content, size, *offset = arguments
            real(descriptor, content, size // 2, *offset)
        if trap.fault.kills:
            os._exit(KILLED)
        ctypes.set_errno(errno.ENOSPC)
        return -1

    return kind(called)


_watchers = {name: _watching(name, signature) for name, signature in _SIGNATURES.items()}


def _vfs() -> Any:
    find = ctypes.CDLL(_sqlite3.__file__).sqlite3_vfs_find
    find.restype = ctypes.POINTER(_Vfs)
    return find(None)


@contextmanager
def _sqlite_watched() -> Iterator[None]:
    vfs = _vfs()
    before = {}
    for name, watcher in _watchers.items():
        before[name] = vfs.contents.xGetSystemCall(vfs, name.encode())
        if before[name]:
            new = ctypes.cast(watcher, _POINTER)
            assert vfs.contents.xSetSystemCall(vfs, name.encode(), new) == 0
    try:
        yield
    finally:
        for name, old in before.items():
            if old:
                vfs.contents.xSetSystemCall(vfs, name.encode(), old)


# --- the whole process ----------------------------------------------------------------------------


@contextmanager
def watched(trap: Trap) -> Iterator[Trap]:
    """Pass every write of this process through the trap."""
    global _trap  # noqa: PLW0603 - audit hooks stay for good
    if not getattr(sys, "_privirec_writes_are_audited", False):
        sys.addaudithook(_audited)
        sys._privirec_writes_are_audited = True  # type: ignore[attr-defined]
    with (
        _sqlite_watched(),
        mock.patch.object(os, "fsync", _fsync),
        mock.patch.object(io, "open", _open),
        mock.patch.object(builtins, "open", _open),
    ):
        _trap = trap
        try:
            yield trap
        finally:
            _trap = None


def kernel_writes() -> int:
    """Return the number of write system calls of this process, by any route."""
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["syscw"])


def in_a_process_of_its_own(work: Callable[[], bytes], trap: Trap) -> bytes | None:
    """Return the result of the work in a child process, or None if the trap killed the process."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads: the child needs none of them
        child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(read_end)
            _without_compiled_kernels()
            with watched(trap):
                found = work()
            with os.fdopen(write_end, "wb") as pipe:
                pipe.write(found)
            code = 0
        finally:
            os._exit(code)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        found = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, KILLED), f"the process ended with {code}"
    return found if code == 0 else None


def _without_compiled_kernels() -> None:
    """Replace compiled kernels, whose threads do not survive a fork, by equal loops in Python."""
    for module in (federated_kernels, filter_kernels):
        for name, found in vars(module).items():
            if hasattr(found, "py_func"):
                setattr(module, name, found.py_func)
