"""Formulas between dollar signs become MathML when the site is built: no script is loaded."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?P<open>[(\[])(?P<latex>.*?)\\[)\]]</(?P=tag)>',
    flags=re.DOTALL,
)


def on_page_content(html: str, **_: Any) -> str:
    return _FORMULA.sub(_mathml, html)


def _mathml(found: re.Match[str]) -> str:
    display = "block" if found["open"] == "[" else "inline"
    math = convert(unescape(found["latex"]).strip(), display=display)
    # A tilde as an accent, close to its letter; the converter takes that of the line.
    math = math.replace('stretchy="false">&#x0007E;', 'stretchy="false">&#x002DC;')
    math = math.replace("<mover>", '<mover accent="true">')
    return f'<div class="formula">{math}</div>' if display == "block" else math
