"""Picture of accuracy against the number of people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from privirec.app.report.pictures.canvas import (
    axes_in,
    heading,
    legend_beside,
    new_figure,
    write_picture,
)
from privirec.app.report.pictures.palette import INK, colour_of


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
