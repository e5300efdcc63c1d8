"""What all pictures share: an empty one, its axes, and the one way to write it."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privirec.durable import write_whole
from privirec.errors import UsageError
from privirec.report.pictures.palette import FAINT, INK
from privirec.report.rows import as_bytes, check_writable

if TYPE_CHECKING:  # every command would wait for it, and few draw
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = (".png", ".svg")
SMALL = 9.0
"""Points of the smallest letters: pictures of nine inches are shown about 800 pixels wide."""

NOTE_PLACES = ((6.0, -10.0), (6.0, 4.0), (-6.0, 4.0), (-6.0, -10.0), (6.0, -20.0), (-6.0, 14.0))
"""Where a note may stand beside its point, in points, the best place first."""


def picture_files(path: Path) -> list[Path]:
    """The files of a picture: PNG and SVG, whichever of them was named."""
    if path.suffix not in KINDS:
        raise UsageError(f"{path}: a picture ends in .png or .svg (both are written)")
    return [path.with_suffix(kind) for kind in KINDS]


def check_picture(path: Path | None) -> None:
    """Say before the work, not after, that a picture could not be written."""
    if path is not None:
        for file in picture_files(path):
            check_writable(file)


def write_picture(figure: Figure, path: Path) -> list[Path]:
    """As PNG and as SVG, each whole or not at all. The same figures give the same files."""
    files = picture_files(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for file in files:
        write_whole(file, rendered(figure, file.suffix), durable=False, mode=0o644)
    return files


def keep_notes_apart(figure: Figure, axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Move each note beside its point to the first place where it covers neither a point nor a
    note before it; where there is none, it stays below."""
    from matplotlib.text import Annotation  # noqa: PLC0415
    from matplotlib.transforms import Bbox  # noqa: PLC0415

    figure.draw_without_rendering()  # sizes are known from here on
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
    """The bytes of a PNG or SVG file. An SVG has its words as words, no date, no random names."""
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
    """Off the curves."""
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
    """What a legend shows for bars."""
    from matplotlib.patches import Patch  # noqa: PLC0415

    return Patch(facecolor=colour, edgecolor=edge or colour, label=label)


def mark(colour: str, marker: str, label: str) -> Any:
    """What a legend shows for points."""
    from matplotlib.lines import Line2D  # noqa: PLC0415

    wide = {"markersize": 12, "markeredgewidth": 2.2} if marker == "|" else {"markersize": 7}
    return Line2D([], [], color=colour, marker=marker, linestyle="none", label=label, **wide)


def rows_down(axes: Axes, names: Sequence[str], *, labels: bool = True) -> None:
    """One row for each name, the first at the top; no names where the axes beside have them."""
    axes.set_yticks(range(len(names)), list(names) if labels else [""] * len(names))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.spines["left"].set_visible(False)


def note(axes: Axes, at: float, row: float, text: str, colour: str = INK) -> None:
    """A few words behind the end of a bar."""
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
    """1 kB, 10 kB ... over the decades in use; also 2 and 5 of each where these are few."""
    axes.set_xscale("log")
    low, high = min(sizes), max(sizes)
    axes.set_xlim(low / 1.5, high * room)
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    steps = (1,) if high / low > 300 else (1, 2, 5)
    ticks = [step * 10.0**power for power in decades for step in steps]
    ticks = [tick for tick in ticks if low / 1.5 <= tick <= high * room]
    axes.set_xticks(ticks, [as_bytes(tick).replace(".0", "") for tick in ticks])
    axes.minorticks_off()
