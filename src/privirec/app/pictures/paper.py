"""Pictures of experiments: accuracy against bytes, a sweep of rank and rounds, costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privirec.app.pictures.canvas import (
    NOTE_PLACES,
    SMALL,
    axes_in,
    byte_axis,
    heading,
    keep_notes_apart,
    legend_below,
    legend_beside,
    mark,
    new_figure,
    patch,
    rows_down,
    title,
    write_picture,
)
from privirec.app.pictures.palette import (
    CENTRALISED,
    EXACT,
    INK,
    QUIET,
    STAGES,
    colour_of,
    for_text,
    marker_of,
    pale,
    shades,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]

PANELS = (
    ("bytes_per_client", "up and down, bytes per client (log scale)"),
    ("bytes_up_per_client", "up alone"),
    ("bytes_down_per_client", "down alone"),
)


def frontier_plot(
    heading_text: str,
    summary: Sequence[Row],
    families: Mapping[str, str],
    levels: Sequence[Row],
    path: Path,
) -> list[Path]:
    """Draw NDCG@20 against bytes, with a colour and a marker for each family.

    `families` maps names to titles. `levels` are baselines that send nothing, drawn as horizontal
    lines.
    """
    figure = new_figure(9.2, 9.0)
    grid = figure.add_gridspec(2, 2, height_ratios=(1.7, 1))
    for panel, (key, about) in enumerate(PANELS):
        whole = panel == 0
        axes = axes_in(figure, grid[0, :] if whole else grid[1, panel - 1])
        for family, name in families.items():
            mine = [row for row in summary if row["family"] == family]
            if mine:
                _line(axes, mine, key, family, name if whole else None)
        for row, dashes in zip(levels, cycle(("--", ":", "-."))):
            label = f"{row['label']}, centralised: {row['ndcg@20']:.4f}" if whole else None
            axes.axhline(
                row["ndcg@20"], color=CENTRALISED, ls=dashes, lw=1.2, zorder=1, label=label
            )
        heading(axes, about)
        if summary:
            byte_axis(axes, [row[key] for row in summary])
        axes.set_ylim(bottom=0)
        if panel != 2:
            axes.set_ylabel("NDCG@20", color=INK)
    title(figure, heading_text)
    legend_below(figure, ncols=3)
    keep_notes_apart(
        figure, figure.axes[0], [(row[PANELS[0][0]], row["ndcg@20"]) for row in summary]
    )
    return write_picture(figure, path)


def _line(axes: Axes, rows: Sequence[Row], key: str, family: str, name: str | None) -> None:
    """Draw one family as a line through its points.

    In the panel with names, each point has a note. Of points that differ by epochs, only the first
    and the last have one.
    """
    rows = sorted(rows, key=lambda row: (row[key], row["ndcg@20"]))
    colour = colour_of(family)
    axes.errorbar(
        [row[key] for row in rows],
        [row["ndcg@20"] for row in rows],
        [row["spread"] or 0.0 for row in rows],
        fmt=f"{marker_of(family)}-",
        color=colour,
        ms=5.5 if name else 4.5,
        lw=1.6,
        capsize=2,
        label=name,
        zorder=3,
    )
    if name is None:
        return
    from matplotlib.patheffects import withStroke  # noqa: PLC0415

    last = len(rows) - 1
    for place, row in enumerate(rows):
        if row["epochs"] is None or place in (0, last):
            axes.annotate(
                row["label"],
                (row[key], row["ndcg@20"]),
                xytext=NOTE_PLACES[0],
                textcoords="offset points",
                color=for_text(colour),
                fontsize=8,
                path_effects=[withStroke(linewidth=2.5, foreground="white")],
                zorder=4,
            )


def sweep_plot(
    dataset: str,
    points: Sequence[Mapping[str, Any]],
    centralised: float,
    competitive: int | None,
    path: Path,
) -> list[Path]:
    """Draw NDCG@20 of GF-CF on PriviRec-k against k.

    PriviRec is a horizontal line of the same shade, and the centralised result is a dark one.
    `points` are means over seeds; bands show their spread.
    """
    figure = new_figure(9.0, 4.6)
    axes = axes_in(figure)
    counts = sorted({row["rounds"] for row in points})
    for colour, rounds, marker in zip(
        shades(EXACT, len(counts)), counts, "os^DvPX" * len(counts), strict=False
    ):
        curve = sorted((row for row in points if row["rounds"] == rounds), key=_rank)
        line = [row for row in curve if row["rank"]]
        ranks, ndcg = [row["rank"] for row in line], [row["ndcg@20"] for row in line]
        axes.plot(ranks, ndcg, f"{marker}-", color=colour, ms=5, label=f"PriviRec-k, L = {rounds}")
        low, high = zip(*map(_spread, line), strict=True)
        axes.fill_between(ranks, low, high, color=colour, alpha=0.25, lw=0)
        for row in curve:
            if not row["rank"]:
                label = f"PriviRec, L = {rounds}"
                axes.axhline(row["ndcg@20"], color=colour, ls="--", lw=1.3, label=label)
                axes.axhspan(*_spread(row), color=colour, alpha=0.15, lw=0)
    axes.axhline(centralised, color=CENTRALISED, lw=1.6, label="GF-CF, centralised", zorder=1)
    if competitive:
        label = f"k that the paper\ncalls enough: {competitive:,}"
        axes.axvline(competitive, color=QUIET, ls=":", lw=1.4, label=label)
    axes.set_xlabel("k", color=INK)
    axes.set_ylabel("NDCG@20", color=INK)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    seeds = max(row["seeds"] for row in points)
    beside = f"mean of {seeds} seeds, bands of one standard deviation" if seeds > 1 else "one seed"
    axes.text(0, 1.02, beside, transform=axes.transAxes, color=QUIET, fontsize=SMALL)
    heading(axes, f"GF-CF on {dataset}: PriviRec-k against k\n")
    legend_beside(figure)
    return write_picture(figure, path)


def _rank(row: Mapping[str, Any]) -> int:
    return int(row["rank"])


def _spread(row: Mapping[str, Any]) -> tuple[float, float]:
    return row["ndcg@20"] - (row["spread"] or 0.0), row["ndcg@20"] + (row["spread"] or 0.0)


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
    if name.endswith(("item-item", "-gram", "-pairs")):
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
