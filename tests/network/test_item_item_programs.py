"""Tests of programs outside the paper, over the network: bit for bit the simulation's model."""

from __future__ import annotations

from pathlib import Path

import pytest

from privirec.extra.linkprop_multi import LinkPropMultiSettings
from privirec.federated.programs import (
    HeadGramSettings,
    PrivirecSettings,
    ProgramSettings,
    SpectralSettings,
    program_of,
)
from privirec.models import EASE, LinkProp, Recommender, Spectral, artifact
from privirec.privacy.policy import Policy
from privirec.runtime.coordinator import Stage
from privirec.runtime.spec import RunSpec

from .chaos import Federation
from .test_guards import hand_out
from .test_node import Talk, said_in

LINKPROP = LinkProp(beta=0.5, gamma=0.5, delta=0.25)
PLAIN = {"alpha": 0.0, "left": 0.0, "right": 0.0}
PROGRAMS: dict[str, tuple[ProgramSettings, Recommender]] = {
    "ease": (PrivirecSettings(rank=0, **PLAIN), EASE(regularisation=2)),
    "ease on a head": (HeadGramSettings(head=4, **PLAIN), EASE(regularisation=2, head=4)),
    "linkprop": (PrivirecSettings(rank=0, alpha=0.25, left=0.5, right=0.25), LINKPROP),
    "linkprop-multi": (
        LinkPropMultiSettings(alpha=0.25, left=0.5, right=0.25, updates=2),
        LINKPROP,
    ),
    "spectral": (SpectralSettings(rank=3, columns=(2, 2, 1)), Spectral(rank=3)),
    "spectral, settled": (
        SpectralSettings(rank=3, columns=(3,) * 5, settle=0.5),
        Spectral(rank=3),
    ),
}


@pytest.mark.parametrize("settings", [s for s, _ in PROGRAMS.values()], ids=PROGRAMS)
def test_default_policies_refuse_them(
    settings: ProgramSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    talk = Talk(Federation(tmp_path), spec=RunSpec(program=settings, drop_share=0.2))
    talk.until(Stage.STOPPED)
    assert talk.server.components is None
    refusals = [line for line in caplog.messages if "refused: asked for the computation" in line]
    assert len(refusals) == 6


@pytest.mark.parametrize(("settings", "model"), PROGRAMS.values(), ids=PROGRAMS)
def test_the_network_gives_the_model_of_the_simulation(
    settings: ProgramSettings, model: Recommender, tmp_path: Path
) -> None:
    federation = Federation(tmp_path)
    sums = program_of(settings, 6, len(federation.catalogue)).sums()
    federation.policy = Policy(
        computations=tuple({planned.name for planned in sums}), largest_opened_share=10**6
    )
    talk = Talk(federation, spec=RunSpec(program=settings, drop_share=0.2))
    talk.until(Stage.COMPUTED)
    assert talk.server.components is not None
    simulated = federation.simulated(frozenset(range(6)), settings)
    first, second = (
        type(model)(model.config).use(components).save(tmp_path / name)
        for name, components in (("network", talk.server.components), ("simulation", simulated))
    )
    assert (first / artifact.ARRAYS).read_bytes() == (second / artifact.ARRAYS).read_bytes()
    asked = [entry.what for entry in talk.server.ledger.entries if entry.entries]
    planned = [one.name for one in sums if not one.optional]
    if len(planned) == len(sums):
        assert asked == planned
        return
    # The run ended before its plan did; clients accept its model as that of any other run.
    assert asked == [one.name for one in sums][: len(asked)]
    assert len(planned) <= len(asked) < len(sums)
    assert talk.server.found == {"rounds_run": len(asked) // 2}
    model_of_run = federation.artifact(talk.server.components)
    assert said_in(hand_out(talk, model_of_run)).installed
