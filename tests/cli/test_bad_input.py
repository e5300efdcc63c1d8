"""Bad input: one clear line, the documented exit code, and no files left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from privirec.app import cli

SMALL = ["--dataset", "synthetic:small"]


@dataclass(frozen=True)
class Result:
    """Exit code and output of a command."""

    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Result]


@pytest.fixture
def without_data(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a machine that has no data sets."""
    monkeypatch.delenv("PRIVIREC_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def privirec(
    without_data: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """Run the command in this process, from its arguments to its exit code.

    `test_a_process_of_its_own` shows that the command gives the same result as a separate process.
    """

    def run(*args: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["privirec", *args])
        capsys.readouterr()
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            with pytest.raises(SystemExit) as ended:
                cli.start()
        return Result(int(ended.value.code or 0), *capsys.readouterr())

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def started(without_data: None) -> Command:
    """Run the command in a separate process."""

    def run(*args: str, **env: str) -> Result:
        done = subprocess.run(
            [sys.executable, "-m", "privirec", *args],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            env=os.environ | env,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return run


def test_a_process_of_its_own(privirec: Command, started: Command) -> None:
    for args in (
        ["paper", "cost", "--users", "10", "--items", "5"],
        ["run", *SMALL, "--rank", "301"],
    ):
        assert started(*args, COLUMNS="80", TERM="dumb") == privirec(*args)


def refused(result: Result, *words: str) -> None:
    assert result.returncode == 2, result
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("privirec: ")
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in lines[0]


def data_folder(folder: Path, train: str, test: str = "0 2\n1 0\n") -> str:
    folder.mkdir()
    (folder / "train.txt").write_text(train)
    (folder / "test.txt").write_text(test)
    return str(folder)


@pytest.mark.parametrize(
    ("train", "test", "words"),
    [
        ("0 0 1\n1 x 2\n", "0 2\n", ["train.txt:2:"]),
        ("0 0 1\n1 -3 2\n", "0 2\n", ["train.txt:2:"]),
        ("0 0 1\n1 99999999999 2\n", "0 2\n", ["train.txt:2:"]),
        ("", "0 2\n", ["train.txt", "empty"]),
        ("0 0 1\n1 1 2\n", "7 1\n", ["test.txt", "7"]),
    ],
    ids=["malformed", "negative", "huge", "empty", "unknown test user"],
)
def test_bad_data_names_file_and_line(
    tmp_path: Path, train: str, test: str, words: list[str], privirec: Command
) -> None:
    refused(privirec("run", "--dataset", data_folder(tmp_path / "d", train, test)), *words)


def test_missing_data_set_says_how_to_get_it(tmp_path: Path, privirec: Command) -> None:
    result = privirec("run", "--dataset", "gowalla", "--data-dir", str(tmp_path))
    refused(result, "gowalla", "privirec data get gowalla")


def test_rank_larger_than_the_catalogue(tmp_path: Path, privirec: Command) -> None:
    for method in ("centralized", "privirec", "privirec-k"):
        save = tmp_path / "model"
        args = ["run", *SMALL, "--method", method, "--rank", "301", "--save", str(save)]
        refused(privirec(*args), "301", "300")
        assert not save.exists()
    refused(
        privirec("paper", "sweep", *SMALL, "--ranks", "301", "--out", str(tmp_path)), "301", "300"
    )


def test_settings_that_do_not_fit_are_refused(privirec: Command) -> None:
    refused(privirec("run", *SMALL, "--rounds", "3"), "centralized")
    refused(privirec("run", *SMALL, "--model", "turbo-cf", "--solver", "power-1qr"), "turbo-cf")
    refused(privirec("run", *SMALL, "--method", "privirec", "--ring-bits", "8"), "8-bit ring")
    refused(privirec("paper", "sweep", *SMALL, "--ranks", "1:x:2"), "1:x:2")
    refused(
        privirec("paper", "table", "--datasets", "synthetic:small", "--models", "magic"), "magic"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_output_without_permission(tmp_path: Path, privirec: Command) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    refused(privirec("run", *SMALL, "--save", str(locked / "model")), "cannot be written")


def test_output_that_cannot_be_a_file(tmp_path: Path, privirec: Command) -> None:
    (tmp_path / "file").write_text("mine")
    refused(privirec("run", *SMALL, "--json", str(tmp_path / "file" / "x.json")), "file")
    refused(privirec("run", *SMALL, "--save", str(tmp_path / "file")), "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_save_does_not_replace_other_files(tmp_path: Path, privirec: Command) -> None:
    (tmp_path / "precious").write_text("mine")
    refused(privirec("run", *SMALL, "--save", str(tmp_path)), "not a saved model")
    assert (tmp_path / "precious").read_text() == "mine"


def test_save_replaces_a_model_only_if_told_to(tmp_path: Path, privirec: Command) -> None:
    save = str(tmp_path / "model")
    fit = ["fit", "synthetic:small", "--model", "popularity", "--save", save]
    assert privirec(*fit).returncode == 0
    before = (tmp_path / "model" / "manifest.json").read_bytes()
    run = ["run", *SMALL, "--rank", "8", "--save", save]
    refused(privirec(*run), "holds a saved model", "--overwrite")
    refused(privirec(*fit), "holds a saved model", "--overwrite")
    assert (tmp_path / "model" / "manifest.json").read_bytes() == before
    assert privirec(*run, "--overwrite").returncode == 0
    assert (tmp_path / "model" / "manifest.json").read_bytes() != before


def test_warnings_and_errors_about_data_are_one_line(tmp_path: Path, privirec: Command) -> None:
    rated = tmp_path / "r.csv"
    rows = [
        f"{user};{(user * 3 + item) % 11};{item % 5 + 1}" for user in range(20) for item in range(7)
    ]
    rated.write_text("\n".join(["User ID;product;rating", *rows]))
    result = privirec("run", "--dataset", str(rated), "--model", "item-knn")
    assert result.returncode == 0, result.stderr
    assert "MRR@20" in result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"privirec: {rated}: column rating is not looked at")
    quiet = privirec("run", "--dataset", str(rated), "--model", "item-knn", "--min-rating", "0")
    assert quiet.stderr == ""
    both = ["run", "--dataset", str(rated), "--test-file", str(rated), "--min-rating", "0"]
    refused(privirec(*both), "the whole test set is in train too")


def test_options_that_would_do_nothing_are_refused(privirec: Command) -> None:
    refused(privirec("run", *SMALL, "--preset", "paper"), "preset paper", "centralized")
    refused(privirec("run", *SMALL, "--aggregator", "secagg+"), "aggregator", "centralized")
    refused(privirec("run", *SMALL, "--method", "privirec", "--drop-share", "0.1"), "in-process")
    low_rank = ["run", *SMALL, "--method", "privirec-k"]
    refused(privirec(*low_rank, "--corrupt-share", "0.1"), "--corrupt-share", "--aggregator")
    refused(privirec(*low_rank, "--server-model", "active"), "--server-model", "--aggregator")
    refused(privirec(*low_rank, "--low-pass-from", "server"), "low-pass-from")
    refused(privirec("run", *SMALL, "--model", "turbo-cf", "--rank", "3"), "turbo-cf")


def test_small_catalogues_take_the_defaults(tmp_path: Path, privirec: Command) -> None:
    folder = data_folder(tmp_path / "d", "0 0 1 2\n1 1 2 3\n2 0 3\n", "0 3\n1 0\n")
    for method in ("centralized", "privirec", "privirec-k"):
        result = privirec("run", "--dataset", folder, "--method", method)
        assert result.returncode == 0, result.stderr
    assert privirec("paper", "cost", "--users", "10", "--items", "5").returncode == 0


def test_tables_are_never_cut(started: Command) -> None:
    result = started("paper", "cost", COLUMNS="40", FORCE_COLOR="1")
    assert result.returncode == 0, result.stderr
    assert "1,679M" in result.stdout
    assert "\u2026" not in result.stdout


def test_full_disk_leaves_nothing_behind(privirec: Command) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    refused(privirec("run", *SMALL, "--rank", "16", "--json", "/dev/full"), "/dev/full")


@pytest.mark.check
def test_interrupted_sweep_goes_on_where_it_stopped(tmp_path: Path, privirec: Command) -> None:
    args = [
        *["paper", "sweep", "--dataset", "synthetic:3000x2500", "--ranks", "64:1024:64"],
        *["--rounds", "2,3", "--threads", "1"],
    ]
    whole = privirec(*args, "--out", str(tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr
    out = tmp_path / "out"
    command = [sys.executable, "-m", "privirec", *args, "--out", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 200
        # The first curve is finished and the second has begun.
        while not (list(out.glob("*.csv")) and list(out.glob(".*partial.jsonl"))):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        assert errors == "privirec: interrupted\n"
    kept = (out / "sweep-synthetic-3000x2500.csv").read_text()
    assert kept.splitlines()[1:]
    assert not list(out.glob("*.part"))
    assert privirec(*args, "--out", str(out)).returncode == 0
    name = "sweep-synthetic-3000x2500.csv"
    final = (out / name).read_text()
    assert final.startswith(kept)
    assert final == (tmp_path / "whole" / name).read_text()


def test_json_rows_have_the_promised_fields(tmp_path: Path, privirec: Command) -> None:
    path = tmp_path / "rows.json"
    args = ["run", *SMALL, "--method", "privirec-k", "--rank", "16", "--json", str(path)]
    assert privirec(*args).returncode == 0
    (row,) = map(json.loads, path.read_text().splitlines())
    promised = (
        "dataset model method preset runtime aggregator rank rounds users items ndcg@20 recall@20 "
        "fit_seconds eval_seconds cpu_seconds peak_rss_mb bytes_up_per_client "
        "bytes_down_per_client seed version"
    )
    promised = set(promised.split())
    assert promised <= set(row)
    assert all(not isinstance(value, dict | list) for value in row.values())


def test_audit_says_when_nothing_applies(tmp_path: Path, privirec: Command) -> None:
    save = str(tmp_path / "model")
    made = privirec("run", *SMALL, "--method", "privirec-k", "--rank", "8", "--save", save)
    assert made.returncode == 0
    result = privirec("audit", *SMALL, "--release", save)
    assert result.returncode == 0, result.stderr
    assert "No attack here applies" in result.stdout
    assert "does not make it safe" in result.stdout
    refused(privirec("audit", *SMALL, "--release", save, "--rank", "3"), "cannot be chosen")
    refused(privirec("audit", *SMALL, "--release", save, "--without-noise"), "switched off")
    refused(privirec("audit", *SMALL, "--epsilon", "1"), "epsilon does not go with privirec")
    refused(privirec("audit", *SMALL, "--release", "protected", "--preset", "paper"), "preset")


def test_an_audit_refuses_before_it_says_how_long_it_takes(
    tmp_path: Path, privirec: Command
) -> None:
    for release, words in (("magic", ["magic", "privirec-k"]), (str(tmp_path), ["manifest.json"])):
        result = privirec("audit", *SMALL, "--release", release)
        refused(result, *words)
        assert result.stdout == ""


def test_an_audit_of_a_model_without_clients_says_what_it_gives_away(
    tmp_path: Path, privirec: Command
) -> None:
    save, page = str(tmp_path / "model"), tmp_path / "page"
    made = privirec("run", *SMALL, "--rank", "8", "--save", save)
    assert "can be worked out" in made.stderr
    result = privirec(
        *("audit", *SMALL, "--release", save, "--report", str(page)),
        *("--json", str(tmp_path / "rows.json")),
    )
    assert result.returncode == 0, result.stderr
    assert "Likelihood-peeling read 200 of 200 whole histories (100.0%)" in result.stdout
    (row,) = [json.loads(line) for line in (tmp_path / "rows.json").read_text().splitlines()]
    assert row["users_recovered"] == 200
    text = (page / "index.html").read_text()
    assert text.count("data:image/png;base64,") == 3
    assert "http" not in text


def test_help_teaches_and_stays_quiet_in_a_pipe(privirec: Command) -> None:
    for command in ("demo", "run", "paper table", "paper sweep", "audit", "doctor", "data"):
        result = privirec(*command.split(), "--help")
        assert result.returncode == 0
        assert "Usage" in result.stdout
        assert len(result.stdout) > 200
    assert privirec("nonsense").returncode == 2
    result = privirec("run", *SMALL, "--rank", "16")
    assert result.returncode == 0
    assert result.stderr == ""


def test_federate_replaces_a_model_only_if_told_to(tmp_path: Path, privirec: Command) -> None:
    save = tmp_path / "model"
    fit = ["fit", "synthetic:small", "--model", "popularity", "--save", str(save)]
    assert privirec(*fit).returncode == 0
    before = (save / "manifest.json").read_bytes()
    refused(privirec("federate", *SMALL, "--save", str(save)), "holds a saved model", "--overwrite")
    assert (save / "manifest.json").read_bytes() == before
