"""The published vectors, good and bad, through the real sessions."""

from __future__ import annotations

import json
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

from . import make_vectors

FOLDER = Path(__file__).parent.parent / "vectors" / "secagg"
RUNS = [
    json.loads((FOLDER / name).read_text())
    for name in ("run.json", "run-secagg.json", "run-none.json")
]
RUN = RUNS[0]
BAD = json.loads((FOLDER / "bad.json").read_text())

# Point 6 of what the client must refuse, in the order it is written down.
REFUSED = {
    "CohortTooSmall",
    "WeakParameters",
    "NotInGraph",
    "GraphNotSymmetric",
    "GraphNotRegular",
    "BadSignature",
    "ListsOverlap",
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


class Replayed:
    """Randomness from a vector; every draw must have the recorded size."""

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
        masked = client.contribute(expected["contribute"], [np.array(expected["values"])])
        assert [message.hex() for message in masked] == expected["messages"]


def test_the_files_are_what_the_generator_writes() -> None:
    for file, contents in make_vectors.build().items():
        assert (FOLDER / file).read_text() == make_vectors.text(contents), file


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["protocol"])
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


@pytest.mark.parametrize("case", BAD["cases"], ids=lambda case: case["name"])
def test_bad_messages_are_refused_by_name(case: dict[str, Any]) -> None:
    recorded = next(one for one in RUN["clients"] if one["client"] == BAD["client"])
    client = session(recorded, case["policy"])
    for expected in recorded["steps"][: case["after"]]:
        step(client, expected)
    with pytest.raises(ProtocolError) as refusal:
        client.receive(bytes.fromhex(case["message"]))
    assert type(refusal.value).__name__ == case["error"]
    rest = recorded["steps"][case["after"] :]
    if refusal.value.fatal:
        with pytest.raises(SessionClosed):
            step(client, rest[0])
        secrets = client.state  # type: ignore[attr-defined]
        assert not any(secrets.seeds.stored() + secrets.mask_privates.stored())
        assert not any(secrets.held_shares.stored())
    else:
        for expected in rest:  # noise changes nothing
            step(client, expected)


def test_every_refusal_has_a_bad_vector() -> None:
    names = {case["error"] for case in BAD["cases"]}
    assert names >= REFUSED
    assert all(issubclass(getattr(errors, name), ProtocolError) for name in names)
