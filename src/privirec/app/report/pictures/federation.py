"""Picture of a federated run: time, bytes and clients of each sum."""

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
from privirec.app.report.pictures.palette import INK, QUIET, colour_of, pale
from privirec.rows import as_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]


def federation_plot(
    about: str, method: str, clients: int, stages: Sequence[Row], path: Path
) -> list[Path]:
    """Draw a row for each stage of the run, in order.

    A row shows its start and end, the mean bytes up and down per client, and how many of the
    `clients` on the roster were in it.
    """
    figure = new_figure(9.2, 1.7 + 0.42 * len(stages))
    grid = figure.add_gridspec(1, 3, width_ratios=(1.25, 1.15, 0.9))
    when, sent, present = (axes_in(figure, grid[0, column], grid="x") for column in range(3))
    for axes in (when, sent, present):
        rows_down(axes, [_name(stage) for stage in stages], labels=axes is when)
    colour = colour_of(method)
    _when(when, stages, colour)
    _sent(sent, stages, colour)
    _present(present, stages, colour, clients)
    title(figure, about)
    handles = [
        patch(colour, "a sum; up; clients in it"),
        patch(pale(colour), "down"),
        patch(QUIET, "no sum"),
    ]
    if any(stage["clients"] < clients for stage in stages):
        handles.append(patch("white", "dropped out", edge=INK))
        handles[-1].set_hatch("///")
    legend_below(figure, ncols=4, handles=handles)
    return write_picture(figure, path)


def _name(stage: Row) -> str:
    return f"{stage['sum_number']}: {stage['name']}" if stage["sum_number"] else str(stage["name"])


def _when(axes: Axes, stages: Sequence[Row], colour: str) -> None:
    heading(axes, "seconds since the run began")
    for place, stage in enumerate(stages):
        length = stage["ended"] - stage["began"]
        shade = colour if stage["sum_number"] else QUIET
        axes.barh(place, length, 0.6, left=stage["began"], color=shade)
        note(axes, stage["ended"], place, f"{length:.0f} s")
    axes.set_xlim(0, 1.18 * max(stage["ended"] for stage in stages))


def _sent(axes: Axes, stages: Sequence[Row], colour: str) -> None:
    heading(axes, "bytes per client")
    for place, stage in enumerate(stages):
        up, down = stage["bytes_up"], stage["bytes_down"]
        axes.barh(place - 0.15, up, 0.28, color=colour)
        axes.barh(place + 0.15, down, 0.28, color=pale(colour))
        known = f"{as_bytes(up)}, {as_bytes(down)}" if up or down else "counted with sum 1"
        note(axes, max(up, down), place, known)
    most = max([1.0, *(max(stage["bytes_up"], stage["bytes_down"]) for stage in stages)])
    axes.set_xlim(0, 1.95 * most)
    axes.set_xticks([0, most], ["0", as_bytes(most)])


def _present(axes: Axes, stages: Sequence[Row], colour: str, clients: int) -> None:
    heading(axes, "clients")
    for place, stage in enumerate(stages):
        shade = colour if stage["sum_number"] else QUIET
        axes.barh(place, stage["clients"], 0.6, color=shade)
        gone = clients - stage["clients"]
        if gone:
            axes.barh(
                place, gone, 0.6, left=stage["clients"], color="white", edgecolor=INK, hatch="///"
            )
        note(axes, clients, place, f"{stage['clients']:,} of {clients:,}")
    axes.set_xlim(0, 1.6 * clients)
    axes.set_xticks([0, clients], ["0", f"{clients:,}"])
