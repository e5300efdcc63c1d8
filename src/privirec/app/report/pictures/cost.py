"""Picture of communication costs: bytes by method and purpose, beside the paper's formulas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privirec.app.report.pictures.canvas import (
    SMALL,
    axes_in,
    byte_axis,
    heading,
    legend_below,
    mark,
    new_figure,
    patch,
    rows_down,
    title,
    write_picture,
)
from privirec.app.report.pictures.palette import INK, QUIET, STAGES, colour_of, pale

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
STAGE_NAMES = (
    "item-item matrix",
    "power steps",
    "item degrees",
    "bounds and checks",
    "filters handed out",
    "secure aggregation",
)
BYTES_A_FLOAT = 4
"""Factor that converts the paper's counts of floats to bytes."""


def cost_plot(where: str, rows: Sequence[Row], formulas: Sequence[Row], path: Path) -> list[Path]:
    """Draw the bytes of each method, their shares by purpose, and the paper's formulas.

    Each of the `rows` has its bytes by the name of the sum. `formulas` are rows of the paper.
    """
    named = {row["method"]: row["floats_per_client"] * BYTES_A_FLOAT for row in formulas}
    programs = {row["method"].split(",")[0] for row in rows}
    others = [row for row in formulas if row["method"] not in programs]
    names = [row["method"] for row in rows] + [row["method"] for row in others]
    figure = new_figure(9.2, 1.9 + 0.36 * len(names))
    grid = figure.add_gridspec(1, 3, width_ratios=(2.2, 1, 1))
    axes = axes_in(figure, grid[0, 0], grid="x")
    rows_down(axes, names)
    heading(axes, "bytes per client, log scale")
    drawn: list[float] = []
    for place, row in enumerate(rows):
        colour = colour_of(row["program"])
        paper = named.get(row["method"].split(",")[0]) if row["preset"] == "paper" else None
        ends = [sum(parts_of(row, way).values()) for way in ("up", "down")]
        drawn += [*ends, *([paper] if paper else [])]
        axes.plot(ends, [place - 0.17, place + 0.17], color=pale(colour), lw=1.5, zorder=2)
        axes.plot(ends[0], place - 0.17, "^", color=colour, ms=7, zorder=3)
        axes.plot(ends[1], place + 0.17, "v", color=colour, mfc="white", ms=7, zorder=3)
        if paper:
            axes.plot(paper, place, "D", color=QUIET, mfc="none", ms=7, zorder=1)
    for place, row in enumerate(others, start=len(rows)):
        axes.plot(named[row["method"]], place, "D", color=QUIET, mfc="none", ms=7)
        drawn.append(named[row["method"]])
    byte_axis(axes, drawn, room=2.0)
    axes.tick_params(axis="x", labelsize=SMALL - 1)
    for column, way in ((1, "up"), (2, "down")):
        beside = axes_in(figure, grid[0, column], grid="x")
        rows_down(beside, names, labels=False)
        heading(beside, f"what for, {way}")
        _shares(beside, rows, way)
    title(figure, f"What a client sends and receives\n{where}")
    points = [
        mark(INK, "^", "up"),
        mark(INK, "v", "down"),
        mark(QUIET, "D", "the paper's formula,\n4 bytes a float"),
    ]
    for point in points[1:]:
        point.set_markerfacecolor("white")
    stages = [
        patch(colour, name, edge=INK) for name, colour in zip(STAGE_NAMES, STAGES, strict=True)
    ]
    legend_below(figure, ncols=3, handles=[*points, *stages])
    return write_picture(figure, path)


def parts_of(row: Row, way: str) -> dict[str, float]:
    """Return the bytes of a row by purpose, in the order of `STAGE_NAMES`."""
    found = dict.fromkeys(STAGE_NAMES, 0.0)
    for name, size in row[f"bytes_{way}_by_sum"].items():
        found[stage_of(name)] += size
    found["secure aggregation"] += row[f"aggregation_bytes_{way}_per_client"] or 0
    return found


def stage_of(name: str) -> str:
    """Return the purpose, one of `STAGE_NAMES`, of a sum or message with this name."""
    if name.endswith(("item-item", "-gram")):
        return "item-item matrix"
    if name.endswith(("step", "start")):
        return "power steps"
    if name.endswith(("degrees", "popularity")):
        return "item degrees"
    return "filters handed out" if name == "filters" else "bounds and checks"


def _shares(axes: Axes, rows: Sequence[Row], way: str) -> None:
    for place, row in enumerate(rows):
        parts = parts_of(row, way)
        total, start = sum(parts.values()) or 1.0, 0.0
        for size, colour in zip(parts.values(), STAGES, strict=True):
            share = size / total
            axes.barh(place, share, 0.62, left=start, color=colour, edgecolor=INK, lw=0.4)
            start += share
    axes.set_xlim(0, 1.01)
    axes.set_xticks([0, 0.5, 1], ["0", "50 %", "100 %"])
