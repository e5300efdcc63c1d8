"""Tests of pictures: PNG and SVG files, their texts and colours, and atomic writes."""

from __future__ import annotations

import itertools
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from privirec.app.cli.every import app
from privirec.app.pictures import check_picture, picture_files
from privirec.app.pictures import palette as colours
from privirec.app.pictures.canvas import NOTE_PLACES, keep_notes_apart, new_figure
from privirec.app.pictures.paper import STAGE_NAMES, parts_of, stage_of
from privirec.app.pictures.runs import demo_plot, federation_plot
from privirec.data import Dataset
from privirec.errors import DataError, UsageError
from privirec.evaluation import evaluate
from privirec.experiments.cost import Sizes, byte_rows
from privirec.experiments.frontier import FAMILIES
from privirec.experiments.privacy_table import METHODS
from privirec.experiments.sweep import Sweep, averaged
from privirec.federated.contributions import REGISTRY
from privirec.federated.programs import PROGRAMS
from privirec.models import GFCF
from privirec.runtime.timeline import Timeline

RUNNER = CliRunner()
# Machado, Oliveira and Fernandes 2009: simulation of colour blindness in linear RGB, full severity.
VISIONS = {
    "usual": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def words_of(path: Path) -> str:
    """Return all words of an SVG file, and check that it is one."""
    root = ET.fromstring(path.read_text(encoding="utf-8"))  # noqa: S314 - our own file
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    return " | ".join(text.strip() for text in root.itertext() if text.strip())


def is_drawn(path: Path, *expected: str, hues: tuple[str, ...] = ()) -> None:
    """Check that PNG and SVG exist, and that the SVG has these words and colours."""
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    svg = path.with_suffix(".svg")
    words = words_of(svg)
    for word in expected:
        assert word in words, word
    for hue in hues:
        assert hue in svg.read_text(encoding="utf-8"), hue
    assert not list(path.parent.glob(".*.part"))


def _lab(colour: str, vision: Any) -> NDArray[np.float64]:
    rgb = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.asarray(vision) @ linear, 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(to_xyz) @ seen / [0.9505, 1, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISIONS)
def test_colours_are_distinct_with_colour_blindness(vision: str) -> None:
    different = {*colours.METHODS.values(), colours.ATTACK, colours.CHANCE, colours.PROTECTED}
    seen = {colour: _lab(colour, VISIONS[vision]) for colour in different}
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 12, (one, other)


def test_every_method_has_a_colour_and_no_method_that_of_an_attack() -> None:
    for name in {*PROGRAMS, *FAMILIES, *METHODS}:
        assert colours.colour_of(name) != colours.ATTACK
    assert len(set(colours.shades(colours.EXACT, 5))) == 5
    assert colours.shades(colours.EXACT, 1) == [colours.EXACT]


def test_notes_cover_neither_points_nor_each_other() -> None:
    figure = new_figure(4, 3)
    axes = figure.add_subplot()
    points = [(1.0, 1.0), (1.02, 1.0), (1.0, 1.03)]
    for point in points:
        axes.annotate("a note", point, xytext=NOTE_PLACES[0], textcoords="offset points")
    axes.set(xlim=(0, 2), ylim=(0, 2))
    keep_notes_apart(figure, axes, points)
    boxes = [note.get_window_extent() for note in axes.texts]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    for x, y in axes.transData.transform(points):
        assert not any(box.contains(x, y) for box in boxes)


def test_a_picture_is_both_files_and_nothing_else(tmp_path: Path) -> None:
    both = [tmp_path / "a.png", tmp_path / "a.svg"]
    assert picture_files(tmp_path / "a.png") == picture_files(tmp_path / "a.svg") == both
    for name in ("a.jpg", "a"):
        with pytest.raises(UsageError, match=r"ends in \.png or \.svg"):
            check_picture(tmp_path / name)
    (tmp_path / "a.svg").mkdir()  # the other one of the two
    with pytest.raises(UsageError, match="it is a folder"):
        check_picture(tmp_path / "a.png")


def _must_not_run(*_: Any, **__: Any) -> None:
    raise AssertionError("the work began")


@pytest.mark.parametrize("name", ["file/a.png", "a.gif", "folder.png"])
def test_unwritable_pictures_are_refused_before_the_work(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.png").mkdir()
    for command in (["audit"], ["paper", "cost"], ["federate"]):
        monkeypatch.setattr(f"privirec.app.cli.{command[-1]}.load_dataset", _must_not_run)
        arguments = [*command, "--dataset", "synthetic:small", "--picture", str(tmp_path / name)]
        done = RUNNER.invoke(app, arguments)
        assert isinstance(done.exception, UsageError), done.exception
        assert "\n" not in str(done.exception)


def test_folders_whose_picture_cannot_be_written_are_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("demo", "sweep-synthetic-small", "frontier-synthetic-small"):
        (tmp_path / f"{name}.svg").mkdir()
    monkeypatch.setattr("privirec.app.cli.demo.demo", _must_not_run)
    monkeypatch.setattr(Sweep, "centralised", _must_not_run)
    monkeypatch.setattr("privirec.app.cli.frontier.points_of", _must_not_run)
    of_small = ["--dataset", "synthetic:small"]
    several = ["--datasets", "synthetic:small"]
    for command in (["demo"], ["paper", "sweep", *of_small], ["paper", "frontier", *several]):
        done = RUNNER.invoke(app, [*command, "--out", str(tmp_path)])
        assert isinstance(done.exception, UsageError), done.exception
        assert "it is a folder" in str(done.exception)


# --- sweep ----------------------------------------------------------------------------------------


def test_seeds_are_averaged() -> None:
    ndcg = [0.1, 0.2, 0.4]
    rows = [
        {"rounds": 2, "rank": 8, "ndcg@20": one, "recall@20": 2 * one, "seed": seed}
        for seed, one in enumerate(ndcg)
    ]
    alone = {"rounds": 2, "rank": 16, "ndcg@20": 0.5, "recall@20": 0.6, "seed": 0}
    first, second = averaged([alone, *rows])
    assert (first["rank"], first["seeds"], second["rank"], second["seeds"]) == (8, 3, 16, 1)
    assert first["ndcg@20"] == pytest.approx(mean(ndcg))
    assert first["recall@20"] == pytest.approx(2 * mean(ndcg))
    assert first["spread"] == pytest.approx(stdev(ndcg))
    assert second["ndcg@20"] == 0.5
    assert second["spread"] is None


def test_sweep_draws_seeds_and_the_centralised_line(small: Dataset, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    arguments = [
        "paper",
        "sweep",
        "--dataset",
        "synthetic:small",
        "--ranks",
        "8,16",
        "--rounds",
        "2",
    ]
    arguments += ["--seeds", "3", "--out", str(tmp_path), "--threads", "1", "--json", str(rows)]
    done = RUNNER.invoke(app, arguments)
    assert done.exception is None, done.output
    assert "mean of seeds 0 to 2" in done.output
    expected = ("GF-CF, centralised", "PriviRec-k, L = 2", "mean of 3 seeds")
    picture = tmp_path / "sweep-synthetic-small.png"
    is_drawn(picture, *expected, hues=(colours.CENTRALISED, colours.EXACT))
    central, *points = map(json.loads, rows.read_text().splitlines())
    exact = evaluate(GFCF(rank=256).fit(small.train), small).ndcg
    assert central["ndcg@20"] == pytest.approx(exact, abs=1e-6)
    assert {row["seed"] for row in points} == {0, 1, 2}
    assert len(points) == 9  # three seeds of k = 8, 16, and PriviRec
    before = picture.with_suffix(".svg").read_bytes()
    assert RUNNER.invoke(app, arguments).exception is None
    assert picture.with_suffix(".svg").read_bytes() == before


# --- cost -----------------------------------------------------------------------------------------


def test_cost_draws_the_bytes_by_purpose(tmp_path: Path) -> None:
    picture = tmp_path / "cost.svg"
    sizes = ["--users", "500", "--items", "300", "--rank", "20", "--low-pass-rank", "10"]
    done = RUNNER.invoke(app, ["paper", "cost", *sizes, "--picture", str(picture)])
    assert done.exception is None, done.output
    hues = (colours.EXACT, colours.PROTECTED)
    is_drawn(picture, "PriviRec-k, paper", "federated GCN or MF", *STAGE_NAMES, hues=hues)


def test_parts_of_the_bytes_are_all_of_them() -> None:
    for row in byte_rows(Sizes(500, 300, 10, 20, aggregator="secagg+")):
        for way in ("up", "down"):
            both = row[f"bytes_{way}_per_client"] + row[f"aggregation_bytes_{way}_per_client"]
            assert sum(parts_of(row, way).values()) == both


def test_every_sum_has_its_stage() -> None:
    rest = {name for name in REGISTRY if stage_of(name) == "bounds and checks"}
    assert rest == {"row-reach", "score-histogram", "validation-metrics"}


# --- audit ----------------------------------------------------------------------------------------


@pytest.mark.check
def test_audit_draws_attacks_with_and_without_noise(tmp_path: Path) -> None:
    rows, picture = tmp_path / "rows.jsonl", tmp_path / "audit.png"
    data = ["audit", "--dataset", "synthetic:small", "--release", "protected"]
    attacks = ["--attack", "differencing-runs", "--attack", "membership", "--attack", "canaries"]
    shared = [*data, *attacks, "--threads", "1"]
    done = RUNNER.invoke(app, [*shared, "--without-noise", "--json", str(rows)])
    assert done.exception is None, done.output
    done = RUNNER.invoke(app, [*shared, "--beside", str(rows), "--picture", str(picture)])
    assert done.exception is None, done.output
    expected = ("protected, noise left out", "differencing-runs", "chance, or popularity")
    is_drawn(
        picture,
        *expected,
        "who took part",
        hues=(colours.ATTACK, colours.PROTECTED, colours.CHANCE),
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "empty"),
        ("no json\n", "not a row of audit"),
        ('{"attack": "none"}\n', "not a row of audit"),
        (
            '{"attack": "peeling", "dataset": "gowalla", "release": "privirec"}\n',
            "not of synthetic",
        ),
    ],
)
def test_other_rows_beside_are_refused_before_the_work(
    content: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privirec.app.cli.audit.audit", _must_not_run)
    rows = tmp_path / "rows.jsonl"
    rows.write_text(content)
    arguments = ["audit", "--dataset", "synthetic:small", "--beside", str(rows)]
    done = RUNNER.invoke(app, [*arguments, "--picture", str(tmp_path / "a.png")])
    assert isinstance(done.exception, DataError | UsageError), done.exception
    assert said in str(done.exception)
    done = RUNNER.invoke(app, arguments)
    assert "name a --picture" in str(done.exception)


# --- demo -----------------------------------------------------------------------------------------


def test_demo_has_the_attack_beside_accuracy(tmp_path: Path) -> None:
    shared = {"users": 50, "ndcg@20": 0.2}
    few = [
        {"label": "centralised", "method": "centralized", **shared},
        {
            "label": "PriviRec",
            "method": "privirec",
            "histories_read": 37,
            "bytes_up_per_client": 2000,
            "bytes_down_per_client": 3000,
            **shared,
        },
    ]
    demo_plot({"few people": few}, tmp_path / "demo.png")
    expected = ("few people", "NDCG@20", "histories an attack reads", "37 of 50", "holds them all")
    hues = (colours.ATTACK, colours.EXACT, colours.CENTRALISED)
    is_drawn(tmp_path / "demo.png", *expected, "2.0 kB up, 3.0 kB down", hues=hues)


# --- federate -------------------------------------------------------------------------------------


def _status(stage: str, step: str, number: int, gone: int = 0) -> dict[str, Any]:
    states = ["dropped"] * gone + ["answered"] * (4 - gone)
    clients = {str(place): {"state": state} for place, state in enumerate(states)}
    return {"stage": stage, "step": step, "sum_number": number, "clients": clients}


LEDGER = [
    {"what": "item-degrees", "entries": 9, "bytes_up_per_client": 5, "bytes_down_per_client": 1},
    {"what": "item-degrees", "entries": 0, "bytes_up_per_client": 0, "bytes_down_per_client": 20},
    {"what": "power-step", "entries": 9, "bytes_up_per_client": 7, "bytes_down_per_client": 300},
    {"what": "filters", "entries": 0, "bytes_up_per_client": 0, "bytes_down_per_client": 4000},
]


def test_a_timeline_has_every_sum(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    times = iter([100.0, 101, 103, 110, 115, 116, 130, 131, 140])
    timeline = Timeline(seen.append, lambda: next(times))
    statuses = [
        {},
        _status("gathering clients", "", 0),
        _status("summing", "keys", 0),
        _status("summing", "input", 1),
        _status("summing", "recovery", 1, gone=1),
        _status("summing", "input", 2, gone=1),
        _status("computed", "", 2, gone=1),
        _status("handing out the model", "", 2, gone=1),
        _status("done", "", 2, gone=1),
    ]
    for status in statuses:
        timeline(status)
    assert seen == statuses  # passed on
    rows = timeline.rows(LEDGER)
    assert [(row["name"], row["sum_number"]) for row in rows] == [
        ("gathering, keys", 0),
        ("item-degrees", 1),
        ("power-step", 2),
        ("handing out", 0),
    ]
    assert [(row["began"], row["ended"]) for row in rows] == [(0, 10), (10, 16), (16, 30), (30, 40)]
    assert [row["clients"] for row in rows] == [4, 3, 3, 3]
    assert [row["bytes_up"] for row in rows] == [0, 5, 7, 0]
    assert [row["bytes_down"] for row in rows] == [0, 1, 320, 4000]
    federation_plot("a run", "protected", 4, rows, tmp_path / "run.png")
    expected = ("1: item-degrees", "3 of 4", "dropped out", "5 B, 1 B")
    is_drawn(tmp_path / "run.png", *expected, hues=(colours.PROTECTED,))


def test_an_unobserved_sum_has_no_duration() -> None:
    times = iter([0.0, 4.0, 9.0])
    timeline = Timeline(lambda status: None, lambda: next(times))
    for status in ({}, _status("summing", "input", 1), _status("done", "", 2)):
        timeline(status)
    assert [(row["began"], row["ended"]) for row in timeline.rows(LEDGER)] == [
        (0, 4),
        (4, 9),
        (9, 9),
        (9, 9),
    ]
