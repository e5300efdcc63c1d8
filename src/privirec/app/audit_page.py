"""An audit as one HTML page: the results of every attack, with embedded pictures."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privirec.app.pictures.canvas import axes_in, new_figure, rendered
from privirec.app.pictures.palette import ATTACK, CHANCE, INK, PROTECTED, pale, shades
from privirec.durable import write_whole
from privirec.privacy.attacks import Found
from privirec.privacy.attacks.grading import PARTS, roc
from privirec.privacy.worth import figures
from privirec.rows import as_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
BARS = (ATTACK, CHANCE, pale(ATTACK))
"""Colours of the bars: the attack, popularity, and the attack on people who took no part."""
LEAST_RATE = 1e-4
"""Lower end of the logarithmic axes of a ROC curve."""

COLUMNS = [
    ("attack", "attack"),
    ("users", "people"),
    ("users_recovered", "whole histories"),
    ("users_wrong", "wrong"),
    ("interaction_precision", "precision"),
    ("matched_precision", "in the most similar history"),
    ("popularity_precision", "from popularity"),
    ("precision_on_outsiders", "on outsiders"),
    ("interaction_recall", "recall"),
    ("lists_share", "user lists"),
    ("auc", "AUC"),
    ("tpr_at_0.1%_fpr", "found at 0.1 % false"),
    ("empirical_epsilon", "epsilon at least"),
    ("empirical_epsilon_gaussian", "(if Gaussian)"),
    ("empirical_epsilon_replacing", "for replacing, at least"),
    ("seconds", "seconds"),
]
_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;color:#22303c;max-width:70rem;margin:2rem auto}
body{padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem}
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid #dde3e8;white-space:nowrap}
th:first-child,td:first-child{text-align:left}th{vertical-align:bottom;white-space:normal}
img{max-width:100%;height:auto}p{max-width:46rem}
"""


