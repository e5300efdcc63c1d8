"""Templates and common parts of every page of a site: title, links, notices, tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, ClassVar

from privirec.app.pages.web import PageRequest, Response, Site
from privirec.rows import as_text

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


class FramedSite(Site):
    """A site whose pages are built from templates."""

    links: Sequence[tuple[str, str]] = ()
    """(path, name) of the pages that every page links to."""
    to_change: Sequence[str] = ()
    """Paths of pages that only change something; those who only look get no link to them."""
    footer = ""
    kind = ""
    """Class of the page's style."""
    icons: ClassVar[Mapping[str, str]] = {}
    """Fragments with the icons of links, by path."""

    def __init__(self, templates: str, where: str) -> None:
        super().__init__()
        self.fill = Templates("frame.html", templates)
        self._where = where

    def page(
        self,
        request: PageRequest,
        title: str,
        *content: object,
        failure: str = "",
        status: int = 200,
    ) -> Response:
        """Return a complete page; `failure` describes an error in one sentence."""
        fill = self.fill
        notice = request.session.take_notice()
        action = self.action(request) if notice else None
        body = fill(
            "frame",
            kind=self.kind,
            title=title,
            where=self._where,
            script=fill("script", name=self.script) if self.script else None,
            links=[
                fill(
                    "link_here" if path == request.path else "link",
                    path=path or "./",
                    name=name,
                    icon=fill(self.icons[path]) if path in self.icons else None,
                )
                for path, name in self.links
                if request.session.may_change or path not in self.to_change
            ],
            notice=[
                fill("failure", sentences=self.sentences([failure])) if failure else None,
                fill("notice", sentences=self.sentences(notice.split("\n")), action=action)
                if notice
                else None,
            ],
            content=content,
            footer=self.footer,
        )
        return Response(body.encode(), status=status)

    def action(self, request: PageRequest) -> Html | None:
        """Return a form that stands beside a notice, for example to undo."""
        return None

    def failed(self, request: PageRequest, status: int, sentence: str) -> Response:
        return self.page(request, "This did not work", failure=sentence, status=status)

    def sentences(self, sentences: Iterable[object]) -> list[Html]:
        """Return one paragraph per sentence."""
        return [self.fill("sentence", text=each) for each in sentences]

    def points(self, sentences: Iterable[object]) -> Html:
        """Return a list of sentences."""
        return self.fill("points", points=[self.fill("point", text=each) for each in sentences])

    def table(
        self, caption: str, columns: Sequence[tuple[str, str]], rows: Iterable[Mapping[str, Any]]
    ) -> Html:
        """Return a table of (key, heading) columns; values look as on the command line."""
        rows = list(rows)
        numeric = {key for key, _ in columns if any(_is_number(row.get(key)) for row in rows)}
        return self.fill(
            "table",
            caption=caption,
            headings=[
                self.fill("number_heading" if key in numeric else "heading", text=heading)
                for key, heading in columns
            ],
            rows=[
                self.fill("row", cells=[self._cell(key, row.get(key)) for key, _ in columns])
                for row in rows
            ],
        )

    def _cell(self, key: str, value: object) -> Html:
        if isinstance(value, Html):
            return self.fill("cell", text=value)
        return self.fill("number" if _is_number(value) else "cell", text=as_text(key, value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
