"""Tests of `privirec explain-privacy`: the privacy statement of an artifact."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privirec.app.cli.every import app
from privirec.data import load_dataset
from privirec.device import Installed
from privirec.federated.contributions import ItemDegrees, NoiseShare, NoisyPopularity
from privirec.federated.dp.loss import Loss
from privirec.privacy.explain import explained, in_everyday_words
from privirec.privacy.ledger import Ledger
from privirec.privacy.worth import at_least, worth
from privirec.runtime.run import run
from privirec.runtime.spec import RunSpec

SHARE = NoiseShare(deviation=4000, clients=3, contributors=2, fraction_bits=12)
LOSS = ("mu", "gap", "replacing")


def popularity() -> NoisyPopularity:
    return NoisyPopularity.planned(20, 100, SHARE).ask()  # type: ignore[return-value]


def test_a_ledger_says_epsilon_so_far() -> None:
    ledger = Ledger()
    ledger.add_sum(popularity())
    ledger.add_sum(popularity())
    first, second = ledger.as_rows()
    loss = SHARE.protection(20, 2).loss
    both = Loss.together([loss, loss])
    assert first["epsilon_so_far"] == loss.epsilon(1e-6)
    assert first["epsilon_replacing_so_far"] == loss.epsilon_replacing(1e-6)
    assert second["epsilon_so_far"] == both.epsilon(1e-6)
    assert second["epsilon_replacing_so_far"] == both.epsilon_replacing(1e-6)
    assert ledger.epsilon() == second["epsilon_so_far"]
    ledger.add_sum(ItemDegrees(20, 100))
    assert ledger.as_rows()[-1]["epsilon_so_far"] == "none"
    assert ledger.as_rows()[-1]["epsilon_replacing_so_far"] == "none"
    assert ledger.epsilon() == math.inf


def test_noise_from_a_seed_promises_nothing() -> None:
    ledger = Ledger(secret_noise=False)
    ledger.add_sum(popularity())
    assert ledger.as_rows()[0]["epsilon_so_far"] == "none"
    said = " ".join(explained({"ledger": ledger.as_rows(), "run": {"seed": 7}}))
    assert "Promised: nothing" in said
    assert "drawn from a seed" in said


def test_a_federation_with_noise_is_promised_epsilon() -> None:
    ledger = Ledger()
    ledger.add_sum(popularity())
    spec = {"aggregator": "secagg+", "server_model": "active", "corrupt_share": 0.05}
    federation = {"clients": 3, "cohort": 3, "spec": spec}
    said = " ".join(explained({"ledger": ledger.as_rows(), "federation": federation}))
    assert f"epsilon {ledger.epsilon():.3g} at delta 1e-06" in said
    replacing = ledger.loss().epsilon_replacing(1e-6)
    assert f"({at_least(replacing)} for replacing one history by another)" in said
    assert "even if it lies, as long as no more than 5% of the clients work for it" in said
    for lost in federation:
        explained({"ledger": ledger.as_rows(), "federation": federation | {lost: None}})
    for lost in spec:
        broken = federation | {"spec": spec | {lost: None}}
        explained({"ledger": ledger.as_rows(), "federation": broken})


def test_epsilon_is_computed_and_not_believed() -> None:
    """Test that epsilon must follow from the sums in the manifest, which is the server's claim."""
    ledger = Ledger()
    ledger.add_sum(popularity())
    ledger.add_sum(popularity())
    rows = ledger.as_rows()
    for row in rows:
        row["epsilon_so_far"] = 0.01
    assert f"epsilon {at_least(ledger.epsilon())} at delta" in " ".join(explained({"ledger": rows}))
    exact = Ledger()
    exact.add_sum(ItemDegrees(20, 100))
    said = " ".join(explained({"ledger": exact.as_rows() + rows}))
    assert "Promised: nothing. These sums are exact" in said
    assert said.count("no epsilon") == 3
    rows[1]["loss"] = {"mu": 1e3, "gap": 0.0, "replacing": 2e3}
    assert "Promised: nothing. The sums carry noise" in " ".join(explained({"ledger": rows}))
    rows[1] = rows[0] | {"loss": rows[0]["loss"] | {"replacing": rows[0]["loss"]["mu"] / 2}}
    assert "Promised to every person" not in " ".join(explained({"ledger": rows}))


@pytest.mark.parametrize("odd", [None, "x", True, math.nan, math.inf, -1.0, [], {}])
@pytest.mark.parametrize(
    "place",
    ["entries", "noise", "loss", "delta", "noise.scale", *(f"loss.{name}" for name in LOSS)],
)
def test_odd_words_in_a_manifest_promise_nothing(place: str, odd: object) -> None:
    ledger = Ledger()
    ledger.add_sum(popularity())
    row = ledger.as_rows()[0]
    name, _, inner = place.partition(".")
    row[name] = row[name] | {inner: odd} if inner else odd
    federation = {"aggregator": "secagg+", "server_model": "active", "corrupt_share": odd}
    said = " ".join(explained({"ledger": [row], "federation": federation}))
    if place not in ("entries", "noise.scale") and (place, odd) != ("noise", {}):
        assert "Promised to every person" not in said
    plain = " ".join(in_everyday_words({"ledger": [row], "federation": federation}))
    assert ("Promised to every person" in plain) == ("Promised to every person" in said)


@pytest.mark.parametrize(
    ("spec", "plain", "details"),
    [
        (RunSpec.of(model="gf-cf", rank=4), "can give some of them away", "some of them away"),
        (
            RunSpec.of("privirec-k", model="gf-cf", rank=4),
            "Histories can be computed from totals without noise",
            "These sums are exact",
        ),
        (RunSpec.of("protected"), "drawn from a seed", "drawn from a seed"),
    ],
)
def test_saved_models_are_explained(
    tmp_path: Path, spec: RunSpec, plain: str, details: str
) -> None:
    result = run(load_dataset("synthetic:200x30"), spec)
    saved = result.recommender.save(tmp_path / "model", result.manifest())
    Installed(tmp_path / "installed").install(saved)
    for words, more in ((plain, ()), (details, ("--details",))):
        for folder in (saved, tmp_path / "installed"):
            done = CliRunner().invoke(app, ["explain-privacy", str(folder), *more])
            assert done.exit_code == 0, done.output
            said = " ".join(done.output.split())
            assert words in said
            terms = [term for term in ("epsilon", "secagg", "ring of") if term in said]
            assert not terms or more or (terms == ["epsilon"] and "--details" in said)


def test_everyday_words_name_the_same_promise() -> None:
    ledger = Ledger()
    ledger.add_sum(popularity())
    spec = {"aggregator": "secagg+", "server_model": "active", "corrupt_share": 0.05}
    manifest = {
        "ledger": ledger.as_rows(),
        "federation": {"clients": 9, "cohort": 8, "spec": spec},
    }
    said = " ".join(in_everyday_words(manifest))
    assert worth(ledger.loss()) in said
    assert worth(ledger.loss()) in " ".join(explained(manifest))
    assert "8 of 9 devices" in said
    assert "even if it lies, as long as no more than 5% of the devices work for it" in said
    spec["server_model"] = "semi-honest"
    assert "as long as it keeps to the protocol" in " ".join(in_everyday_words(manifest))
    spec["aggregator"] = "none"
    assert "saw what each device sent" in " ".join(in_everyday_words(manifest))
    assert "nothing is promised" in " ".join(in_everyday_words({}))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["explain-privacy", str(tmp_path)]).exit_code != 0
