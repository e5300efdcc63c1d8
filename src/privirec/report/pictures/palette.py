"""One colour for one meaning, in every picture.

Hues are those that people with any kind of colour blindness tell apart (after Okabe and Ito; a test
simulates them). What is alike has hues alike: exact sums are blue to violet, other people's
training is brown, other people's private methods are pink. Lines have markers of their own too.
"""

from __future__ import annotations

INK = "#22303c"
"""Axes, titles, figures."""
QUIET = "#5f6b74"
"""Notes."""
FAINT = "#e3e7ea"
"""Grids."""

CENTRALISED = INK
"""One machine that holds all histories."""
EXACT = "#0072b2"
"""Exact sums over clients."""
PROTECTED = "#009e73"
"""Noise protects every person."""
ATTACK = "#d55e00"
"""What an attack gets."""
CHANCE = "#8b959c"
"""What popularity alone gives, or a coin."""

METHODS = {
    "central": CENTRALISED,
    "centralized": CENTRALISED,
    "privirec": EXACT,
    "privirec-k": "#56b4e9",
    "spectral": "#332288",
    "spectral-validation": "#332288",
    "head-gram": "#a06fd6",
    "head-ease": "#a06fd6",
    "linkprop-multi": EXACT,
    "protected": PROTECTED,
    "popularity": CHANCE,
    "mf": "#e6ab02",
    "lightgcn": "#6b4c0b",
    "private-power": "#f29fd0",
    "dpals": "#b62f80",
    "ada-dpals": "#7d1a5e",
}
MARKERS = {
    "privirec": "D",
    "privirec-k": "s",
    "spectral": "o",
    "head-ease": "^",
    "protected": "o",
    "mf": "v",
    "lightgcn": "P",
    "private-power": "s",
    "dpals": "^",
    "ada-dpals": "D",
}
STAGES = ("#22303c", "#4f6272", "#8197a6", "#b4c3cd", "#dfe6ea", "#ffffff")
"""Of what belongs to no method: the parts of a run, from dark to light."""


def colour_of(method: str) -> str:
    """By the name that a method has on the command line."""
    return METHODS[method]


def marker_of(method: str) -> str:
    return MARKERS.get(method, "o")


def pale(colour: str, share: float = 0.6) -> str:
    """The colour with so much white in it: what is received beside what is sent, for example."""
    return _mixed(colour, 255, share)


def for_text(colour: str) -> str:
    """Dark enough to read letters in it."""
    return _mixed(colour, 0, 0.3)


def shades(colour: str, count: int) -> list[str]:
    """So many of one hue, from pale to dark."""
    if count == 1:
        return [colour]
    steps = [place / (count - 1) for place in range(count)]
    return [
        pale(colour, 0.6 - 1.2 * step) if step < 0.5 else _mixed(colour, 0, 0.8 * (step - 0.5))
        for step in steps
    ]


def _mixed(colour: str, towards: int, share: float) -> str:
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part + (towards - part) * share):02x}" for part in parts)
