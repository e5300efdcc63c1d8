"""Picture of accuracy against bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privirec.app.report.pictures.canvas import (
    NOTE_PLACES,
    axes_in,
    byte_axis,
    heading,
    keep_notes_apart,
    legend_below,
    new_figure,
    title,
    write_picture,
)
from privirec.app.report.pictures.palette import CENTRALISED, INK, colour_of, for_text, marker_of

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
