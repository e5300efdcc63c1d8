"""Templates: hand-written HTML with `$names`, in which values are escaped unless they are Html."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from string import Template

_BEGINS = re.compile(r"^<!-- fragment: ([a-z_]+) -->\n", re.MULTILINE)


class Html(str):
    """Text that is already HTML; any other text is escaped before it is put in a page."""

    __slots__ = ()


class Templates:
    """Fragments of files in `pages/templates`; each begins with a line of its own:

    <!-- fragment: name -->
    """

    def __init__(self, *names: str) -> None:
        self._fragments: dict[str, Template] = {}
        for name in names:
            text = (
                files("privirec.app.pages").joinpath("templates", name).read_text(encoding="utf-8")
            )
            _, *parts = _BEGINS.split(text)
            for fragment, content in zip(parts[::2], parts[1::2], strict=True):
                if fragment in self._fragments:
                    raise ValueError(f"{name}: a second fragment {fragment}")
                self._fragments[fragment] = Template(content)

    def __call__(self, fragment: str, **values: object) -> Html:
        """Return a fragment filled with these values, which must be exactly those that it names."""
        template = self._fragments[fragment]
        if set(template.get_identifiers()) != set(values):
            raise ValueError(
                f"{fragment} has {sorted(template.get_identifiers())}, not {sorted(values)}"
            )
        return Html(template.substitute({name: as_html(each) for name, each in values.items()}))


def as_html(value: object) -> Html:
    """Convert a value to HTML: None, Html, an iterable of these, or text."""
    if value is None:
        return Html("")
    if isinstance(value, Html):
        return value
    if isinstance(value, Iterable) and not isinstance(value, str):
        return Html("".join(map(as_html, value)))
    return Html(escape(str(value)))


def static(name: str) -> bytes:
    """Return the content of a file in `pages/static`."""
    return files("privirec.app.pages").joinpath("static", name).read_bytes()
