"""Tests of `privirec plan`: methods within a budget, the proposal, and the bytes of a run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from privirec.app.cli.every import app
from privirec.app.planner import (
    Links,
    PlannedMethod,
    Population,
    candidates,
    choose,
    planned_rows,
    work,
)
from privirec.app.planner.methods import counting_bits
from privirec.app.planner.population import MOST_ITEMS, MOST_USERS
from privirec.data import Dataset, Interactions
from privirec.errors import PrivirecError, UsageError
from privirec.experiments import tune
from privirec.experiments.cost import aggregation_bytes
from privirec.federated.contributions import ItemItem
from privirec.federated.programs.spectral import USUAL_RING_BITS
from privirec.models.spectral import SpectralConfig
from privirec.rows import as_duration, parse_bytes, parse_rate
from privirec.runtime.execute import execute
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.spec import Assumptions
from privirec.secagg import Parameters, protocol, shamir

GOWALLA = Population(29_858, 40_981, 810_128, 1_415, top_fifth=0.53)
GLOBO = Population(157_926, 11_832, 2_040_215, 21_375, top_fifth=0.91)
KERNELS = ("mask", "pack", "unpack", "agreement", "signature", "split", "combine", "flop", "entry")


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Make all kernels take no time; a test sets the time of single ones."""
    for name in (*KERNELS, "noise"):
        monkeypatch.setattr(work, f"{name}_seconds", lambda *_: 0.0)
    return monkeypatch


def command(line: str, out: Path) -> list[dict[str, Any]]:
    """Return the rows that a command writes."""
    _, *words = shlex.split(line)
    done = CliRunner().invoke(app, [*words, "--json", str(out)])
    assert done.exit_code == 0, (line, done.output, done.exception)
    return [json.loads(line) for line in out.read_text().splitlines()]


def with_sizes(row: dict[str, Any]) -> str:
    """Return the command of a row; `protected` takes the planned sizes, which it chooses else."""
    sizes = f" --way {row['way']} --head {row['head']}" if row["way"] else ""
    return f"{row['command']}{sizes}"


# --- exact byte counts ----------------------------------------------------------------------------

DATA = "synthetic:170x150"
BY_DATA = f"privirec plan --dataset {DATA} --budget 1MB"
BY_NUMBERS = "privirec plan --users 170 --items 150 --budget 100KB"
PROMISED = f"{BY_DATA} --epsilon 6.5 --corrupt-share 0.1"


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize(
    ("plan", "method"),
    [
        (BY_DATA, "spectral"),
        (BY_DATA, "head-gram"),
        (BY_DATA, "privirec-k"),
        (BY_DATA, "privirec"),
        (BY_NUMBERS, "spectral"),
        (BY_NUMBERS, "head-gram"),
        (BY_NUMBERS, "privirec-k"),
        (PROMISED, "protected"),
    ],
)
def test_a_run_of_the_printed_command_has_the_planned_bytes(
    plan: str, method: str, tmp_path: Path
) -> None:
    rows = command(plan, tmp_path / "plan.jsonl")
    (row,) = (row for row in rows if row["method"] == method)
    assert row["fits"]
    assert row["down_is_exact"]
    line = with_sizes(row).replace("--dataset DATA", f"--dataset {DATA}")
    (counted,) = command(line, tmp_path / "run.jsonl")
    for what in ("bytes_up_per_client", "bytes_down_per_client", "sums", "rank", "epsilon"):
        assert row[what] == counted[what], what
    assert counted["model"] == row["model"]


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize(
    ("more", "server"),
    [("", "active"), ("", "semi-honest"), ("--epsilon 20 --drop-share 0.2", "semi-honest")],
)
def test_over_secure_aggregation_too(more: str, server: str, tmp_path: Path) -> None:
    """Test several numbers of clients, which give key trees of different depths."""
    said = f"--server-model {server}"
    plan = f"privirec plan --dataset synthetic:37x60 --budget 1MB --drop-share 0.05 {more} {said}"
    row = command(plan, tmp_path / "plan.jsonl")[0]
    assert row["aggregation_bytes_up_per_client"] > 1000
    line = f"{with_sizes(row)} --runtime in-process --aggregator secagg+ {said}"
    (counted,) = command(line, tmp_path / "run.jsonl")
    for way in ("up", "down"):
        planned = row[f"bytes_{way}_per_client"] + row[f"aggregation_bytes_{way}_per_client"]
        assert planned == counted[f"bytes_{way}_per_client"]


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("limit", [600, 1_000_000])
def test_sizes_that_a_run_chooses_stay_within_the_budget(limit: int, tmp_path: Path) -> None:
    plan = PROMISED.replace("1MB", f"{limit}B")
    (row,) = command(plan, tmp_path / "plan.jsonl")
    (counted,) = command(row["command"], tmp_path / "run.jsonl")
    assert row["bytes_up_per_client"] <= limit
    assert counted["bytes_up_per_client"] <= limit
    assert counted["epsilon"] == pytest.approx(row["epsilon"], rel=1e-3)
    assert counted["bytes_up_per_client"] == pytest.approx(row["bytes_up_per_client"], rel=0.1)


