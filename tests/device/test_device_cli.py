"""Tests of the commands `privirec device` and `privirec recommend`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from privirec.app.cli import device as device_commands
from privirec.app.cli import every
from privirec.app.cli import recommend as recommend_command
from privirec.data import Dataset, Interactions
from privirec.device import Catalogue, Store
from privirec.device.installed import Installed
from privirec.errors import DataWarning, PrivirecError
from privirec.models import GFCF

app = typer.Typer()
app.command("recommend")(recommend_command.command)
app.add_typer(device_commands.app, name="device")


def run(*arguments: object, error: str | None = None) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if error is None:
        assert result.exit_code == 0, result.output
        return result.stdout
    assert isinstance(result.exception, PrivirecError), result.output
    message = str(result.exception)
    assert error in message
    assert "\n" not in message
    return message


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "me.db"
    run("device", "add", "item-0001", "item-0005", "item-0009", "--store", path)
    return path


def test_three_items_and_a_recommendation(mine: Path, saved: Path, tmp_path: Path) -> None:
    out = run(
        *("recommend", "--store", mine, "--artifact", saved),
        *("-n", 4, "--explain", "--json", tmp_path / "r.json"),
    )
    found = rows(tmp_path / "r.json")
    assert [row["rank"] for row in found] == [1, 2, 3, 4]
    for row in found:
        assert row["item"] in out
        assert row["item"] not in ("item-0001", "item-0005", "item-0009")
        assert row["title"] is None
        assert sum(cause["contribution"] for cause in row["because"]) == pytest.approx(
            row["score"], rel=1e-4
        )
    assert f"{found[0]['because'][0]['item']} (" in out
    assert "title" not in out


def test_seen_similar_and_titles(mine: Path, saved: Path, tmp_path: Path) -> None:
    titles = tmp_path / "items.csv"
    titles.write_text("item_id,title\nitem-0001,Once [bold]Upon\nitem-0005,A Time\n")
    run("device", "titles", titles, "--store", mine)
    common = ("recommend", "--store", mine, "--artifact", saved)
    out = run(*common, "-n", 300, "--include-seen", "--json", tmp_path / "r.json")
    assert len(rows(tmp_path / "r.json")) > 200
    assert "Once [bold]Upon" in out
    run(*common, "--similar-to", "item-0001", "--json", tmp_path / "s.json")
    similar = rows(tmp_path / "s.json")
    assert len(similar) == 10
    assert "item-0001" not in {row["item"] for row in similar}
    assert "because" not in similar[0]
    shown = run("device", "show", "--store", mine)
    assert "Once [bold]Upon" in shown


def test_one_line_for_what_goes_wrong(
    mine: Path, saved: Path, tmp_path: Path, named: Interactions
) -> None:
    common = ("recommend", "--artifact", saved, "--store")
    run(*common, tmp_path / "none.db", error="no store there")
    run(*common, mine, "--user", "bob", error="no user bob")
    run(*common, mine, "--similar-to", "x", error="knows no item x")
    run("recommend", "--store", mine, "--artifact", tmp_path, error="no manifest.json there")
    with Store(tmp_path / "empty.db", create=True):
        pass
    run(*common, tmp_path / "empty.db", error="an empty history")
    with Store(tmp_path / "silo.db", create=True) as store:
        store.add_interactions(named)
    run(*common, tmp_path / "silo.db", error="users, so say which with --user")
    run(*common, tmp_path / "silo.db", "--user", "user-0003")


def test_import_show_export(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("user,item\nann,x\nann,y\nbob,x\n")
    store = ("--store", tmp_path / "new" / "s.db")
    assert "3 interactions in" in run("device", "import", tmp_path / "in.csv", *store)
    assert "0 of them new" in run("device", "import", tmp_path / "in.csv", *store)
    out = run("device", "show", *store, "--json", tmp_path / "show.json")
    assert rows(tmp_path / "show.json") == [
        {"user": "ann", "interactions": 2},
        {"user": "bob", "interactions": 1},
    ]
    assert "3 interactions, users: 2" in out
    assert "No run has used them." in out
    run("device", "show", *store, "--user", "ann", "--json", tmp_path / "ann.json")
    assert [row["item"] for row in rows(tmp_path / "ann.json")] == ["x", "y"]
    run("device", "show", *store, "--user", "cy", error="no user cy")
    assert "3 interactions written" in run("device", "export", tmp_path / "out.csv", *store)
    assert (tmp_path / "out.csv").read_text() == "user,item\nann,x\nann,y\nbob,x\n"
    run("device", "forget", "--everything", *store)
    out = run("device", "show", *store)
    assert "0 interactions, users: 0" in out
    assert "No run" not in out
    again = ("device", "export", tmp_path / "out.csv", *store)
    run(*again, error="out.csv: is there already, and nothing was written; --overwrite")
    assert (tmp_path / "out.csv").read_text() == "user,item\nann,x\nann,y\nbob,x\n"
    assert "0 interactions written" in run(*again, "--overwrite")
    assert (tmp_path / "out.csv").read_text() == "user,item\n"
    run("device", "import", tmp_path / "in.csv", *store)
    run("device", "export", tmp_path / "out.doc", *store, error="ends in .csv or .txt")
    run("device", "import", tmp_path / "nothing.csv", *store, error="cannot be read")
    run("device", "add", "z", *store, error="2 users, so say which")


def test_a_bad_import_makes_no_store(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("user,item\nann,\n")
    store = tmp_path / "s.db"
    run("device", "import", tmp_path / "in.csv", "--store", store, error="column item is empty")
    assert not store.exists()


def test_forgetting_says_when_it_takes_effect(mine: Path) -> None:
    store = ("--store", mine)
    run("device", "forget", *store, error="name items, a user")
    run("device", "forget", *store, "--everything", "--user", "me", error="--everything goes")
    run("device", "forget", "nothing", *store, error="user me has no item nothing")
    out = run("device", "forget", "item-0001", *store)
    assert "Forgotten: 1 interaction." in out
    assert "No run has used them." in out
    with Store(mine) as opened:
        opened.begin_run("r1", Catalogue(["item-0005", "item-0009"]))
        opened.finish_run("r1")
    assert "Run r1" in run("device", "show", *store)
    assert "at the next run" not in run("device", "show", *store)
    assert "at the next run" in run("device", "forget", "item-0005", *store)
    assert "at the next run" in run("device", "show", *store)
    assert "Forgotten: 1 interaction." in run("device", "forget", "--user", "me", *store)
    assert "Forgotten since: 2 interactions" in run("device", "show", *store)
    run("device", "add", "item-0001", *store)
    assert "No run has used them." in run("device", "forget", "--everything", *store)
    assert b"item-" not in mine.read_bytes()


def test_forgetting_says_what_it_shows_and_what_cannot_be_stopped(mine: Path) -> None:
    """Test that the warning appears only after data derived from the history has been sent."""
    store = ("--store", mine)
    catalogue = Catalogue([f"item-{number:04d}" for number in range(20)])
    with Store(mine) as opened:
        items = opened.items("me")
        opened.begin_run("r1", catalogue)
    out = run("device", "forget", items[0], *store)
    assert "Run r1: nothing has left, and this client leaves it." in out
    assert "difference" not in out
    with Store(mine) as opened:
        opened.begin_run("r2", catalogue, datetime(2020, 1, 6, tzinfo=UTC))
        opened.note_sent("r2")
    out = run("device", "forget", items[1], *store)
    assert "Run r2: your vector has left, so that run may still be opened" in out
    assert "can read in their difference what was forgotten" in out
    assert "days_between_changes" in out
    with Store(mine) as opened:
        opened.finish_run("r2")
    out = run("device", "forget", items[2], *store)
    assert "has left" not in out
    assert "can read in their difference what was forgotten" in out
    assert "noise" not in out


def test_forgetting_after_a_run_with_noise_claims_nothing_of_exact_sums(mine: Path) -> None:
    with Store(mine) as opened:
        items = opened.items("me")
        opened.begin_run("r1", Catalogue([f"item-{number:04d}" for number in range(20)]))
        opened.note_sent("r1")
        opened.finish_run("r1")
    out = run("device", "forget", items[0], "--store", mine)
    assert "It was in sums with noise, and their promise covers this change too" in out
    assert "exact" not in out
    assert "sits out" not in out


@pytest.mark.parametrize(
    "command",
    [
        ("recommend",),
        *(("device", name) for name in ("import", "add", "forget", "export", "show", "titles")),
    ],
)
def test_every_command_explains_itself(command: tuple[str, ...]) -> None:
    assert len(run(*command, "--help").splitlines()) > 8


def test_an_own_export_needs_no_column_of_users(tmp_path: Path) -> None:
    """Test the owner of an export: the named user, else the only user of the store, else "me"."""
    export, store = tmp_path / "export.csv", tmp_path / "me.db"
    export.write_text("Product,Bought at\nitem-0001,monday\nitem-0005,tuesday\n")
    assert "2 interactions of user me in" in run("device", "import", export, "--store", store)
    export.write_text("item\nitem-0009\n")
    run("device", "import", export, "--store", store)
    other = tmp_path / "ann.db"
    run("device", "import", export, "--store", other, "--user", "ann")
    with Store(store) as opened, Store(other) as second:
        assert opened.items("me") == ["item-0001", "item-0005", "item-0009"]
        assert second.items("ann") == ["item-0009"]
    export.write_text("user,item\nbob,item-0009\n")
    run(
        "device",
        "import",
        export,
        "--store",
        store,
        "--user",
        "ann",
        error="names its users itself",
    )
    bare = tmp_path / "bare.txt"
    bare.write_text("17\n18\n")
    run("device", "import", bare, "--store", store, error="users and no items")
    export.write_text("item,stars\nx,5\ny,1\n")
    run("device", "import", export, "--store", other, "--min-rating", 3)
    with Store(other) as second:
        assert second.items("ann") == ["item-0009", "x"]


def test_titles_from_a_file_and_unknown_items_aloud(
    mine: Path, saved: Path, tmp_path: Path
) -> None:
    run("device", "add", "item-9999", "--store", mine)
    titles = tmp_path / "titles.csv"
    lines = [f"item-{number:04d},Book {number}" for number in range(300)]
    titles.write_text("\n".join(["Item ID,title", *lines]))
    with pytest.warns(DataWarning, match="does not know 1 of the 4 items of user me"):
        out = run("recommend", "--store", mine, "--artifact", saved, "--titles", titles, "-n", 3)
    assert out.count("Book ") == 3
    out = run(
        *("recommend", "--store", mine, "--artifact", saved, "--titles", titles),
        *("--similar-to", "item-0003"),
    )
    assert "Similar to Book 3" in out


def test_explain_privacy_takes_an_installed_model_as_recommend_does(
    tmp_path: Path, small: Dataset
) -> None:
    saved = GFCF(rank=4).fit(small.train).save(tmp_path / "saved")
    Installed(tmp_path / "model").install(saved)
    told = [
        CliRunner().invoke(every.app, ["explain-privacy", str(path)], catch_exceptions=False)
        for path in (saved, tmp_path / "model")
    ]
    assert told[0].output == told[1].output != ""
