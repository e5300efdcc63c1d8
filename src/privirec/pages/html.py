"""Templates: hand-written HTML with `$names`, in which every value is text unless it is HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from string import Template

_BEGINS = re.compile(r"^<!-- fragment: ([a-z_]+) -->\n", re.MULTILINE)


class Html(str):
    """Text that is HTML already; any other text is escaped before it stands in a page."""

    __slots__ = ()


class Templates:
    """The fragments of some files in `pages/templates`; each begins with a line of its own:

    <!-- fragment: name -->
    """

    def __init__(self, *names: str) -> None:
        self._fragments: dict[str, Template] = {}
        for name in names:
            text = files("privirec.pages").joinpath("templates", name).read_text(encoding="utf-8")
            _, *parts = _BEGINS.split(text)
            for fragment, content in zip(parts[::2], parts[1::2], strict=True):
                if fragment in self._fragments:
                    raise ValueError(f"{name}: a second fragment {fragment}")
                self._fragments[fragment] = Template(content)

    def __call__(self, fragment: str, **values: object) -> Html:
        """A fragment with these values: exactly those that it names."""
        template = self._fragments[fragment]
        if set(template.get_identifiers()) != set(values):
            raise ValueError(
                f"{fragment} has {sorted(template.get_identifiers())}, not {sorted(values)}"
            )
        return Html(template.substitute({name: as_html(each) for name, each in values.items()}))


def as_html(value: object) -> Html:
    """A value where HTML is expected: nothing, HTML, several of these, or text."""
    if value is None:
        return Html("")
    if isinstance(value, Html):
        return value
    if isinstance(value, Iterable) and not isinstance(value, str):
        return Html("".join(map(as_html, value)))
    return Html(escape(str(value)))


def static(name: str) -> bytes:
    """A file of `pages/static`."""
    return files("privirec.pages").joinpath("static", name).read_bytes()
