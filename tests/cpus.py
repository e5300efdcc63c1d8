"""Emulate other CPUs in a child process.

NumPy selects its loops, and OpenBLAS its matrix products, by the features of the CPU. The C library
has one version of exp, log and pow for CPUs with fused multiplication and one for those without.
Numba compiles for the CPU that it finds. All of them read their settings when a process starts, so
each emulated machine is a process with its own environment.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import threadpoolctl

try:
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__
except ImportError:  # NumPy 1
    from numpy.core._multiarray_umath import (  # type: ignore[no-redef]
        __cpu_dispatch__,
        __cpu_features__,
    )

HERE = Path(__file__).parent
_SWITCHES = (
    *("OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES", "GLIBC_TUNABLES"),
    *("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"),
)
_WIDE = [name for name in __cpu_dispatch__ if name.startswith("AVX512") or name == "X86_V4"]
_TELL = "import json, cpus; print(json.dumps(cpus.taken_for()))"
_NO_WIDE = "-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ"


@dataclass(frozen=True)
class Machine:
    """A kind of CPU that this one can emulate."""

    name: str
    blas: str = ""
    """CPU type whose matrix products OpenBLAS uses; empty for OpenBLAS's own choice."""
    without: Sequence[str] = ()
    """NumPy loops to disable."""
    libm: str = ""
    """CPU features to hide from the C library."""
    compiled_for: str = ""
    """LLVM's name of the CPU to compile for."""
    needs: str = ""
    """Feature that this CPU must have to emulate the other, by NumPy's name."""

    def environment(self, *, compiled: bool = True) -> dict[str, str]:
        """Return the environment of a process that emulates this machine. If not `compiled`, the
        process uses the loops that numba has compiled for this CPU and does not compile them
        again."""
        made = {name: value for name, value in os.environ.items() if name not in _SWITCHES}
        if self.blas:
            made["OPENBLAS_CORETYPE"] = self.blas
        if self.without:
            made["NPY_DISABLE_CPU_FEATURES"] = " ".join(self.without)
        if self.libm:
            made["GLIBC_TUNABLES"] = f"glibc.cpu.hwcaps={self.libm}"
        if self.compiled_for and compiled:
            made["NUMBA_CPU_NAME"] = self.compiled_for
            made["NUMBA_CPU_FEATURES"] = ""  # features of that CPU
        return made

    def cannot_be(self) -> str:
        """Return why this machine cannot emulate it; empty if it can."""
        if self.name == PLAIN.name:
            return ""
        if platform.machine().lower() not in ("x86_64", "amd64"):
            return f"{platform.machine()}: there are no switches for CPUs but those of x86"
        if self.needs and not __cpu_features__.get(self.needs):
            return f"this CPU has no {self.needs}"
        return ""


PLAIN = Machine("plain")
"""The CPU of this machine."""
HASWELL = Machine("haswell", "Haswell", _WIDE, _NO_WIDE, "haswell", needs="AVX2")
"""An ordinary CPU without AVX-512."""
SANDYBRIDGE = Machine(
    *("sandybridge", "Sandybridge", list(__cpu_dispatch__)),
    *(f"-AVX2,-FMA,-FMA4,{_NO_WIDE}", "nehalem", "AVX"),
)
"""An old CPU without fused multiplication in matrix products or in the C library."""
SKYLAKE = Machine("skylake", "SkylakeX", compiled_for="skylake-avx512", needs="AVX512_SKX")
"""A server CPU with AVX-512 in matrix products too; OpenBLAS does not use it on every such CPU."""
MACHINES = (PLAIN, HASWELL, SANDYBRIDGE, SKYLAKE)


def unlike() -> list[Any]:
    """Return all machines except this one as test parameters; those that cannot be emulated are
    skipped with a reason."""
    return [
        pytest.param(
            one,
            id=one.name,
            marks=[pytest.mark.skip(reason=one.cannot_be())] if one.cannot_be() else [],
        )
        for one in MACHINES
        if one is not PLAIN
    ]


def run(machine: Machine, program: str, *arguments: str, compiled: bool = True) -> Any:
    """Run a program on an emulated machine and return its output, parsed as JSON."""
    done = subprocess.run(
        [sys.executable, program, *arguments],
        env=machine.environment(compiled=compiled) | {"OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def taken_for() -> dict[str, list[str]]:
    """Return the CPU features that this process uses: loops of NumPy, and types of matrix
    products."""
    libraries = [one for one in threadpoolctl.threadpool_info() if one["user_api"] == "blas"]
    return {
        "loops": [name for name in __cpu_dispatch__ if __cpu_features__[name]],
        "blas": sorted({one.get("architecture", one["internal_api"]) for one in libraries}),
    }


def check_taken(machine: Machine, said: dict[str, list[str]]) -> None:
    """Fail unless the process emulated the machine as requested; if a setting had no effect, every
    comparison would pass."""
    assert not set(said["loops"]) & set(machine.without), said
    if machine.blas:
        assert said["blas"] == [machine.blas], said


def main() -> int:
    """Run a command on an emulated machine: `cpus.py MACHINE COMMAND...`."""
    machine = next(one for one in MACHINES if one.name == sys.argv[1])
    if why := machine.cannot_be():
        print(f"Skipped, the tests as on {machine.name}: {why}")
        return 0
    env = machine.environment()
    said = json.loads(subprocess.check_output([sys.executable, "-c", _TELL], env=env, cwd=HERE))
    check_taken(machine, said)
    print(f"As on {machine.name}: matrix products of {', '.join(said['blas'])}, loops for", end=" ")
    print(", ".join(said["loops"]) or "no extensions", flush=True)
    return subprocess.run(sys.argv[2:], env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
