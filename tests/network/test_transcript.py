"""Tests of the server's folder of a run: it can be released, and holds only what the server saw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from privirec.app.audit import audit, release_of
from privirec.app.transcript import is_record, opened_by
from privirec.data import Dataset
from privirec.errors import UsageError
from privirec.federated.programs import program_of
from privirec.runtime.coordinator import Stage
from privirec.runtime.local.simulation import Simulation

from .chaos import ChaosCarrier, Federation, Trouble


@pytest.fixture
def ran(tmp_path: Path) -> Federation:
    federation = Federation(tmp_path)
    outcome = ChaosCarrier(federation, 1, Trouble()).run()
    assert outcome.stage is Stage.DONE
    return federation


def test_a_recorded_run_is_attacked_like_a_simulated_one(ran: Federation) -> None:
    folder, train = ran.folder / "server", ran.train
    dataset = Dataset("silos", train, train)
    assert is_record(folder)
    assert not is_record(ran.folder)
    release = release_of(str(folder), dataset)
    program = program_of(ran.spec.program, train.n_users, train.n_items)
    expected = opened_by(program, Simulation(train))
    assert [one.ask.name for one in release.sums] == [one.ask.name for one in expected]
    for found, simulated in zip(release.sums, expected, strict=True):
        np.testing.assert_array_equal(found.total, simulated.total)
    rows = [one.row for one in audit(dataset, str(folder))]
    assert [row["attack"] for row in rows] == ["matching-pursuit"]
    assert rows[0]["release"] == str(folder)
    assert rows[0]["users_wrong"] == 0


def test_a_record_that_does_not_fit_is_refused_in_one_line(ran: Federation) -> None:
    folder, train = ran.folder / "server", ran.train
    fewer = train.rows(0, 5)
    with pytest.raises(UsageError, match="a run over 24 people and 17 items, which are not those"):
        release_of(str(folder), Dataset("fewer", fewer, fewer))
    path = folder / "sums" / "1"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UsageError, match="numbers where 17 were opened"):
        release_of(str(folder), Dataset("silos", train, train))
    path.unlink()
    with pytest.raises(UsageError, match="cannot be read"):
        release_of(str(folder), Dataset("silos", train, train))
    (folder / "journal").write_bytes(b"")
    with pytest.raises(UsageError, match="has not opened a sum"):
        release_of(str(folder), Dataset("silos", train, train))
