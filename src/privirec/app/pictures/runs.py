"""Pictures of runs: a federation over time, the demo, and accuracy against numbers of people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privirec.app.pictures.canvas import (
    axes_in,
    heading,
    legend_below,
    legend_beside,
    new_figure,
    note,
    patch,
    rows_down,
    title,
    write_picture,
)
from privirec.app.pictures.palette import ATTACK, INK, QUIET, colour_of, pale
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


Rows = Sequence[Row]
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
        _accuracy_in_demo(accuracy, rows)
        _attacked(attacked, rows)
        _sent_in_demo(sent, rows)
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


def _accuracy_in_demo(axes: Axes, rows: Rows) -> None:
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


def _sent_in_demo(axes: Axes, rows: Rows) -> None:
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


def people_plot(rows: Sequence[Mapping[str, Any]], epsilon: float, path: Path) -> list[Path]:
    """Draw NDCG@20 against the number of people, with a colour for each method.

    A data set measured at several sizes is a line, any other a point. Error bars show the spread
    over seeds.
    """
    figure = new_figure(9.0, 4.6)
    axes = axes_in(figure)
    methods = list(dict.fromkeys(row["method"] for row in rows))
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    for method in methods:
        for dataset, marker in zip(datasets, cycle("os^Dv")):
            mine = sorted(
                (row for row in rows if (row["method"], row["dataset"]) == (method, dataset)),
                key=lambda row: row["people"],
            )
            if not mine:
                continue
            axes.errorbar(
                [row["people"] for row in mine],
                [row["ndcg@20"] for row in mine],
                [row["spread"] or 0.0 for row in mine],
                fmt=f"{marker}-",
                color=colour_of(method),
                ms=6,
                lw=1.8 if method == methods[0] else 1.3,
                capsize=2,
                label=f"{method}, {dataset}",
            )
    axes.set_xscale("log")
    people = sorted({row["people"] for row in rows})
    shown = people[-1:]  # Tick labels, from the largest down, with space between them.
    for one in reversed(people):
        if one < shown[0] / 1.5:
            shown.insert(0, one)
    axes.set_xticks(shown, [f"{one:,}" for one in shown])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("people", color=INK)
    axes.set_ylabel("NDCG@20", color=INK)
    heading(axes, f"Accuracy against people at epsilon {epsilon:g}")
    legend_beside(figure)
    return write_picture(figure, path)