@pytest.mark.parametrize("seed", range(6))
def test_spectral_keeps_its_blocks_as_narrow_as_planned(seed: int) -> None:
    """Test that blocks whose columns rounding would make too similar are sent with more bits."""
    rng = np.random.default_rng(seed)
    users, items = rng.integers(130, 700, 2).tolist()
    popularity = np.arange(1.0, items + 1) ** -rng.uniform(0, 1.2)
    touched = np.zeros((users, items), np.float32)
    for user in range(users):
        touched[user, rng.choice(items, 8, replace=False, p=popularity / popularity.sum())] = 1
    train = Interactions.from_matrix(touched)
    people = Population.of(Dataset("drawn", train, train))
    (planned,) = (one for one in candidates(people, items * 500) if one.spec.method == "spectral")
    _, ledger = execute(planned.program.steps(), Simulation(train))
    assert (ledger.bytes_up, ledger.bytes_down) == (planned.bytes_up, planned.ledger.bytes_down)


def test_without_data_rings_hold_an_item_that_all_people_have() -> None:
    touched = np.zeros((150, 200), np.float32)
    touched[:, 0] = 1
    touched[np.arange(150), 1 + np.arange(150)] = 1
    touched[np.arange(150), 1 + (7 * np.arange(150)) % 199] = 1
    train = Interactions.from_matrix(touched)
    for one in candidates(Population(150, 200), 10**6):
        execute(one.program.steps(), Simulation(train))


def test_counts_of_pairs_take_the_narrowest_ring() -> None:
    for degree in (1, 2, 78, 1_415, 21_375):
        bits = counting_bits(degree)
        _ = ItemItem(1, degree, 0.0, bits).encoding
        with pytest.raises(PrivirecError, match="too narrow"):
            _ = ItemItem(1, degree, 0.0, bits - 1).encoding


def test_the_largest_there_are_can_be_planned() -> None:
    people = Population(MOST_USERS, MOST_ITEMS)
    (whole,) = (one for one in candidates(people, 10**10) if one.spec.method == "privirec")
    sums = whole.sums
    most = len(whole.program.sums())
    assert aggregation_bytes(sums, "secagg", Assumptions(), 10_000, most)[0] > 10**6
    assert aggregation_bytes(sums[:1], "secagg+", Assumptions(), MOST_USERS, 1)[1] > 2**29


# --- proposals ------------------------------------------------------------------------------------


def test_tuned_presets_are_proposed_for_their_budgets() -> None:
    """Test the presets of spectral: columns, rank, rounds and ring width."""
    small = choose(GOWALLA, 60_000_000).proposed.spec
    assert small.method == "spectral"
    assert small.given() == {"ring_bits": 12, "rank": 552, "columns": (115,) * 8}
    large = choose(GOWALLA, 200_000_000).proposed.spec
    assert len(large.given()["columns"]) == 6


