"""Drawn covers: a pattern and colours that follow from an item's id, with the title's initials.

The page loads nothing from elsewhere, so no real cover is shown: asking a shop for one would tell
the shop what is on the screen.
"""

from __future__ import annotations

import hashlib
from html import escape
from math import cos, pi, sin

from privirec.app.pages.frame import Html

_PALETTES = (
    ("#1d3557", "#457b9d", "#e9c46a"),
    ("#3d2c5e", "#7b5ea7", "#f2a7b5"),
    ("#134e4a", "#2a9d8f", "#f4d58d"),
    ("#5b2333", "#b3545e", "#f7d6bf"),
    ("#22333b", "#5e7d7e", "#eddea4"),
    ("#4a3019", "#b4713d", "#f3e0c2"),
    ("#1b3a2f", "#4f8a5b", "#d9e8b8"),
    ("#2b2d5b", "#5561b8", "#f5c26b"),
    ("#47224f", "#a24e9b", "#ffd9a0"),
    ("#123c55", "#1f7a8c", "#f1b5a0"),
)
_SMALL_WORDS = {"the", "a", "an", "of", "and", "at", "in", "for", "to", "on", "le", "la", "der"}
WIDTH, HEIGHT = 120, 100


def initials(title: str) -> str:
    """Return one or two letters that stand for a title."""
    words = [word for word in title.split() if word[0].isalnum()]
    chosen = [word for word in words if word.casefold() not in _SMALL_WORDS] or words
    return "".join(word[0] for word in chosen[:2]).upper() or "?"


def cover(item: str, title: str | None, kind: str = "cover") -> Html:
    """Return a picture for an item, which screen readers skip; `kind` is its class of style."""
    seed = hashlib.sha256(item.encode("utf-8", "surrogatepass")).digest()
    dark, middle, light = _PALETTES[seed[0] % len(_PALETTES)]
    shapes = _PATTERNS[seed[1] % len(_PATTERNS)](seed[2:], middle, light)
    letters = escape(initials(title or item))
    return Html(
        f'<svg class="{kind}" viewBox="0 0 {WIDTH} {HEIGHT}" aria-hidden="true" focusable="false" '
        f'preserveAspectRatio="xMidYMid slice"><rect width="{WIDTH}" height="{HEIGHT}" '
        f'fill="{dark}"/>{shapes}<text x="10" y="{HEIGHT - 11}" fill="#ffffff" font-size="36" '
        f'font-family="Georgia, serif" font-weight="700">{letters}</text></svg>\n'
    )


def _sun(seed: bytes, middle: str, light: str) -> str:
    x, y, radius = 30 + seed[0] % 66, 22 + seed[1] % 20, 12 + seed[2] % 10
    hills = [50 + seed[3] % 14, 64 + seed[4] % 14]
    return (
        f'<circle cx="{x}" cy="{y}" r="{radius}" fill="{light}"/>'
        f'<path d="M0 {hills[0]} Q40 {hills[0] - 30} 80 {hills[0]} T160 {hills[0]} V100 H0Z" '
        f'fill="{middle}"/><path d="M-20 {hills[1]} Q30 {hills[1] - 22} 70 {hills[1]} '
        f'T150 {hills[1]} V100 H-20Z" fill="{middle}" fill-opacity=".55"/>'
    )


def _rings(seed: bytes, middle: str, light: str) -> str:
    x, y = 30 + seed[0] % 70, 14 + seed[1] % 50
    rings = "".join(
        f'<circle cx="{x}" cy="{y}" r="{radius}" fill="none" stroke="{colour}" '
        f'stroke-width="{5 + seed[2] % 4}"/>'
        for radius, colour in ((14, light), (32, middle), (50, light), (68, middle), (86, middle))
    )
    return rings


def _stripes(seed: bytes, middle: str, light: str) -> str:
    angle, step = -50 + seed[0] % 100, 16 + seed[1] % 14
    lines = "".join(
        f'<rect x="{at}" y="-90" width="{step // 2}" height="340" '
        f'fill="{light if (at // step) % 3 == 0 else middle}"/>'
        for at in range(-120, 260, step)
    )
    return f'<g transform="rotate({angle} 60 50)" fill-opacity=".8">{lines}</g>'


def _tiles(seed: bytes, middle: str, light: str) -> str:
    drawn = []
    for at in range(12):
        x, y, turn = at % 3 * 40, at // 3 * 40, seed[at] % 4
        colour = light if seed[at] % 5 == 0 else middle
        corner = ((x, y), (x + 40, y), (x + 40, y + 40), (x, y + 40))[turn]
        others = [
            ((x, y), (x + 40, y), (x + 40, y + 40), (x, y + 40))[turn - step] for step in (1, 3)
        ]
        drawn.append(
            f'<path d="M{corner[0]} {corner[1]} L{others[0][0]} {others[0][1]} A40 40 0 0 1 '
            f'{others[1][0]} {others[1][1]}Z" fill="{colour}" fill-opacity=".85"/>'
        )
    return "".join(drawn)


def _star(seed: bytes, middle: str, light: str) -> str:
    count, x, y = 7 + seed[0] % 8, 40 + seed[1] % 50, 28 + seed[2] % 22
    rays = "".join(
        f'<path d="M{x} {y} L{x + 150 * cos(a):.0f} {y + 150 * sin(a):.0f} '
        f'L{x + 150 * cos(a + pi / count):.0f} {y + 150 * sin(a + pi / count):.0f}Z"/>'
        for a in (2 * pi * at / count for at in range(count))
    )
    return f'<g fill="{middle}">{rays}</g><circle cx="{x}" cy="{y}" r="15" fill="{light}"/>'


_PATTERNS = (_sun, _rings, _stripes, _tiles, _star)
