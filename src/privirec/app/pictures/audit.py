"""Picture of an audit: the success of attacks beside that of chance, with and without noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privirec.app.pictures.canvas import (
    axes_in,
    heading,
    legend_below,
    mark,
    new_figure,
    note,
    patch,
    rows_down,
    title,
    write_picture,
)
from privirec.app.pictures.palette import ATTACK, CHANCE, INK, PROTECTED, QUIET, pale

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Measure:
    """A measure of success by which attacks are graded."""

    title: str
    value: Callable[[Row], float | None]
    """Value of a row, or None if the measure does not apply to it."""
    chance: Callable[[Row], float | None]
    shares: bool = True
    """If true, values are shown in per cent."""


def _whole(row: Row) -> float | None:
    read = row.get("users_recovered")
    return None if read is None else read / max(row["users"], 1)


def _guessed(row: Row) -> float | None:
    if row.get("users_recovered") is not None or row.get("interaction_recall") is None:
        return None
    return row.get("interaction_precision") or 0.0


def _told_apart(row: Row) -> float | None:
    return None if row.get("empirical_epsilon") is not None else row.get("auc")


MEASURES = (
    Measure("whole histories read, of the people attacked", _whole, lambda row: 0.0),
    Measure(
        "single items guessed right; chance: popularity",
        _guessed,
        lambda row: row["popularity_precision"],
    ),
    Measure("who took part: area under the ROC curve", _told_apart, lambda row: 0.5, False),
    Measure(
        "epsilon, at least (95 % confidence)",
        lambda row: row.get("empirical_epsilon"),
        lambda row: None,
        shares=False,
    ),
)


def audit_plot(dataset: str, audits: Sequence[Sequence[Row]], path: Path) -> list[Path]:
    """Draw a group of bars per attack, with one bar for each audit of the data set.

    Audits of releases protected by noise have the colour of protection, all others that of attacks.
    """
    audits = [rows for rows in audits if rows]
    panels = []
    for measure in MEASURES:
        graded = [row for rows in audits for row in rows if measure.value(row) is not None]
        if graded:
            panels.append((measure, list(dict.fromkeys(row["attack"] for row in graded))))
    heights = [0.55 + (0.14 + 0.24 * len(audits)) * len(attacks) for _, attacks in panels]
    figure = new_figure(9.0, 1.1 + sum(heights))
    grid = figure.add_gridspec(len(panels), 1, height_ratios=heights)
    for place, (measure, attacks) in enumerate(panels):
        axes = axes_in(figure, grid[place, 0], grid="x")
        heading(axes, measure.title)
        rows_down(axes, [attack.replace("-knowing", "\n-knowing") for attack in attacks])
        _bars(axes, measure, attacks, audits)
    title(figure, f"{dataset}: what attacks get out of what is released")
    legend = [patch(colour, name) for name, colour in _series(audits).items()]
    legend.append(mark(CHANCE, "|", "chance, or popularity"))
    if any(row.get("promised_epsilon") for rows in audits for row in rows):
        legend.append(mark(INK, "|", "promised"))
    legend_below(figure, ncols=len(legend), handles=legend)
    return write_picture(figure, path)


def _series(audits: Sequence[Sequence[Row]]) -> dict[str, str]:
    """Return the name and colour of each audit; a second one of the same kind is paler."""
    found: dict[str, str] = {}
    for rows in audits:
        first = rows[0]
        name, colour = str(first["release"]), ATTACK
        if first.get("preset"):
            name += f", {first['preset']}"
        if first.get("epsilon") is not None:
            noisy = first.get("noise") == "on"
            name += f", epsilon {first['epsilon']:.3g}" if noisy else ", noise left out"
            colour = PROTECTED if noisy else ATTACK
        while colour in found.values():
            colour = pale(colour, 0.5)
        found[name if name not in found else f"{name} ({len(found) + 1})"] = colour
    return found


def _bars(
    axes: Axes, measure: Measure, attacks: Sequence[str], audits: Sequence[Sequence[Row]]
) -> None:
    height = 0.8 / len(audits)
    most = 1.0
    for number, (rows, colour) in enumerate(zip(audits, _series(audits).values(), strict=True)):
        by_attack = {row["attack"]: row for row in rows}
        for place, attack in enumerate(attacks):
            at = place + (number - (len(audits) - 1) / 2) * height
            row = by_attack.get(attack)
            value = None if row is None else measure.value(row)
            if row is None or value is None:
                note(axes, 0, at, "does not apply", QUIET)
                continue
            axes.barh(at, value, height * 0.86, color=colour)
            most = max(most, value, row.get("promised_epsilon") or 0)
            note(axes, value, at, _said(measure, row, value), INK)
            for level, shade in (
                (measure.chance(row), CHANCE),
                (row.get("promised_epsilon"), INK),
            ):
                if level is not None:
                    axes.plot([level] * 2, [at - height / 2, at + height / 2], color=shade, lw=2.2)
    axes.set_xlim(0, 1.25 * most)
    if most <= 1:
        quarters = [0, 0.25, 0.5, 0.75, 1]
        axes.set_xticks(
            quarters, [f"{one:.0%}" if measure.shares else f"{one}" for one in quarters]
        )


def _said(measure: Measure, row: Row, value: float) -> str:
    if not measure.shares:
        return f"{value:.3g}"
    if row.get("users_recovered") is not None:
        return f"{row['users_recovered']:,} of {row['users']:,}"
    return f"{value:.1%}"