def test_rings_are_as_wide_as_the_largest_degree_asks_for() -> None:
    for people in (GOWALLA, GLOBO):
        made = {one.spec.method: one.spec.given() for one in candidates(people, 10**7)}
        assert made["spectral"]["ring_bits"] == USUAL_RING_BITS
        assert made["head-gram"]["ring_bits"] == counting_bits(people.widest_degree)


def test_a_head_that_has_most_of_everything_is_the_better_use() -> None:
    choice = choose(GLOBO, 20_000_000)
    assert choice.proposed.spec.method == "head-gram"
    assert "of all interactions" in choice.why
    assert {one.spec.method for one in choice.others} == {"spectral", "privirec-k"}
    assert [one.spec.method for one in choice.too_large] == ["privirec"]


def test_how_popularity_is_spread_decides_and_not_how_many_people_there_are() -> None:
    few = Population(8_000, 11_832, top_fifth=0.91)
    assert choose(few, 5_000_000).proposed.spec.method == "head-gram"
    many = Population(29_105, 5_000, top_fifth=0.5)
    assert choose(many, 5_000_000).proposed.spec.method == "spectral"


def test_below_the_fewest_columns_a_head_is_proposed() -> None:
    proposed = choose(GOWALLA, 1_000_000).proposed.spec
    assert proposed.method == "head-gram"
    assert 500 < proposed.given()["head"] < 2000


def test_methods_that_reveal_all_histories_are_not_proposed() -> None:
    choice = choose(GOWALLA, 10**11)
    assert choice.proposed.spec.method == "spectral"
    assert "privirec" in {one.spec.method for one in choice.others}


@pytest.mark.parametrize("people", [GOWALLA, GLOBO, Population(300, 900), Population(5000, 400)])
@pytest.mark.parametrize("budget", [10**5, 10**6, 10**7, 10**8])
def test_the_proposal_fits_and_fills_the_budget(people: Population, budget: int) -> None:
    made = {one.spec.method: one for one in candidates(people, budget)}
    head = made["head-gram"]
    size = head.spec.given()["head"]
    if size not in (250, 6000, people.items):
        assert head.bytes_up <= budget
        larger = PlannedMethod(head.spec.changed(head=size + 1), people)
        assert larger.bytes_up > budget
    try:
        choice = choose(people, budget)
    except UsageError:
        assert all(one.bytes_up > budget for one in made.values() if one.spec.method != "privirec")
        return
    assert choice.proposed.bytes_up <= budget
    assert all(one.bytes_up <= budget for one in choice.others)
    assert all(one.bytes_up > budget for one in choice.too_large)


def test_a_promise_has_one_method_or_none_that_fits() -> None:
    choice = choose(GOWALLA, 5_000_000, epsilon=8)
    assert choice.proposed.spec.method == "protected"
    assert not choice.others
    assert "expect" in choice.why
    assert choose(GOWALLA, 1_000_000, epsilon=8).proposed.bytes_up <= 1_000_000
    with pytest.raises(UsageError, match="an upload limit of 100,000 bytes"):
        choose(GOWALLA, 100_000, epsilon=8)


def test_a_budget_that_is_too_small_names_the_smallest_plan() -> None:
    with pytest.raises(UsageError, match=r"nothing fits .* head-gram with a head of 250 items"):
        choose(GOWALLA, 10_000)


# --- popularity -----------------------------------------------------------------------------------


