"""Tests of the spending record: across a change of keys, and as shown to its owner."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from privirec.app.cli.every import app
from privirec.errors import FederationError
from privirec.federated.dp.gaussian import mu_of
from privirec.federated.dp.loss import Loss
from privirec.privacy.accountant import Spent
from privirec.privacy.policy import Policy
from privirec.privacy.worth import at_least
from privirec.runtime.enrolment.folders import ClientFolder
from privirec.runtime.node import record
from privirec.runtime.node.memory import ForLife
from privirec.runtime.node.record import BadRecord
from privirec.runtime.node.run_state import ClientRun
from privirec.secagg.keys import Identity

from .test_enrolment import Homes, homes, join, joined

__all__ = ["homes"]

ONE, OTHER, STRANGER = (Identity(bytes([seed]) * 32) for seed in (1, 2, 3))
BEGIN = datetime(2026, 11, 2, 12, tzinfo=UTC)


def lines(*sealed_by: Identity) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for number, identity in enumerate(sealed_by, start=1):
        loss = Loss(number / 8, 1e-12) if number % 3 else None
        at = BEGIN + timedelta(days=number)
        spent = Spent(at, "ab" * 16, number, "noisy-popularity", "cd" * 32, loss)
        before = rows[-1][-1] if rows else b""
        assert isinstance(before, bytes)
        rows.append(record.row_of(spent, before, identity))
    return rows


def test_lines_of_earlier_keys_count_and_those_of_others_do_not() -> None:
    keys = [ONE.public, OTHER.public]
    account = record.account_of(lines(ONE, ONE, OTHER), keys)
    assert [one.sum_number for one in account.sums] == [1, 2, 3]
    assert account.sums[0].loss == Loss(1 / 8, 1e-12)
    assert account.exact == 1
    for sealed_by in ([ONE, OTHER, ONE], [ONE, STRANGER], [STRANGER]):
        with pytest.raises(BadRecord, match="is not as it wrote it"):
            record.account_of(lines(*sealed_by), keys)


def test_a_period_has_its_first_moment_in_it_and_the_last_line_is_the_latest() -> None:
    account = record.account_of(lines(ONE, ONE, ONE, ONE), [ONE.public])
    assert account.latest == BEGIN + timedelta(days=4)
    for day, left in ((0, 4), (2, 3), (4, 1), (5, 0)):
        assert len(account.since(BEGIN + timedelta(days=day)).sums) == left
    assert len(account.since(BEGIN + timedelta(days=2, seconds=1)).sums) == 2


def test_what_was_signed_for_something_else_is_no_line() -> None:
    """A client signs other things too; a seal begins with its purpose."""
    ((*plain, _),) = lines(ONE)
    with pytest.raises(BadRecord):
        record.account_of([(*plain, ONE.sign(json.dumps(plain).encode()))], [ONE.public])


@given(st.data())
def test_whatever_is_changed_shows(data: st.DataObject) -> None:
    rows = lines(ONE, ONE, ONE, ONE)
    record.account_of(rows, [ONE.public])
    what = data.draw(st.sampled_from(["swap", "drop", "repeat", "value"]))
    place = data.draw(st.integers(0, 2))
    if what == "swap":
        rows[place], rows[place + 1] = rows[place + 1], rows[place]
    elif what == "drop":
        del rows[place]
    elif what == "repeat":
        rows.insert(place, rows[place])
    else:
        column = data.draw(st.integers(0, len(rows[0]) - 2))
        changed = list(rows[place])
        old = changed[column]
        changed[column] = {str: "2030-01-01", int: 77, float: 0.7}.get(type(old), 0.3)
        rows[place] = tuple(changed)
    with pytest.raises(BadRecord):
        record.account_of(rows, [ONE.public])


@pytest.fixture
def client(homes: Homes) -> ClientFolder:
    return joined(homes)


def spend(client: ClientFolder, mu: float | None, days_ago: int = 0) -> None:
    """Record a sum as answered."""
    with closing(client.node()) as node:
        at = datetime.now(UTC) - timedelta(days=days_ago)
        loss = None if mu is None else Loss(mu, 0.0)
        run = ClientRun("ef" * 16, 1, "", "")
        spent = Spent(at, run.run, 1, "noisy-popularity", "cd" * 32, loss)
        row = record.row_of(spent, node.memory.last_seal(), client.identity)
        node.memory.commit(run, ForLife(spent=row))


def test_a_change_of_keys_keeps_what_was_spent(homes: Homes, client: ClientFolder) -> None:
    server, _ = homes
    spend(client, 1.0)
    server.save(server.members.rotate(client.rotate()))
    join(client, server)
    spend(client, 1.0)
    with closing(client.node()) as node:
        assert node.budget.account().noisy.mu == pytest.approx(np.sqrt(2))
        assert len(client.members.keys_of(0)) == 2
    with closing(client.memory()) as memory:  # `privirec client budget` shows the same
        assert client.budget(memory).account().noisy.mu == pytest.approx(np.sqrt(2))


def budget(client: ClientFolder, *more: str) -> str:
    done = CliRunner().invoke(app, ["client", "budget", str(client.folder), *more])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_shows_what_was_spent_and_what_is_left(
    client: ClientFolder, tmp_path: Path
) -> None:
    assert "Nothing was spent" in budget(client)
    # A run has to stay within both limits.
    assert "There is room for more updates of the usual size" in budget(client)
    assert "47 in the life of this client and 14 within 365 days" in budget(client)
    spend(client, 1.0, days_ago=400)
    spend(client, 1.0)
    said = budget(client, "--json", str(tmp_path / "out.jsonl"))
    assert "Spent in the life of this client: epsilon 7.29 of 20 (" in said
    assert " for replacing one history by another). Somebody who knows" in said
    assert "is right in at most 77 of 100 cases; a coin is right in 50." in said
    assert "When all of it is spent: at most 94 of 100." in said
    assert "Spent within 365 days: epsilon 4.89 of 9" in said
    *rows, total = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert rows[0]["epsilon"] == pytest.approx(7.29, abs=0.01)
    assert total["most_epsilon_per_year"]["spent"] == pytest.approx(4.89, abs=0.01)
    assert total["exact_sums"] == 0
    both = Loss.together((Loss(1.0), Loss(mu_of(total["room"], 1e-6))))
    assert both.epsilon(1e-6) == pytest.approx(Policy().most_epsilon_per_year, abs=0.02)


def test_exact_sums_are_said_to_have_no_bound(client: ClientFolder) -> None:
    spend(client, None)
    said = budget(client)
    assert "1 sums had no noise" in said
    assert "none" in said


def test_a_folder_that_is_none_is_refused_in_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["client", "budget", str(tmp_path)])
    assert done.exit_code != 0
    assert not list(tmp_path.iterdir())


def test_a_client_that_has_not_joined_has_spent_nothing(homes: Homes, tmp_path: Path) -> None:
    _, (client, *_) = homes
    said = budget(client, "--json", str(tmp_path / "out.jsonl"))
    assert "Nothing was spent" in said
    (total,) = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert total["most_epsilon"]["spent"] == 0
    assert not (client.folder / "runs").exists()


def test_the_record_is_shown_to_a_client_that_was_revoked_and_has_no_catalogue(
    homes: Homes, client: ClientFolder
) -> None:
    server, _ = homes
    spend(client, 1.0)
    server.save(server.members.revoke(0))
    server.members.write(client.folder / "roster.json")
    (client.folder / "catalogue.txt").unlink()
    assert "epsilon 4.89 of 20" in budget(client)


def test_a_memory_that_is_gone_is_not_begun_anew(client: ClientFolder) -> None:
    """A client with a new record would appear to have spent nothing.

    Backups that skip folders tagged as caches lose the record, and no other client remembers sums
    with noise.
    """
    spend(client, 1.0)
    shutil.rmtree(client.folder / "runs")
    for _ in range(2):
        with pytest.raises(FederationError, match=r"memory\.db: gone"):
            client.node()
        done = CliRunner().invoke(app, ["client", "budget", str(client.folder)])
        assert isinstance(done.exception, FederationError)


def test_joining_again_keeps_the_record(homes: Homes, client: ClientFolder) -> None:
    spend(client, 1.0)
    (client.folder / "client.json").unlink()
    assert "epsilon 4.89 of 20" in budget(client)
    join(client, homes[0])
    assert "epsilon 4.89 of 20" in budget(client)


def test_a_backup_from_before_the_first_answer_is_noticed(
    client: ClientFolder, tmp_path: Path
) -> None:
    """Such a backup has no note of any answer, and is consistent in itself."""
    shutil.copytree(client.folder / "runs", tmp_path / "backup")
    spend(client, 1.0)
    shutil.rmtree(client.folder / "runs")
    shutil.copytree(tmp_path / "backup", client.folder / "runs")
    done = CliRunner().invoke(
        app, ["client", "budget", str(client.folder), "--json", str(tmp_path / "out.jsonl")]
    )
    assert done.exit_code == 1
    assert "restored from a backup" in done.output
    assert "at least epsilon 0 of 20 (0 for" in done.output
    assert "There is no room for another update" in done.output
    (total,) = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert not total["whole"]
    with closing(client.node()) as node:
        assert node.memory.is_older()


def test_json_is_json_whatever_was_spent(client: ClientFolder, tmp_path: Path) -> None:
    spend(client, 50.0)
    said = budget(client, "--json", str(tmp_path / "out.jsonl"))
    assert "Spent in the life of this client: epsilon without bound of 20 (without" in said
    assert "There is no room for another update of the usual size, and none returns" in said

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    for line in (tmp_path / "out.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)


@given(st.floats(1e-9, 60))
def test_no_figure_is_less_than_was_spent(epsilon: float) -> None:
    for digits in (3, 5):
        shown = float(at_least(epsilon, digits))
        assert epsilon <= shown <= epsilon * (1 + 10 ** (1 - digits))
