"""Picture of the demo: accuracy, histories read by an attack, and bytes of each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privirec.app.report.pictures.canvas import (
    axes_in,
    heading,
    legend_below,
    new_figure,
    note,
    patch,
    rows_down,
    title,
    write_picture,
)
from privirec.app.report.pictures.palette import ATTACK, QUIET, colour_of, pale
from privirec.rows import as_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = Sequence[Mapping[str, Any]]
HOLDS_ALL = "holds them all"
NOT_TRIED = "not attacked here"


def demo_plot(groups: Mapping[str, Rows], path: Path) -> list[Path]:
    """Draw a row of panels for each group, keyed by its title.

    Each row of a group has a label, a method, NDCG@20, bytes, the number of people and the number
    of histories that an attack read. Every method has a colour, and so have the attacks.
    """
    figure = new_figure(9.0, 1.2 + sum(0.62 + 0.36 * len(rows) for rows in groups.values()))
    heights = [0.62 + 0.36 * len(rows) for rows in groups.values()]
    grid = figure.add_gridspec(len(groups), 3, height_ratios=heights, width_ratios=(1, 1, 1.3))
    for place, (name, rows) in enumerate(groups.items()):
        accuracy, attacked, sent = (
            axes_in(figure, grid[place, column], grid="x") for column in range(3)
        )
        for axes in (accuracy, attacked, sent):
            rows_down(axes, [row["label"] for row in rows], labels=axes is accuracy)
        _accuracy(accuracy, rows)
        _attacked(attacked, rows)
        _sent(sent, rows)
        heading(accuracy, f"{name}\nNDCG@20")
        heading(attacked, "histories an attack reads")
        heading(sent, "bytes per client")
    title(figure, "How good, how private, how much traffic")
    federated = colour_of("privirec")
    handles = [
        patch(ATTACK, "what an attack gets"),
        patch(federated, "sent"),
        patch(pale(federated), "received (paler)"),
    ]
    legend_below(figure, ncols=3, handles=handles)
    return write_picture(figure, path)


def _accuracy(axes: Axes, rows: Rows) -> None:
    for place, row in enumerate(rows):
        axes.barh(place, row["ndcg@20"], 0.62, color=colour_of(row["method"]))
        note(axes, row["ndcg@20"], place, f"{row['ndcg@20']:.4f}")
    axes.set_xlim(0, 1.3 * max(row["ndcg@20"] for row in rows))


def _attacked(axes: Axes, rows: Rows) -> None:
    people = max(row["users"] for row in rows)
    for place, row in enumerate(rows):
        read = row.get("histories_read")
        if read is None:
            why = HOLDS_ALL if row["method"] == "centralized" else NOT_TRIED
            note(axes, 0, place, why, QUIET)
        else:
            axes.barh(place, read, 0.62, color=ATTACK)
            note(axes, read, place, f"{read:,} of {people:,}")
    axes.set_xlim(0, 1.75 * people)
    axes.set_xticks([0, people / 2, people], ["0", "50 %", "100 %"])


def _sent(axes: Axes, rows: Rows) -> None:
    for place, row in enumerate(rows):
        up, down = row.get("bytes_up_per_client"), row.get("bytes_down_per_client")
        if not up or not down:
            note(axes, 0, place, "none", QUIET)
            continue
        colour = colour_of(row["method"])
        for offset, size, shade in ((-0.16, up, colour), (0.16, down, pale(colour))):
            axes.barh(place + offset, size, 0.3, color=shade)
        note(axes, max(up, down), place, f"{as_bytes(up)} up, {as_bytes(down)} down")
    most = max(max(row.get(f"bytes_{way}_per_client") or 0 for row in rows) for way in _WAYS)
    axes.set_xlim(0, 2.7 * most)
    axes.set_xticks([0, most], ["0", as_bytes(most)])


_WAYS = ("up", "down")
