"""Colours and markers; each colour has one meaning in all pictures.

People with any kind of colour blindness can tell the hues apart (after Okabe and Ito; a test
simulates this). Related methods have related hues: exact sums are blue to violet, trained methods
by other authors are brown, and their private methods are pink. Lines also differ by markers.
"""

from __future__ import annotations

INK = "#22303c"
"""Axes, titles and numbers."""
QUIET = "#5f6b74"
"""Notes."""
FAINT = "#e3e7ea"
"""Grids."""

CENTRALISED = INK
"""One machine that holds all histories."""
EXACT = "#0072b2"
"""Exact sums over clients."""
PROTECTED = "#009e73"
"""Sums with noise that protects every person."""
ATTACK = "#d55e00"
"""Results of an attack."""
CHANCE = "#8b959c"
"""Results of popularity alone, or of chance."""

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
"""Colours of the parts of a run, which belong to no method, from dark to light."""


def colour_of(method: str) -> str:
    """Return the colour of a method, given its name on the command line."""
    return METHODS[method]


def marker_of(method: str) -> str:
    return MARKERS.get(method, "o")


def pale(colour: str, share: float = 0.6) -> str:
    """Return the colour mixed with a share of white, for example for received bytes."""
    return _mixed(colour, 255, share)


def for_text(colour: str) -> str:
    """Return a darker version of the colour, in which text is readable."""
    return _mixed(colour, 0, 0.3)


def shades(colour: str, count: int) -> list[str]:
    """Return `count` shades of one hue, from pale to dark."""
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
