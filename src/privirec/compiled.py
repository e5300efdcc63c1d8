"""Modules that are imported when they are first used, and loops that need not be compiled.

Compiled loops and sparse matrices pay where there are many histories. On a device there is one:
importing the compiler, and most of SciPy, would take more memory and time than all of its work. A
process that says so (`go_without`) does with NumPy what they would do, bit for bit; where nobody
has written that, it imports them after all.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

_HEAVY = ("scipy", "scipy.sparse", "scipy.linalg")
_NEVER = ("httpx._main", "trio", "anyio")
"""httpx's command line, with all that this prints with, and event loops, which a device does not
need: httpx imports them where they are installed and does without where they are not."""
_state = {"compile": True}


def go_without() -> None:
    """From now on this process does with NumPy what NumPy can do. To be said first of all: what
    was imported before stays."""
    _state["compile"] = False
    for name in _HEAVY:
        module = sys.modules.setdefault(name, _Postponed(name))
        package, _, own_name = name.rpartition(".")
        if isinstance(parent := sys.modules.get(package), _Postponed):
            setattr(parent, own_name, module)
    # Pydantic would look through everything that is installed, and let it see all that is checked.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    for name in _NEVER:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def goes_without() -> bool:
    return not _state["compile"]


class _Postponed(ModuleType):
    """Stands in for a module until somebody wants something of it. (`importlib.util.LazyLoader`
    loads as soon as a second module imports the first.)"""

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__") and attribute not in ("__path__", "__version__"):
            raise AttributeError(attribute)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        whole = importlib.import_module(self.__name__)
        self.__dict__.update(whole.__dict__)
        return getattr(whole, attribute)


class Later:
    """A module that is imported when something of it is needed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


class Loops(Later):
    """A module of compiled loops, and one with the same in NumPy."""

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
    """The `__getattr__` of a package that names what its modules have without importing them all.
    `names`: which module each name is in."""

    def found(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{names[name]}"), name)

    return found
