"""Tests of the published vectors, good and bad, with the real sessions."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privirec.secagg import (
    Agreement,
    ClientPolicy,
    ClientSession,
    Identity,
    Roster,
    Statement,
    VectorShape,
    errors,
    protocol,
)
from privirec.secagg.errors import ProtocolError, SessionClosed
from privirec.secagg.keys import Secret

from . import make_vectors

FOLDER = Path(__file__).parent.parent / "vectors" / "secagg"
RUNS = [
    json.loads((FOLDER / name).read_text())
    for name in (
        "run.json",
        "run-active.json",
        "run-secagg.json",
        "run-none.json",
        "run-lightsecagg.json",
    )
]
RUN, ACTIVE_RUN, *_, LIGHT_RUN = RUNS
NOISY_RUN = json.loads((FOLDER / "run-correlated-noise.json").read_text())
BAD = json.loads((FOLDER / "bad.json").read_text())
ACTIVE_BAD = json.loads((FOLDER / "bad-active.json").read_text())
LIGHT_BAD = json.loads((FOLDER / "bad-lightsecagg.json").read_text())
NOISY_BAD = json.loads((FOLDER / "bad-correlated-noise.json").read_text())

# Point 6 of the checks of a client, in the order of the specification.
REFUSED = {
    "CohortTooSmall",
    "WeakParameters",
    "NotInGraph",
    "GraphNotSymmetric",
    "GraphNotRegular",
    "BadSignature",
    "Stranger",
    "SecondUnmask",
    "SecondSurvivorSet",
    "ReplayedMessage",
    "OutOfOrder",
    "TruncatedMessage",
    "OversizedMessage",
    "WrongVersion",
    "RingTooNarrow",
    "CohortChanged",
    "AgreementMismatch",
    "TooManyDropped",
    "BelowThreshold",
}


ACTIVE_REFUSED = {
    "AgreementMismatch",
    "BadSignature",
    "CohortChanged",
    "KeysNotInGraph",
    "MalformedMessage",
    "NotInGraph",
    "OutOfOrder",
    "ParametersInfeasible",
    "ReplayedMessage",
    "SecondSurvivorSet",
    "TooManyDropped",
    "Unconfirmed",
    "WeakParameters",
}

LIGHT_REFUSED = {
    "WrongProtocol",
    "RosterMismatch",
    "CohortTooSmall",
    "WeakParameters",
    "ParametersInfeasible",
    "RingTooNarrow",
    "NotInGraph",
    "BadKey",
    "BadSignature",
    "Stranger",
    "TooManyDropped",
    "BelowThreshold",
    "SecondSurvivorSet",
    "CohortChanged",
    "BadShare",
    "ReplayedMessage",
    "OutOfOrder",
    "WrongRun",
    "MalformedMessage",
    "TruncatedMessage",
    "OversizedMessage",
    "WrongVersion",
}

NOISY_REFUSED = {
    "AgreementMismatch",
    "BadKey",
    "BadSignature",
    "CohortTooSmall",
    "GraphNotRegular",
    "GraphNotSymmetric",
    "MalformedMessage",
    "NotInGraph",
    "OutOfOrder",
    "OversizedMessage",
    "ParametersInfeasible",
    "ReplayedMessage",
    "RingTooNarrow",
    "RosterMismatch",
    "TruncatedMessage",
    "WeakParameters",
    "WrongProtocol",
    "WrongRun",
    "WrongVersion",
}


class Replayed:
    """A source of randomness from a vector; every draw must have the recorded size."""

    def __init__(self, drawn: list[str]) -> None:
        self._drawn = [bytes.fromhex(raw) for raw in drawn]

    def __call__(self, size: int) -> bytes:
        raw = self._drawn.pop(0)
        assert len(raw) == size
        return raw


def session(
    recorded: dict[str, Any], policy: dict[str, Any], run: dict[str, Any] = RUN
) -> ClientSession:
    roster = Roster({int(client): bytes.fromhex(key) for client, key in run["roster"].items()})
    agreed = policy["agreement"]
    if agreed is not None:
        agreement = Agreement(
            bytes.fromhex(agreed["run"]),
            Statement(**agreed["statement"]),
            tuple(VectorShape(**shape) for shape in agreed["shapes"]),
            agreed["block_entries"],
        )
        policy = {**policy, "agreement": agreement}
    return protocol(run["protocol"]).client(
        recorded["client"],
        Identity(bytes.fromhex(recorded["identity_seed"])),
        roster,
        ClientPolicy(**policy),
        Replayed(recorded["random"]),
    )


def step(client: ClientSession, expected: dict[str, Any]) -> None:
    if "receive" in expected:
        reply = client.receive(bytes.fromhex(expected["receive"]))
        assert (reply.hex() if reply else None) == expected["reply"]
    else:
        asked = bytes.fromhex(expected["asked"])
        masked = client.contribute(expected["contribute"], [np.array(expected["values"])], asked)
        assert b"".join(masked).hex() == expected["vector"]


def test_the_files_are_what_the_generator_writes() -> None:
    for file, contents in make_vectors.build().items():
        assert (FOLDER / file).read_text() == make_vectors.text(contents), file


@pytest.mark.parametrize("run", [*RUNS, NOISY_RUN], ids=lambda run: run["protocol"])
@pytest.mark.parametrize("place", range(len(RUN["clients"])))
def test_every_client_answers_as_recorded(place: int, run: dict[str, Any]) -> None:
    recorded = run["clients"][place]
    client = session(recorded, run["policy"], run)
    for expected in recorded["steps"]:
        step(client, expected)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["protocol"])
def test_the_recorded_sums_are_sums(run: dict[str, Any]) -> None:
    contributed: dict[int, list[np.ndarray]] = {1: [], 2: []}
    for recorded in run["clients"]:
        for expected in recorded["steps"]:
            if "contribute" in expected:
                contributed[expected["contribute"]].append(np.array(expected["values"]))
    for number, vectors in contributed.items():
        assert np.sum(vectors, axis=0).tolist() == run["sums"][number - 1]
        assert len(vectors) == len(run["survivors"][number - 1]) == 7


def test_the_recorded_noisy_sums_are_sums_within_the_stated_error() -> None:
    statement = Statement.of(8, 0.1, 0.125, rounds=2)
    for number, shape in enumerate(make_vectors.correlated_vectors.SHAPES, start=1):
        vectors = [
            np.array(step["values"])
            for recorded in NOISY_RUN["clients"]
            for step in recorded["steps"]
            if step.get("contribute") == number
        ]
        assert len(vectors) == len(NOISY_RUN["survivors"][number - 1]) == 7
        error = np.array(NOISY_RUN["sums"][number - 1]) - np.sum(vectors, axis=0)
        assert np.abs(error).max() > 0
        deviation = protocol("correlated-noise").deviation(shape, statement)
        assert np.abs(error).max() < 4 * deviation


@pytest.mark.parametrize(
    ("run", "case"),
    [(RUN, case) for case in BAD["cases"]]
    + [(ACTIVE_RUN, case) for case in ACTIVE_BAD["cases"]]
    + [(LIGHT_RUN, case) for case in LIGHT_BAD["cases"]]
    + [(NOISY_RUN, case) for case in NOISY_BAD["cases"]],
    ids=lambda value: value.get("name", value.get("protocol")),
)
def test_bad_messages_are_refused_by_name(run: dict[str, Any], case: dict[str, Any]) -> None:
    recorded = next(one for one in run["clients"] if one["client"] == BAD["client"])
    client = session(recorded, case["policy"], run)
    for expected in recorded["steps"][: case["after"]]:
        step(client, expected)
    with pytest.raises(ProtocolError) as refusal:
        client.receive(bytes.fromhex(case["message"]))
    assert type(refusal.value).__name__ == case["error"]
    rest = recorded["steps"][case["after"] :]
    if refusal.value.fatal:
        with pytest.raises(SessionClosed):
            step(client, rest[0])
        state = client.state  # type: ignore[attr-defined]
        secrets = [getattr(state, field.name) for field in fields(state)]
        assert not any(any(one.stored()) for one in secrets if isinstance(one, Secret))
    else:
        for expected in rest:  # noise changes nothing
            step(client, expected)


def test_every_refusal_has_a_bad_vector() -> None:
    names = {case["error"] for case in BAD["cases"]}
    assert names >= REFUSED
    active = {case["error"] for case in ACTIVE_BAD["cases"]}
    assert active == ACTIVE_REFUSED
    light = {case["error"] for case in LIGHT_BAD["cases"]}
    assert light >= LIGHT_REFUSED
    noisy = {case["error"] for case in NOISY_BAD["cases"]}
    assert noisy == NOISY_REFUSED
    names |= active | light | noisy
    assert all(issubclass(getattr(errors, name), ProtocolError) for name in names)
