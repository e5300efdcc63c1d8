"""Objects by name: our own, and those that installed packages add by entry points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, TypeVar

from privirec.errors import UsageError


class Named(Protocol):
    """An object or class with a name."""

    @property
    def name(self) -> str: ...


Thing = TypeVar("Thing", bound=Named)


class Registry(Mapping[str, Thing]):
    """Objects of one kind by name: our own in order, then those of entry points.

    The group of the entry points is `privirec.GROUP`. One is loaded when its object is asked for;
    its name alone loads nothing. None can take the name of one of our own.
    """

    def __init__(self, group: str, kind: str, *own: Thing) -> None:
        self._group, self._kind = group, kind
        self._own = {thing.name: thing for thing in own}

    @cached_property
    def _added(self) -> dict[str, EntryPoint]:
        found = {point.name: point for point in entry_points(group=f"privirec.{self._group}")}
        return {name: found[name] for name in sorted(found)}

    def __getitem__(self, name: str) -> Thing:
        if name in self._own:
            return self._own[name]
        thing: Thing = self._added[name].load()
        return thing

    def __iter__(self) -> Iterator[str]:
        return iter({**self._own, **self._added})

    def __len__(self) -> int:
        return len({**self._own, **self._added})

    def __delitem__(self, name: str) -> None:
        del self._own[name]

    def named(self, name: str) -> Thing:
        """Return the object of this name; raise UsageError with all names if there is none."""
        if name not in self:
            raise UsageError(f"no {self._kind} {name!r}; there are {', '.join(self)}")
        return self[name]

    def register(self, thing: Thing) -> None:
        """Add an object under its own name."""
        if self.get(thing.name, thing) is not thing:
            raise UsageError(f"there is a {self._kind} {thing.name!r} already")
        self._own[thing.name] = thing