def write_page(folder: Path, title: str, audited: Sequence[tuple[Row, Found]]) -> Path:
    """Write the page to `folder`/index.html and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "index.html"
    write_whole(path, page(title, audited).encode())
    return path


def page(title: str, audited: Sequence[tuple[Row, Found]]) -> str:
    """Return the HTML of the page, with its pictures embedded."""
    rows = [row for row, _ in audited]
    first: Row = rows[0] if rows else {}
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{html.escape(promise_of(first))}</p>",
        _table(rows),
    ]
    for heading, explanation, figure in (
        (
            "Whole histories",
            "Share of the attacked people whose whole history was recovered.",
            _recovered(rows),
        ),
        (
            "Interactions beside popularity",
            "Share of the named items that are true, for each attack and for naming the most "
            "popular items instead. Guesses without a name are compared with the most similar "
            "history. A useful model also guesses the last item of people who did not take part.",
            _beside_popularity(rows),
        ),
        (
            "Who took part",
            "True against false positives, on logarithmic axes; attacks with few false positives "
            "are at the left. The dotted line is chance. The promise is that no attack gets above "
            "the dashed line.",
            _roc_figure(audited, first),
        ),
        (
            "By length and popularity",
            "Share of the histories found by their length, and of the interactions found by the "
            "popularity of the item, in fifths.",
            _parts(rows),
        ),
        (
            "Epsilon, promised and measured",
            "Lower bounds at 95 % confidence from made-up people in one run of real clients. A "
            "bound above the promise would refute it.",
            _epsilons(rows),
        ),
    ):
        if figure is not None:
            picture = f'<img alt="{heading}" src="data:image/png;base64,{_encoded(figure)}">'
            parts.append(f"<h2>{heading}</h2><p>{explanation}</p>{picture}")
    body = "\n".join(parts)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style>{body}</html>\n"
    )


def promise_of(row: Row) -> str:
    """Return a sentence that states the promise of a release."""
    if row.get("epsilon") is None:
        return "Nothing is promised for this release: it has no noise, or does not say."
    both = figures(row["epsilon"], row["delta"], row.get("epsilon_replacing") or math.inf)
    promised = f"Promised to every person: {both}"
    if row.get("noise") == "off":
        return f"{promised}; but the noise was left out, to see that the attacks would tell."
    return f"{promised}."


def _table(rows: Sequence[Row]) -> str:
    shown = [pair for pair in COLUMNS if any(row.get(pair[0]) is not None for row in rows)]
    head = "".join(f"<th>{html.escape(heading)}</th>" for _, heading in shown)
    body = "".join(
        "<tr>"
        + "".join(f"<td>{html.escape(as_text(key, row.get(key)) or '–')}</td>" for key, _ in shown)
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _encoded(figure: Figure) -> str:
    return base64.b64encode(rendered(figure, ".png", dpi=110)).decode()


def _bars(rows: Sequence[tuple[str, Sequence[float | None]]], labels: Sequence[str]) -> Figure:
    """Draw horizontal bars, one group per row, for shares from 0 to 1."""
    figure = new_figure(8.4, 0.7 + 0.26 * len(labels) * len(rows) + 0.15 * len(rows))
    axes = axes_in(figure)
    height = 0.8 / len(labels)
    for number, (label, colour) in enumerate(zip(labels, BARS, strict=False)):
        places = [place + number * height for place in range(len(rows))]
        values = [float(one[1][number] or 0.0) for one in rows]
        bars = axes.barh(places, values, height * 0.9, color=colour, label=label)
        told = ["–" if one[1][number] is None else f"{one[1][number]:.1%}" for one in rows]
        axes.bar_label(bars, told, fontsize=8, color=INK, padding=3)
    axes.set_yticks(
        [place + height * (len(labels) - 1) / 2 for place in range(len(rows))],
        [name for name, _ in rows],
    )
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    if len(labels) > 1:
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def _recovered(rows: Sequence[Row]) -> Figure | None:
    shares = [
        (row["attack"], [row["users_recovered"] / max(row["users"], 1)])
        for row in rows
        if row.get("users_recovered") is not None
    ]
    return _bars(shares, ["whole histories"]) if shares else None


def _beside_popularity(rows: Sequence[Row]) -> Figure | None:
    chosen = []
    for row in rows:
        own = row.get("matched_precision")
        own = row.get("interaction_precision") if own is None else own
        if row.get("popularity_precision") is not None:
            usual, outside = row["popularity_precision"], row.get("precision_on_outsiders")
            chosen.append((row["attack"], [own, usual, outside]))
    labels = ["attack", "popularity", "the attack on outsiders"]
    if all(values[2] is None for _, values in chosen):
        labels = labels[:2]
    return _bars(chosen, labels) if chosen else None


def _roc_figure(audited: Sequence[tuple[Row, Found]], first: Row) -> Figure | None:
    tested = [(row, found) for row, found in audited if found.tests]
    if not tested:
        return None
    figure = new_figure(6.4, 5.0)
    axes = axes_in(figure)
    for colour, (row, found) in zip(shades(ATTACK, len(tested)), tested, strict=True):
        false, true = roc(found.tests[row["statistic"]])
        label = f"{row['attack']}, AUC {row['auc']:.3f}"
        axes.step(
            np.maximum(false, LEAST_RATE), np.maximum(true, LEAST_RATE), color=colour, label=label
        )
    rates = np.geomspace(LEAST_RATE, 1, 200)
    axes.plot(rates, rates, ":", color=CHANCE, lw=1.4)
    if first.get("epsilon") is not None:
        _promised_curve(axes, rates, float(first["epsilon"]), float(first["delta"]))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(LEAST_RATE, 1)
    axes.set_ylim(LEAST_RATE, 1.3)
    axes.set_xlabel("false positives", color=INK)
    axes.set_ylabel("true positives", color=INK)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def _promised_curve(axes: Axes, rates: Any, epsilon: float, delta: float) -> None:
    """Draw the bound TPR <= e^epsilon FPR + delta, and the one with the hypotheses swapped."""
    upper = np.minimum(np.exp(epsilon) * rates + delta, 1 - (1 - delta - rates) / np.exp(epsilon))
    axes.plot(rates, np.minimum(upper, 1), "--", color=PROTECTED, lw=1.4, label="most promised")


def _parts(rows: Sequence[Row]) -> Figure | None:
    chosen = [row for row in rows if row.get("users_recovered") and "recall_by_length_1" in row]
    if not chosen:
        return None
    figure = new_figure(8.4, 3.2)
    for place, kind in ((121, "length"), (122, "popularity")):
        axes = axes_in(figure, place)
        for colour, row in zip(shades(ATTACK, len(chosen)), chosen, strict=True):
            values = [row.get(f"recall_by_{kind}_{part + 1}") or 0.0 for part in range(PARTS)]
            axes.plot(range(1, PARTS + 1), values, "o-", ms=4, color=colour, label=row["attack"])
        axes.set_ylim(0, 1.05)
        axes.set_xticks(range(1, PARTS + 1))
        axes.set_title(f"recall by {kind}", loc="left", color=INK, fontsize=10)
        ends = ("shortest", "longest") if kind == "length" else ("rarest", "most popular")
        axes.set_xlabel(f"fifth, from the {ends[0]} to the {ends[1]}", color=INK)
        axes.legend(frameon=False, fontsize=8)
    return figure


def _epsilons(rows: Sequence[Row]) -> Figure | None:
    measured = [row for row in rows if row.get("empirical_epsilon") is not None]
    if not measured:
        return None
    row = measured[0]
    values = {
        "promised": row.get("promised_epsilon"),
        "at least": row["empirical_epsilon"],
        "at least, if Gaussian": row["empirical_epsilon_gaussian"],
        "promised, replacing": row.get("promised_epsilon_replacing"),
        "at least, replacing": row.get("empirical_epsilon_replacing"),
    }
    shown = {name: value for name, value in values.items() if value is not None}
    figure = new_figure(6.4, 0.6 + 0.45 * len(shown))
    axes = axes_in(figure)
    colours = [PROTECTED if name.startswith("promised") else ATTACK for name in shown]
    bars = axes.barh(list(shown), list(shown.values()), 0.6, color=colours)
    axes.bar_label(bars, fmt="%.2f", fontsize=8, color=INK, padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    return figure
