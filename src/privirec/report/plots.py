"""Pictures. Drawn off screen, written whole or not at all."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privirec.report.rows import as_bytes

if TYPE_CHECKING:  # every command would wait for it, and few draw
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#22303c"
COLOURS = ("#0b6e99", "#d1602d", "#4a8f3c", "#8454a6", "#b08a00", "#c2407a", "#2aa5a0", "#7a4a1e")
QUIET = "#6b7780"
"""Of what stands beside the curves: baselines, notes."""


def write_figure(figure: Figure, path: Path) -> Path:
    """Render to PNG or SVG, by the path's ending, then move into place."""
    image = io.BytesIO()
    kind = path.suffix.removeprefix(".") or "png"
    # No date and no random names in an SVG: the same figures give the same file.
    metadata = {"Date": None} if kind == "svg" else {}
    with _same_names_every_time():
        figure.savefig(image, format=kind, dpi=150, facecolor="white", metadata=metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        partial.write_bytes(image.getvalue())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _same_names_every_time() -> AbstractContextManager[None]:
    from matplotlib import rc_context  # noqa: PLC0415

    return rc_context({"svg.hashsalt": "privirec"})


def new_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure  # noqa: PLC0415

    return Figure(figsize=(width, height), layout="constrained")


def axes_in(figure: Figure, position: Any = 111) -> Axes:
    axes = figure.add_subplot(position)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(INK)
    axes.tick_params(colors=INK)
    axes.grid(axis="y", color="#e3e7ea", linewidth=0.8)
    axes.set_axisbelow(True)
    return axes


def sweep_plot(
    dataset: str, points: Sequence[Mapping[str, Any]], competitive: int | None, path: Path
) -> Path:
    """NDCG@20 of GF-CF on PriviRec-k against k, PriviRec as a level line of the same colour."""
    figure = new_figure(7.2, 4.4)
    axes = axes_in(figure)
    for colour, rounds in zip(COLOURS, sorted({row["rounds"] for row in points}), strict=False):
        curve = sorted((row["rank"], row["ndcg@20"]) for row in points if row["rounds"] == rounds)
        level = [ndcg for rank, ndcg in curve if rank == 0]
        line = [(rank, ndcg) for rank, ndcg in curve if rank]
        axes.plot(
            *zip(*line, strict=True), "o-", color=colour, ms=4, label=f"PriviRec-k, L = {rounds}"
        )
        if level:
            axes.axhline(level[0], color=colour, ls="--", lw=1.2, label=f"PriviRec, L = {rounds}")
    if competitive:
        axes.axvline(competitive, color="#9aa5ad", ls=":", lw=1.2)
        axes.annotate(
            f"paper: k = {competitive:,}",
            (competitive, 0.02),
            xycoords=("data", "axes fraction"),
            xytext=(-4, 0),
            textcoords="offset points",
            ha="right",
            color=QUIET,
            fontsize=8,
        )
    axes.set_xlabel("k", color=INK)
    axes.set_ylabel("NDCG@20", color=INK)
    axes.set_title(f"GF-CF on {dataset}: PriviRec-k against k", loc="left", color=INK)
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="lower right", bbox_to_anchor=(1, 0.08))
    return write_figure(figure, path)


