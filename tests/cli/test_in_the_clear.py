"""Warnings of the commands that start runs without secure aggregation."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from typer.testing import CliRunner

from privirec.app.cli.every import app
from privirec.data import Interactions
from privirec.errors import FederationError
from privirec.federated.programs import PrivirecKSettings
from privirec.privacy.cohorts import PolicyRefusal
from privirec.privacy.policy import Aggregator
from privirec.runtime.enrolment.folders import ClientFolder, OperatorFolder
from privirec.runtime.federate import _policy
from privirec.runtime.pledges import Pledges
from privirec.runtime.run_plan import RunPlan
from privirec.runtime.spec import RunSpec
from privirec.version import __version__

SETTINGS = PrivirecKSettings(rank=3, rounds=2)
WARNING = "the server sees every client's contribution in the clear"


def server_run(folder: Path) -> tuple[list[str], str]:
    home = OperatorFolder.create(folder)
    members = home.members
    for name in ("lyon", "oslo", "porto"):  # fewer than a sum needs are refused
        members = members.approve(ClientFolder.create(folder / name).card(name))
    home.save(members)
    (folder / "catalogue.txt").write_text("a\nb\nc\nd\n")
    return ["server", "run", str(folder), "monday", *EXACT], (
        "privirec.runtime.https.runs.start_run"
    )


EXACT = ["--method", "privirec-k", "--rank", "2"]


def federate(_folder: Path) -> tuple[list[str], str]:
    given = ["federate", "--dataset", "synthetic:small", "--clients", "3", *EXACT]
    return given, "privirec.app.cli.federate.federate"


@pytest.mark.parametrize("aggregator", ["secagg+", "none", "correlated-noise"])
@pytest.mark.parametrize("command", [server_run, federate])
def test_a_warning_before_anybody_is_asked(tmp_path: Path, command: Any, aggregator: str) -> None:
    args, started = command(tmp_path)
    began = mock.Mock(side_effect=FederationError("as far as this test goes"))
    with (
        mock.patch(started, began),
        mock.patch("privirec.runtime.serving.check_up", return_value="https"),
    ):
        result = CliRunner().invoke(app, [*args, "--aggregator", aggregator])
    assert str(result.exception) == "as far as this test goes"
    assert result.stderr.count(WARNING) == (aggregator == "none")
    assert result.stderr.count("not proven safe") == 1
    assert result.stderr.count("not secure aggregation") == (aggregator == "correlated-noise")
    assert result.stderr.count("\n") == 1 + (aggregator != "secagg+")


@pytest.mark.parametrize("aggregator", ["secagg+", "secagg", "none"])
def test_the_clients_of_federate_agree_to_this_aggregator_and_no_other(
    aggregator: Aggregator,
) -> None:
    spec = RunSpec(program=SETTINGS, aggregator=aggregator)
    train = Interactions.from_matrix(np.eye(12, 9, dtype=np.float32))
    policy = _policy(spec, train, 3)
    for other in ("secagg+", "secagg", "none"):
        asked = RunPlan(
            run="0" * 32,
            version=__version__,
            spec=spec.model_copy(update={"aggregator": other}),
            n_items=9,
            catalogue="",
            roster="",
            clients=3,
            pledges=Pledges.unsigned({0: 4, 1: 4, 2: 4}),
        ).for_policy()
        if other == aggregator:
            policy.check_run(asked)
        else:
            with pytest.raises(PolicyRefusal, match=r"aggregators = "):
                policy.check_run(asked)


@pytest.mark.parametrize("server", ["active", "semi-honest"])
def test_the_clients_of_federate_agree_to_the_server_model_that_was_asked_for(server: str) -> None:
    began = mock.Mock(side_effect=FederationError("as far as this test goes"))
    given = ["federate", "--dataset", "synthetic:small", "--clients", "3"]
    given += [] if server == "active" else ["--server-model", server]  # as on the network
    with (
        mock.patch("privirec.app.cli.federate.federate", began),
    ):
        CliRunner().invoke(app, given)
    assumed = began.call_args.args[1]
    assert assumed.server_model == server
    spec = RunSpec(program=SETTINGS, server_model=assumed.server_model)
    train = Interactions.from_matrix(np.eye(12, 9, dtype=np.float32))
    assert _policy(spec, train, 3).server == server
