"""Picture of accuracy against k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privirec.app.report.pictures.canvas import (
    SMALL,
    axes_in,
    heading,
    legend_beside,
    new_figure,
    write_picture,
)
from privirec.app.report.pictures.palette import CENTRALISED, EXACT, INK, QUIET, shades


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