def methods_plot(title: str, rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Accuracy beside bytes a client sends and receives, one bar a method."""
    figure = new_figure(8.4, 3.6)
    names = [row["label"] for row in rows]
    left = axes_in(figure, 121)
    bars = left.bar(names, [row["ndcg@20"] for row in rows], color=COLOURS[: len(rows)], width=0.6)
    left.bar_label(bars, fmt="%.4f", fontsize=8, color=INK)
    left.set_title("NDCG@20", loc="left", color=INK, fontsize=10)
    right = axes_in(figure, 122)
    federated = [row for row in rows if row["bytes_up_per_client"]]
    places = range(len(federated))
    for offset, key, label in (
        (-0.2, "bytes_up_per_client", "up"),
        (0.2, "bytes_down_per_client", "down"),
    ):
        megabytes = [row[key] / 1e6 for row in federated]
        bars = right.bar(
            [place + offset for place in places],
            megabytes,
            width=0.38,
            label=label,
            color=COLOURS[0] if label == "up" else COLOURS[1],
        )
        right.bar_label(bars, fmt="%.3g", fontsize=8, color=INK)
    right.set_xticks(list(places), [row["label"] for row in federated])
    right.set_title("MB per client", loc="left", color=INK, fontsize=10)
    right.legend(frameon=False, fontsize=8)
    figure.suptitle(title, x=0.01, ha="left", color=INK)
    return write_figure(figure, path)


def people_plot(rows: Sequence[Mapping[str, Any]], epsilon: float, path: Path) -> Path:
    """NDCG@20 against the number of people: a line for each data set that was taken in parts, a
    point for one that was not; a colour for each method, bars for the spread of seeds."""
    figure = new_figure(8.2, 4.6)
    axes = axes_in(figure)
    methods = list(dict.fromkeys(row["method"] for row in rows))
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    for method, colour in zip(methods, cycle(COLOURS)):
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
                color=colour,
                ms=5,
                lw=1.6 if method == methods[0] else 1.1,
                capsize=2,
                label=f"{method}, {dataset}",
            )
    axes.set_xscale("log")
    people = sorted({row["people"] for row in rows})
    shown = people[-1:]  # from the largest down, those that leave room for each other's figures
    for one in reversed(people):
        if one < shown[0] / 1.5:
            shown.insert(0, one)
    axes.set_xticks(shown, [f"{one:,}" for one in shown])
    axes.minorticks_off()
    axes.tick_params(axis="x", labelsize=8)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("people", color=INK)
    axes.set_ylabel("NDCG@20", color=INK)
    axes.set_title(f"Accuracy against people at epsilon {epsilon:g}", loc="left", color=INK)
    figure.legend(frameon=False, fontsize=8, loc="outside right upper")
    return write_figure(figure, path)


FRONTIER_PANELS = (
    ("bytes_per_client", "up and down, per client"),
    ("bytes_up_per_client", "up"),
    ("bytes_down_per_client", "down"),
)


def frontier_plot(
    title: str,
    summary: Sequence[Mapping[str, Any]],
    families: Mapping[str, str],
    levels: Sequence[Mapping[str, Any]],
    paths: Sequence[Path],
) -> None:
    """NDCG@20 against bytes: a colour for each of the families (name to title), always the same
    one, and level lines for baselines that send nothing; the same picture into each file."""
    figure = new_figure(13.2, 5.6)
    grid = figure.add_gridspec(1, 3, width_ratios=(1.9, 1, 1))
    first: Axes | None = None
    for panel, (key, heading) in enumerate(FRONTIER_PANELS):
        axes = axes_in(figure, grid[panel])
        for (family, name), colour in zip(families.items(), cycle(COLOURS)):
            mine = [row for row in summary if row["family"] == family]
            if mine:
                _frontier_line(axes, mine, key, colour, name if panel == 0 else None, panel == 0)
        for row, dashes in zip(levels, cycle(("--", ":", "-."))):
            label = f"{row['label']}, centralised: {row['ndcg@20']:.4f}" if panel == 0 else None
            axes.axhline(row["ndcg@20"], color=QUIET, ls=dashes, lw=1.1, zorder=1, label=label)
        axes.set_title(heading, loc="left", color=INK, fontsize=10)
        axes.set_xlabel("bytes (log scale)", color=INK)
        if summary:
            _byte_ticks(axes, [row[key] for row in summary])
        axes.set_ylim(bottom=0)
        if first is None:
            axes.set_ylabel("NDCG@20", color=INK)
            first = axes
        else:
            axes.sharey(first)
            axes.tick_params(labelleft=False)
    figure.suptitle(title, x=0.01, ha="left", color=INK)
    figure.legend(frameon=False, fontsize=8.5, loc="outside lower center", ncols=4)
    for path in paths:
        write_figure(figure, path)


def _frontier_line(
    axes: Axes,
    rows: Sequence[Mapping[str, Any]],
    key: str,
    colour: str,
    name: str | None,
    notes: bool,
) -> None:
    """One family: a line from point to point, each with its note; of epochs the first and last."""
    rows = sorted(rows, key=lambda row: (row[key], row["ndcg@20"]))
    sizes, ndcg = [row[key] for row in rows], [row["ndcg@20"] for row in rows]
    axes.plot(sizes, ndcg, "o-", color=colour, ms=4.5, lw=1.5, label=name, zorder=3)
    if not notes:
        return
    from matplotlib.patheffects import withStroke  # noqa: PLC0415

    last = len(rows) - 1
    for place, row in enumerate(rows):
        if row["epochs"] is None or place in (0, last):
            axes.annotate(
                row["label"],
                (row[key], row["ndcg@20"]),
                xytext=(5, -9),
                textcoords="offset points",
                color=colour,
                fontsize=7,
                path_effects=[withStroke(linewidth=2.5, foreground="white")],
                zorder=4,
            )


def _byte_ticks(axes: Axes, sizes: Sequence[float]) -> None:
    """1 kB, 10 kB ... over the decades in use; also 2 and 5 of each where these are few."""
    axes.set_xscale("log")
    low, high = min(sizes), max(sizes)
    axes.set_xlim(low / 1.5, high * 3)
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    steps = (1,) if high / low > 300 else (1, 2, 5)
    ticks = [step * 10.0**power for power in decades for step in steps]
    ticks = [tick for tick in ticks if low / 1.5 <= tick <= high * 3]
    axes.set_xticks(ticks, [as_bytes(tick).replace(".0", "") for tick in ticks])
    axes.minorticks_off()
    axes.tick_params(axis="x", labelsize=8)
