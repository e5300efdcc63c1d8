"""Facts about this machine and installation."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info

from privirec import threads
from privirec.data.datasets import PUBLISHED, data_folders, find
from privirec.errors import DataError
from privirec.version import __version__

PACKAGES = (
    "numpy",
    "scipy",
    "numba",
    "threadpoolctl",
    "cryptography",
    "pydantic",
    "safetensors",
    "typer",
    "click",
    "rich",
    "matplotlib",
    "psutil",
    "httpx",
    "uvicorn",
    "starlette",
    "prometheus-client",
    "pyarrow",
    "pandas",
    "flwr",
)
"""Declared dependencies: required ones first, then those of each extra."""


def facts() -> dict[str, str]:
    """Return facts about the machine and the installation, as names and values."""
    np.ones((2, 2)) @ np.ones((2, 2))  # Loads the BLAS library that is reported below.
    found = {
        "privirec": __version__,
        "python": f"{platform.python_version()} ({sys.implementation.name})",
        "platform": f"{platform.system()} {platform.machine()}",
    }
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    blas = [
        f"{library['internal_api']} {library['version']} ({library.get('architecture', '?')})"
        for library in threadpool_info()
        if library["user_api"] == "blas"
    ]
    found["blas"] = ", ".join(sorted(set(blas))) or "unknown"
    found["threads"] = str(threads.available())
    found["processor"], flags = _processor()
    found["aes instructions"] = "yes" if "aes" in flags else "no or unknown"
    found["vector instructions"] = (
        " ".join(f for f in ("avx2", "avx512f") if f in flags) or "none known"
    )
    found["memory available"] = _available_memory()
    found["disk free here"] = f"{shutil.disk_usage(Path.cwd()).free / 1e9:.1f} GB"
    folders = ", ".join(map(str, data_folders()))
    found["data folders"] = folders
    found["data sets here"] = ", ".join(_data_sets()) or "none"
    return found


def _processor() -> tuple[str, set[str]]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown", set()
    fields = dict(part for line in lines if len(part := line.split(":", 1)) == 2)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    name = fields.get("model name", "unknown")
    return f"{name}, {os.cpu_count()} cores", set(fields.get("flags", "").split())


def _available_memory() -> str:
    try:
        pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return "unknown"
    return f"{pages / 1e9:.1f} GB"


def _data_sets() -> list[str]:
    here = []
    for name in PUBLISHED:
        try:
            find(name, None)
        except DataError:
            continue
        here.append(name)
    return here
