"""What a fit costs against the number of users, on data in shards, each step a process of its own.

    python benchmarks/scale.py FOLDER
    python benchmarks/scale.py FOLDER --users 100000,1000000 --secagg ROWS

Makes synthetic data with 200,000 items in FOLDER, fits, evaluates 10,000 users and saves a model,
by `protected` and by `spectral` with 200 columns. Prints a row a step: CPU seconds, wall seconds,
peak memory. What is there already is not done again. Draws scale.png, with the cost of secure
aggregation beside it if rows of `secagg_scale.py head` are given.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ITEMS = 200_000
TEN_MILLION = 10_000_000
METHODS = {
    "protected": [],
    "spectral": ["--rank", "128", "--columns", "4x50"],
}
MEASURED = """
import json, resource, sys, time
from privirec.app.cli import start
begun, code = time.perf_counter(), 0
try:
    start()
except SystemExit as stop:
    code = stop.code
wall, cpu = time.perf_counter() - begun, time.process_time()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
print(json.dumps({"wall_seconds": wall, "cpu_seconds": cpu, "peak_gb": peak}))
sys.exit(code)
"""


def measured(*arguments: object) -> dict[str, Any]:
    """A command of privirec, and what it cost."""
    command = [sys.executable, "-c", MEASURED, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def steps(folder: Path, users: int, sample: int) -> list[tuple[str, list[object]]]:
    name = f"{users}x{ITEMS}" if users != TEN_MILLION else "ten-million"
    data = folder / name
    made = [("make", ["data", "make", f"synthetic:{name}", data])]
    for method, settings in METHODS.items():
        out = folder / f"{name}-{method}"
        run = ["run", "--dataset", data, "--method", method, *settings, "--sample", sample]
        made.append((method, [*run, "--save", out, "--json", f"{out}.json"]))
    return made


def rows(folder: Path, sizes: list[int], sample: int) -> list[dict[str, Any]]:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "rows.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    known = {(row["users"], row["step"]) for row in found}
    for users in sizes:
        for step, command in steps(folder, users, sample):
            if (users, step) in known:
                continue
            row = {"users": users, "step": step} | measured(*command)
            if step != "make":
                saved = json.loads(Path(str(command[-1])).read_text())
                row |= {key: saved[key] for key in ("ndcg@20", "recall@20", "evaluated_users")}
                row["bytes_up_per_client"] = saved["bytes_up_per_client"]
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            found.append(row)
    return found


def plot(found: list[dict[str, Any]], secagg: list[dict[str, Any]], path: Path) -> None:
    from privirec.app.pictures.canvas import (
        axes_in,
        heading,
        legend_below,
        new_figure,
        write_picture,
    )
    from privirec.app.pictures.palette import INK, QUIET, colour_of, marker_of

    panels = [("CPU minutes", "cpu_seconds", 1 / 60), ("peak memory, GB", "peak_gb", 1.0)]
    width = len(panels) + bool(secagg)
    figure = new_figure(3.2 * width, 3.6)
    for place, (title, key, unit) in enumerate(panels, 1):
        axes = axes_in(figure, 100 + 10 * width + place)
        for step in ("make", *METHODS):
            points = sorted((row["users"], row[key] * unit) for row in found if row["step"] == step)
            making = step == "make"
            axes.semilogx(
                *zip(*points, strict=True),
                marker="s" if making else marker_of(step),
                color=QUIET if making else colour_of(step),
                label=("making the data" if making else step) if place == 1 else None,
            )
        if key == "cpu_seconds":
            axes.set_yscale("log")
        else:
            axes.set_ylim(0, 1.15 * max(row[key] * unit for row in found))
        heading(axes, title)
        axes.set_xlabel("users", color=INK)
    if secagg:
        axes = axes_in(figure, 100 + 11 * width)
        points = sorted((row["clients"], row["cpu_ms_per_client"]) for row in secagg)
        axes.semilogx(*zip(*points, strict=True), "o-", color=INK)
        axes.set_ylim(0, 1.15 * max(value for _, value in points))
        heading(axes, "secure aggregation, ms a client")
        axes.set_xlabel("clients", color=INK)
    legend_below(figure, ncols=3)
    write_picture(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--users", default="100000,1000000,10000000")
    parser.add_argument("--sample", type=int, default=10_000)
    parser.add_argument("--secagg", type=Path, help="rows of secagg_scale.py head")
    parser.add_argument("--out", type=Path, default=Path("privirec-out"))
    args = parser.parse_args()
    found = rows(args.folder, [int(each) for each in args.users.split(",")], args.sample)
    for row in found:
        print(json.dumps(row))
    lines = args.secagg.read_text().splitlines() if args.secagg else []
    secagg = [json.loads(line) for line in lines if line.startswith("{")]
    plot(found, secagg, args.out / "scale.png")
    print(f"Saved {args.out / 'scale.png'}")


if __name__ == "__main__":
    main()
