"""Modules that are imported on first use, and compiled loops with a NumPy fallback.

Compiled loops and sparse matrices pay off when there are many histories. A device has one:
importing the compiler and most of SciPy would take more memory and time than all of its work. A
process that calls `go_without` computes the same results with NumPy, bit for bit. A loop without a
NumPy version still imports the compiled module.
"""

from __future__ import annotations

import atexit
import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

LANES = 16
"""Numbers that compiled loops process side by side: a cache line of single precision."""
STAGE = 2 * LANES
"""Terms of an inner product between two checks of its bound."""

_HEAVY = ("scipy", "scipy.sparse", "scipy.linalg")
_NEVER = ("httpx._main", "trio", "anyio")
"""Modules that a device does not need and that are never imported.

These are the command line of httpx, with its printing libraries, and event loops. httpx imports
them if they are installed, and works without them.
"""
_state = {"compile": True, "listens": False, "told": False}
COMPILING = "privirec: compiling loops for this machine, once after installation: up to a minute"


def go_without() -> None:
    """Make this process use NumPy in place of compiled loops where a NumPy version exists.

    Call this before any other import; modules that are already imported stay loaded.
    """
    _state["compile"] = False
    for name in _HEAVY:
        module = sys.modules.setdefault(name, _Postponed(name))
        package, _, own_name = name.rpartition(".")
        if isinstance(parent := sys.modules.get(package), _Postponed):
            setattr(parent, own_name, module)
    # Pydantic would search all installed packages for plugins and let them see all validated data.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    for name in _NEVER:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def goes_without() -> bool:
    return not _state["compile"]


class _Postponed(ModuleType):
    """Placeholder that imports the real module on first attribute access.

    `importlib.util.LazyLoader` does not help: it loads as soon as a second module imports the
    first.
    """

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__") and attribute not in ("__path__", "__version__"):
            raise AttributeError(attribute)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        whole = importlib.import_module(self.__name__)
        self.__dict__.update(whole.__dict__)
        return getattr(whole, attribute)


class Later:
    """A module that is imported when one of its attributes is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        module = sys.modules.get(self._name)
        if module is None:
            module = _imported(self._name)
            _listen_for_compiling()
        return getattr(module, attribute)


def _imported(name: str) -> ModuleType:
    """Import a module; compiled loops that nobody can keep are kept until this process ends."""
    try:
        return importlib.import_module(name)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
    config = importlib.import_module("numba").config
    folder = tempfile.mkdtemp(prefix="privirec-loops-")  # for this user alone
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    config.CACHE_LOCATOR_CLASSES, config.CACHE_DIR = "UserProvidedCacheLocator", folder
    return importlib.import_module(name)


def _listen_for_compiling() -> None:
    """Tell people at a terminal or notebook, once, that loops are compiled after installation."""
    if "numba" not in sys.modules or _state["listens"]:
        return
    _state["listens"] = True
    event = importlib.import_module("numba.core.event")

    class Told(event.Listener):  # type: ignore[name-defined]
        def on_start(self, _event: object) -> None:
            if not _state["told"] and (sys.stderr.isatty() or "ipykernel" in sys.modules):
                print(COMPILING, file=sys.stderr)
            _state["told"] = True

        def on_end(self, _event: object) -> None:
            """Say nothing: further loops follow."""

    event.register("numba:compile", Told())


class Loops(Later):
    """A module of compiled loops, with a second module that has the same functions in NumPy."""

    def __init__(self, name: str, in_numpy: str) -> None:
        super().__init__(name)
        self._in_numpy = in_numpy

    def __getattr__(self, attribute: str) -> Any:
        if goes_without():
            plain = importlib.import_module(self._in_numpy)
            if hasattr(plain, attribute):
                return getattr(plain, attribute)
        return super().__getattr__(attribute)


def exported(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package that imports its modules only when needed.

    `names` maps each exported name to its module.
    """

    def found(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{names[name]}"), name)

    return found
