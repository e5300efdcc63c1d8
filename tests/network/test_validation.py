"""Tests of validation over the network: held-out interactions, and limits on the server's asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from privirec.federated.contributions import Candidate, Histories
from privirec.federated.contributions.validation import FRACTION_BITS
from privirec.federated.programs import (
    SpectralValidation,
    SpectralValidationSettings,
    program_of,
    spectral_validation,
)
from privirec.federated.randomness import ClientRandomness
from privirec.privacy.policy import Policy, allowing
from privirec.runtime.coordinator import Stage
from privirec.runtime.execute import execute_steps
from privirec.runtime.local.simulation import Simulation
from privirec.runtime.node.memory import Memory
from privirec.runtime.refusals import Code
from privirec.runtime.spec import RunSpec

from .chaos import Federation
from .silos import Silos, refusals, run
from .test_node import Talk, refused
from .test_people import codes

SETTINGS = SpectralValidationSettings(
    rank=2,
    columns=(2,),
    candidates=(
        Candidate(rank=2, history_exponent=0.5, item_exponent=0.5),
        Candidate(rank=1, history_exponent=0.2, item_exponent=0.3),
    ),
)
ONE_VECTOR = SpectralValidationSettings(
    rank=1,
    columns=(2,),
    candidates=(Candidate(rank=1, history_exponent=0.5, item_exponent=0.5),),
)
EXACT = tuple({one.name for one in program_of(SETTINGS, 9, 30).sums()})


def spec(settings: SpectralValidationSettings = SETTINGS) -> RunSpec:
    return RunSpec(program=settings, drop_share=0.2)


def lenient(**changes: Any) -> Policy:
    return allowing(EXACT, largest_opened_share=100, **changes)


def test_means_are_over_what_clients_keep_back(tmp_path: Path) -> None:
    """Each client has its own secret seed, which a simulation cannot guess."""
    federation = Federation(tmp_path)
    federation.policy = lenient()
    talk = Talk(federation, spec=spec())
    talk.until("input", 3)
    seeds = []
    for client in range(6):
        state = Memory(tmp_path / f"client-{client}/runs").load(talk.server.run)
        assert state is not None
        seeds.append(state.noise_seed)
    assert len(set(seeds)) == 6
    talk.until(Stage.COMPUTED)
    train = federation.train
    parts = [
        Histories(train.matrix[4 * client : 4 * client + 4]).split_by(
            ClientRandomness(seed), SETTINGS.held_out
        )
        for client, seed in enumerate(seeds)
    ]
    together = Simulation(train)
    together._histories = Histories(
        *(sp.vstack([part.matrix for part in parts], "csr"), 0),
        sp.vstack([part.held_out for part in parts], "csr"),
    )
    program = program_of(SETTINGS, train.n_users, train.n_items)
    assert isinstance(program, SpectralValidation)
    execute_steps(program.validated(), together)
    assert talk.server.found == program.found()
    assert [point["config"]["rank"] for point in talk.server.found["validated"]] == [2, 1]
    assert talk.server.found["validated"][0]["users"] > 20
    guessed = program_of(SETTINGS, train.n_users, train.n_items)
    assert isinstance(guessed, SpectralValidation)
    execute_steps(guessed.validated(), Simulation(train, 6, held_out=SETTINGS.held_out))
    assert guessed.measured != program.measured


def test_a_default_client_does_not_validate(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    known = tuple(name for name in EXACT if name != "validation-metrics")
    federation.policy = allowing(known, largest_opened_share=100)
    talk = Talk(federation, spec=spec())
    talk.until(Stage.STOPPED)
    assert any("the computation validation-metrics" in said for said in refusals(talk))


def test_a_server_does_not_ask_as_often_as_it_likes(tmp_path: Path) -> None:
    """Each run may use another made-up model; a limit of two permits a second run."""
    touched = np.random.default_rng(2).random((45, 12)) < 0.5
    silos = Silos(
        tmp_path,
        np.array_split(touched, 3),
        lenient(most_validations_per_month=1),
        program=ONE_VECTOR,
    )
    Talk(silos, name="first").until(Stage.COMPUTED)
    second = Talk(silos, name="second")
    second.until("advertise")
    reply = silos.node(0).answer(second.message_for(0))
    refused(reply, "1 sums of validation metrics, where 1 were answered", Code.POLICY, final=True)
    silos.policy = lenient(most_validations_per_month=2)
    third = Talk(silos, name="third")
    third.until("input", 1)
    silos.policy = lenient(most_validations_per_month=1)  # its owner reconsiders midway
    assert codes(silos, third) == {Code.POLICY}


# --- a made-up model ------------------------------------------------------------------------------

ITEMS = 100
VICTIM, ACCOMPLICE = 7, 25
RARE, TARGET, SHIELD = 0, 97, 98


def crowd(*, has: bool) -> np.ndarray:
    """Return histories in which only the victim has RARE.

    An accomplice of the server has TARGET, and holds out SHIELD instead.
    """
    touched = np.zeros((60, ITEMS), bool)
    touched[:, 1:97] = np.random.default_rng(2).random((60, 96)) < 0.15
    touched[VICTIM, RARE] = True
    touched[VICTIM, TARGET] = has
    touched[ACCOMPLICE] = False
    touched[ACCOMPLICE, [1, TARGET, SHIELD]] = True
    return touched


def whoever_has_rare_is_recommended_target(
    space: Any, pairs: str, rank: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return a basis of one vector in place of the computed eigenpairs."""
    x = np.where(np.abs(space._y[: space.columns]).max(axis=0) > 0, -0.01, 0.0)
    x[RARE], x[TARGET] = 0.94, 0.33
    return np.ones(1), (x / np.linalg.norm(x))[:, None].astype(np.float32)


def highest_first(_: Any, n_users: int, n_interactions: int) -> tuple[np.ndarray, np.ndarray]:
    """Let every user hold out their last items, to make the test deterministic."""
    words = np.arange(n_interactions, 0, -1, dtype=np.uint64)
    return np.full(n_users, 2**64 - 1, np.uint64), words


def test_a_made_up_model_asks_one_person_whether_she_has_an_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum shows whether the victim holds out TARGET.

    A model with no other effect is refused. `federated/test_validation.py` has one that is not, and
    shows how a server subtracts what it knows.
    """
    monkeypatch.setattr(ClientRandomness, "held_out_words", highest_first)
    made_up = whoever_has_rare_is_recommended_target
    monkeypatch.setattr(spectral_validation, "eigenpairs", made_up)

    def silos(has: bool, policy: Policy) -> Silos:
        parts = np.array_split(crowd(has=has), 3)
        return Silos(
            tmp_path / f"{has} {policy.largest_item_share}", parts, policy, program=ONE_VECTOR
        )

    off = lenient(largest_item_share=1, largest_item_leverage=1)
    learned = []
    for has in (True, False):
        seen, talk = run(silos(has, off), "server")
        assert talk.server.stage is Stage.COMPUTED
        learned.append(int(seen[-1][1][0]))
    assert learned[0] - learned[1] > 0.2 * (1 << FRACTION_BITS)

    guarded = silos(True, lenient())
    talk = Talk(guarded)
    talk.until("input", 3)
    assert codes(guarded, talk) == {Code.AIMED_BLOCK}