def test_coverage_is_counted_or_follows_a_power_of_the_rank(small: Dataset) -> None:
    known = Population.of(small)
    degrees = np.sort(small.train.item_degrees)[::-1]
    assert known.coverage(17) == degrees[:17].sum() / degrees.sum()
    assert known.coverage(10**6) == 1
    for people in (GOWALLA, GLOBO, Population(9, 2000, top_fifth=0.2)):
        assert people.coverage(people.items // 5) == pytest.approx(people.top_fifth, abs=1e-6)
        assert 0 < people.coverage(1) < people.coverage(100) < people.coverage(people.items) == 1
    equal = Population(1000, 500)
    assert equal.coverage(50) == pytest.approx(0.1)
    assert not equal.knows_popularity
    by_first = Population(29_858, 40_981, 810_128, 1_415)
    assert by_first.coverage(1) == pytest.approx(1_415 / 810_128)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((1, 10), "at least 2 users"),
        ((10, 1), "at least 2 items"),
        ((2**32, 10), "at most"),
        ((10, 2**24 + 1), "at most"),
        ((10, 10, 9), "interactions"),
        ((10, 10, 101), "interactions"),
        ((10, 10, 50, 11), "11 users"),
        ((10, 10, 50, 4), "at most 4 users"),
        ((10, 10, None, None, 0.1), "fifth"),
        ((10, 10, None, None, 1.1), "fifth"),
    ],
)
def test_numbers_that_cannot_be(numbers: tuple[Any, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Population(*numbers)


# --- CPU and time ---------------------------------------------------------------------------------


def planned_row(aggregator: str = "secagg+", budget: int = 60_000_000) -> dict[str, Any]:
    links = Links(up=1e6, down=4e6, server=1e8)
    row = planned_rows(choose(GOWALLA, budget), links, aggregator=aggregator)[0]
    assert row["proposed"]
    return row


@pytest.mark.usefixtures("no_kernels")
def test_time_is_transfer_with_all_that_is_added() -> None:
    row = planned_row()
    up = row["bytes_up_per_client"] + row["aggregation_bytes_up_per_client"]
    down = row["bytes_down_per_client"] + row["aggregation_bytes_down_per_client"]
    assert row["client_seconds"] == pytest.approx(up / 1e6 + down / 4e6)
    assert row["bytes_server_receives"] == 29_858 * up
    assert row["bytes_server_sends"] == 29_858 * down
    assert row["server_seconds"] == pytest.approx(29_858 * (up + down) / 1e8)
    bare = planned_row("none")
    assert bare["aggregation_bytes_up_per_client"] == bare["exchanges"] == 0


def test_every_kernel_counts_as_often_as_it_runs(no_kernels: pytest.MonkeyPatch) -> None:
    """Set one kernel at a time to one second per call, and all others to zero."""
    graph: Parameters = protocol("secagg+").parameters(Assumptions().statement(29_858, 16))
    n, k, t, sums = 29_858, graph.neighbours, graph.threshold, 16
    items, columns = 40_981, 115
    rows = items + -(-items // 32)  # the most popular ones twice
    numbers = 9 * items + 8 * rows * columns  # V, reaches, steps
    words = items * 2 + 7 * items * 4 + 8 * rows * columns * 2
    assert (k, t) == (430, 278)
    expected = {
        "mask": ((k + 1) * words, n * words),
        "pack": (numbers - items, 0),
        "unpack": (0, n * (numbers - items)),
        "agreement": (k * (sums + 2), 0),
        "signature": (2 * k, n),
        "split": (2 * sums, 0),
        "combine": (0, n * sums),
        "entry": (numbers - items, 0),
    }
    for name, (client, server) in expected.items():
        no_kernels.setattr(work, f"{name}_seconds", lambda *_: 1.0)
        row = planned_row()
        assert row["client_cpu_seconds"] == client, name
        assert row["server_cpu_seconds"] == server, name
        no_kernels.setattr(work, f"{name}_seconds", lambda *_: 0.0)


def test_kernels_are_really_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "LEAST_SECONDS", 0.001)
    graph = Parameters(12, 7)
    arguments: dict[str, Any] = {"pack": (12,), "unpack": (12,), "split": (graph,)}
    arguments |= {"combine": (7,), "entry": (20,)}
    for name in KERNELS:
        kernel = getattr(work, f"{name}_seconds").__wrapped__
        assert 0 < kernel(*arguments.get(name, ())) < 1
    promised = choose(Population(500, 300), 10**7, epsilon=8).proposed
    assert 0 < work.noise_seconds(promised.sums[0]) < 1


def test_reconstruction_is_timed_with_new_holders_each_time() -> None:
    shamir._weights_at_zero.cache_clear()
    work.combine_seconds.__wrapped__(20)
    found = shamir._weights_at_zero.cache_info()
    assert found.hits == 0
    assert found.misses > 0


# --- a target -------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    def one(config: SpectralConfig, step: float, most: int) -> list[SpectralConfig]:
        return [config.model_copy(update={"rank": min(most, config.rank + 9)})]

    monkeypatch.setattr(tune, "neighbours", one)


TARGET = "privirec plan --dataset synthetic:small --budget 80KB --target"


@pytest.mark.usefixtures("no_kernels", "quick")
def test_the_least_budget_that_reaches_a_target(tmp_path: Path) -> None:
    out = f"--out {tmp_path / 'pilot'}"
    found = command(f"{TARGET} 0.15 {out}", tmp_path / "plan.jsonl")
    first, *others = found
    assert first["proposed"]
    assert first["validation_ndcg@20"] >= 0.15
    reached = [one for one in others if one["validation_ndcg@20"] >= 0.15]
    assert len(reached) <= 1  # the other method with the same budget: no larger one is tried
    assert all(one["validation_ndcg@20"] <= first["validation_ndcg@20"] for one in reached)
    for row in found:
        (counted,) = command(row["command"], tmp_path / "run.jsonl")
        for way in ("up", "down"):
            assert counted[f"bytes_{way}_per_client"] == row[f"bytes_{way}_per_client"]


@pytest.mark.check
@pytest.mark.usefixtures("no_kernels", "quick")
def test_a_target_that_nothing_reaches_is_one_line(tmp_path: Path) -> None:
    asked = [*shlex.split(TARGET)[1:], "0.99", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, asked)
    assert isinstance(done.exception, PrivirecError)
    assert done.exception.exit_code == 1
    assert "the best is 0." in str(done.exception)
    assert "\n" not in str(done.exception)


@pytest.mark.usefixtures("no_kernels")
def test_a_target_with_a_promise(tmp_path: Path) -> None:
    asked = [*shlex.split(TARGET)[1:], "0.99", "--epsilon", "8", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, asked)
    assert "protected with" in str(done.exception)


# --- parsing of amounts ---------------------------------------------------------------------------


def test_units() -> None:
    assert parse_bytes("50MB") == 50_000_000
    assert parse_bytes(" 1.5 gb ") == 1_500_000_000
    assert parse_bytes(".5KB") == 500
    assert parse_bytes("1000B") == 1000
    assert parse_bytes("60 kB") == 60_000
    assert parse_rate("5Mbit/s", "--up") == 625_000
    assert parse_rate("2MB/s", "--up") == 2_000_000
    assert parse_rate("800bps", "--up") == 100
    assert parse_rate("1 Gbps", "--up") == 125_000_000
    for text in (
        "",
        "50",
        "MB",
        "-3MB",
        "5MiB",
        "1e400MB",
        "nan MB",
        "9" * 400 + "GB",
        "0.1e1KB",
        "0.5B",
    ):
        with pytest.raises(UsageError):
            parse_bytes(text)
    for text in ("", "5", "5Mb/s", "0Mbit/s", "5Mbit", "fast", "5MB", "-1Mbit/s"):
        with pytest.raises(UsageError):
            parse_rate(text, "--up")
    said = [as_duration(seconds) for seconds in (0.0123, 0.5, 66, 200, 9000, 200_000)]
    assert said == ["12 ms", "0.5 s", "66 s", "3.3 min", "2.5 h", "2.3 days"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("", "--budget"),
        ("--budget 5MB", "--users and --items"),
        ("--users 100 --budget 5MB", "--users and --items"),
        ("--users 1 --items 50 --budget 5MB", "at least 2 users"),
        ("--users 2 --items 50 --budget 5MB", "at least 3 users"),
        ("--users 100 --items 50 --budget 5parsecs", "give one as 60MB"),
        ("--users 100 --items 50 --budget 5", "units are B, kB, MB, GB and TB"),
        ("--users 100 --items 50 --budget 1B", "nothing fits"),
        ("--users 100000 --items 50000 --budget 1KB", "nothing fits"),
        ("--users 100 --items 50 --budget 5MB --up 5Mb/s", "5Mbit/s"),
        ("--users 100 --items 50 --budget 5MB --delta 1e-7", "--epsilon"),
        ("--users 100 --items 50 --budget 5MB --epsilon 1 --drop-share 0.4", "--drop-share"),
        ("--users 100 --items 50 --target 0.1", "--dataset"),
        ("--users 100 --items 50 --budget 5MB --epsilon 1 --settle 0.1", "--settle goes with"),
        ("--dataset synthetic:small --target 0.1 --settle 0.1", "--settle goes with"),
        ("--dataset synthetic:small --users 3 --budget 1MB", "--users comes from the data set"),
        ("--users 3 --items 50 --budget 5MB --corrupt-share 0.5", "refuses these numbers"),
        ("--dataset nowhere --budget 5MB", "nowhere"),
    ],
)
def test_bad_input_is_one_line(asked: str, words: str) -> None:
    done = CliRunner().invoke(app, ["plan", *shlex.split(asked)])
    assert isinstance(done.exception, PrivirecError), done.output
    assert words in str(done.exception)
    assert "\n" not in str(done.exception)
    assert done.exception.exit_code == 2


@pytest.mark.usefixtures("no_kernels")
def test_the_printed_plan() -> None:
    asked = "plan --users 30000 --items 41000 --budget 50MB --up 2Mbit/s"
    done = CliRunner().invoke(app, shlex.split(asked))
    assert done.exit_code == 0, done.output
    for word in ("->", "spectral", "head-gram", "too large", "--largest-degree", "--top-fifth"):
        assert word in done.output
    spared = "1,500 corrupt clients and 6,000 missing ones"  # 5% and 20% of 30,000
    for words in ("estimated", spared, "To run it: privirec run --dataset DATA"):
        assert words in done.output


@pytest.mark.usefixtures("no_kernels")
def test_a_run_that_may_end_early_costs_at_most_what_is_planned(tmp_path: Path) -> None:
    asked = f"{BY_DATA} --settle 0.2"
    done = CliRunner().invoke(app, shlex.split(asked)[1:])
    assert "at most 8x" in done.output
    assert "the most there can be" in done.output
    rows = {row["method"]: row for row in command(asked, tmp_path / "plan.jsonl")}
    assert [name for name, row in rows.items() if row["may_end_early"]] == ["spectral"]
    (counted,) = command(rows["spectral"]["command"], tmp_path / "run.jsonl")
    for what in ("bytes_up_per_client", "bytes_down_per_client", "sums", "rounds"):
        assert counted[what] < rows["spectral"][what], what


@pytest.mark.usefixtures("no_kernels")
def test_data_in_shards_can_be_planned_for(tmp_path: Path) -> None:
    made = CliRunner().invoke(app, ["data", "make", "synthetic:170x150", str(tmp_path / "shards")])
    assert made.exit_code == 0, made.output
    asked = f"privirec plan --dataset {tmp_path / 'shards'} --budget 1MB"
    row = command(asked, tmp_path / "plan.jsonl")[0]
    (counted,) = command(row["command"], tmp_path / "run.jsonl")
    for way in ("up", "down"):
        assert counted[f"bytes_{way}_per_client"] == row[f"bytes_{way}_per_client"]
