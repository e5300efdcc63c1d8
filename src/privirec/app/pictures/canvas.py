"""Helpers that all pictures share: figures, axes, legends, notes, and writing to files."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privirec.app.pictures.palette import FAINT, INK
from privirec.durable import write_whole
from privirec.errors import UsageError
from privirec.rows import as_bytes, check_writable

if TYPE_CHECKING:  # Matplotlib is slow to import, and few commands draw.
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = (".png", ".svg")
SMALL = 9.0
"""Smallest font size, in points; pictures of nine inches are shown about 800 pixels wide."""

NOTE_PLACES = ((6.0, -10.0), (6.0, 4.0), (-6.0, 4.0), (-6.0, -10.0), (6.0, -20.0), (-6.0, 14.0))
"""Possible offsets of a note from its data point, in typographic points, the best first."""


def picture_files(path: Path) -> list[Path]:
    """Return the PNG and the SVG path of a picture, given either of them."""
    if path.suffix not in KINDS:
        raise UsageError(f"{path}: a picture ends in .png or .svg (both are written)")
    return [path.with_suffix(kind) for kind in KINDS]


def check_picture(path: Path | None) -> None:
    """Raise UsageError if the files of a picture cannot be written; call it before the work."""
    if path is not None:
        for file in picture_files(path):
            check_writable(file)


def write_picture(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as PNG and as SVG, each atomically, and return the paths.

    Equal figures give identical files.
    """
    files = picture_files(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for file in files:
        write_whole(file, rendered(figure, file.suffix), durable=False, mode=0o644)
    return files


def keep_notes_apart(figure: Figure, axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Move each note to the first of `NOTE_PLACES` where it covers no point and no earlier note.

    If there is none, the note takes the first place.
    """
    from matplotlib.text import Annotation  # noqa: PLC0415
    from matplotlib.transforms import Bbox  # noqa: PLC0415

    figure.draw_without_rendering()  # Computes the layout, so that sizes are known.
    taken = [
        Bbox.from_extents(x - 5, y - 5, x + 5, y + 5) for x, y in axes.transData.transform(points)
    ]
    for note in (each for each in axes.texts if isinstance(each, Annotation)):
        for place in (*NOTE_PLACES, NOTE_PLACES[0]):
            note.set_position(place)
            note.set_horizontalalignment("left" if place[0] > 0 else "right")
            box = note.get_window_extent()
            inside = axes.bbox.x0 < box.x0 and box.x1 < axes.bbox.x1
            if inside and not box.count_overlaps(taken):
                break
        taken.append(box)


def rendered(figure: Figure, kind: str, dpi: int = 150) -> bytes:
    """Return the bytes of a PNG or SVG file.

    An SVG keeps text as text and contains neither a date nor random identifiers.
    """
    from matplotlib import rc_context  # noqa: PLC0415

    image = io.BytesIO()
    metadata = {"Date": None} if kind == ".svg" else {}
    with rc_context({"svg.hashsalt": "privirec", "svg.fonttype": "none"}):
        figure.savefig(image, format=kind[1:], dpi=dpi, facecolor="white", metadata=metadata)
    return image.getvalue()


def new_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure  # noqa: PLC0415

    return Figure(figsize=(width, height), layout="constrained")


def axes_in(figure: Figure, position: Any = 111, *, grid: str = "y") -> Axes:
    axes = figure.add_subplot(position)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(INK)
    axes.tick_params(colors=INK, labelsize=SMALL)
    axes.grid(axis=grid, color=FAINT, linewidth=0.8)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    return axes


def heading(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", color=INK, fontsize=10)


def title(figure: Figure, text: str) -> None:
    figure.suptitle(text, x=0.01, ha="left", color=INK, fontsize=12)


def legend_below(figure: Figure, *, ncols: int, handles: Sequence[Any] | None = None) -> None:
    """Add a legend below the axes, where it covers no curve."""
    more = {} if handles is None else {"handles": list(handles)}
    figure.legend(
        frameon=False,
        fontsize=SMALL,
        loc="outside lower center",
        ncols=ncols,
        labelcolor=INK,
        **more,
    )


def legend_beside(figure: Figure) -> None:
    figure.legend(frameon=False, fontsize=SMALL, loc="outside right upper", labelcolor=INK)


def patch(colour: str, label: str, *, edge: str | None = None) -> Any:
    """Return a legend entry for bars."""
    from matplotlib.patches import Patch  # noqa: PLC0415

    return Patch(facecolor=colour, edgecolor=edge or colour, label=label)


def mark(colour: str, marker: str, label: str) -> Any:
    """Return a legend entry for points."""
    from matplotlib.lines import Line2D  # noqa: PLC0415

    wide = {"markersize": 12, "markeredgewidth": 2.2} if marker == "|" else {"markersize": 7}
    return Line2D([], [], color=colour, marker=marker, linestyle="none", label=label, **wide)


def rows_down(axes: Axes, names: Sequence[str], *, labels: bool = True) -> None:
    """Set up one row per name, the first at the top.

    Pass `labels=False` if the neighbouring axes already show the names.
    """
    axes.set_yticks(range(len(names)), list(names) if labels else [""] * len(names))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.spines["left"].set_visible(False)


def note(axes: Axes, at: float, row: float, text: str, colour: str = INK) -> None:
    """Write a short text next to the end of a bar."""
    axes.annotate(
        text,
        (at, row),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        color=colour,
        fontsize=SMALL,
    )


def byte_axis(axes: Axes, sizes: Sequence[float], *, room: float = 3.0) -> None:
    """Set a logarithmic axis with ticks at 1 kB, 10 kB and so on.

    If the sizes span few decades, ticks at 2 and 5 times each power are added.
    """
    axes.set_xscale("log")
    low, high = min(sizes), max(sizes)
    axes.set_xlim(low / 1.5, high * room)
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    steps = (1,) if high / low > 300 else (1, 2, 5)
    ticks = [step * 10.0**power for power in decades for step in steps]
    ticks = [tick for tick in ticks if low / 1.5 <= tick <= high * room]
    axes.set_xticks(ticks, [as_bytes(tick).replace(".0", "") for tick in ticks])
    axes.minorticks_off()
