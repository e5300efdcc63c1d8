"""Vectors of rosters and their differences, good ones and bad ones.

python -m tests.network.roster_vectors     writes tests/vectors/roster-1.json again
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from privirec.errors import UsageError
from privirec.runtime.enrolment.cards import Card, Rotation
from privirec.runtime.enrolment.roster import RosterDifference, RosterFile
from privirec.secagg.keys import Identity

FILE = Path(__file__).parent.parent / "vectors" / "roster-1.json"
_NODE = "ecdsa-sha2-nistp384 a"


def _key(letter: str) -> Identity:
    return Identity(letter.encode() * 32)


def make() -> dict[str, Any]:
    """Return all vectors."""
    operator, server, renewed = _key("o"), _key("s"), _key("t")
    ann, bob, eve, later = _key("a"), _key("b"), _key("e"), _key("l")
    first = RosterFile(operator=operator.public.hex()).name_server(server.public.hex())
    one = first.approve(Card.make("Zo\u00eb \u2603", ann, _NODE))
    two = one.approve(Card.make("bob", bob, _NODE))
    rotation = Rotation.make(two.operator, 0, ann, Card.make("x", later, _NODE))
    three = two.rotate(rotation)
    four = three.renew_server(server, renewed.public.hex())
    five = four.revoke(1)
    fork = one.approve(Card.make("eve", eve, _NODE)).revoke(0)
    foreign = RosterFile(operator=eve.public.hex()).name_server(server.public.hex())
    chain = [each.signed(operator) for each in (first, one, two, three, four, five)]
    first, one, two, three, four, five = chain
    fork, foreign = fork.signed(operator), foreign.signed(eve)

    def shown(roster: RosterFile, number: int, /, **changed: Any) -> dict[str, Any]:
        return roster.difference(number).model_dump(mode="json") | changed

    def edited(place: int, **changed: Any) -> dict[str, Any]:
        found = shown(five, 2)
        found["changes"][place] |= changed
        return found

    good = [
        ("nothing new", two, shown(two, 3)),
        ("all changes", one, shown(five, 2)),
        ("an overlap", three, shown(five, 1)),
        ("from the beginning", first, shown(five, 0)),
        ("one change", four, shown(five, 5)),
    ]
    bad = [
        ("rollback", five, shown(three, 4)),
        ("rollback from the beginning", five, shown(one, 0)),
        ("fork", three, shown(fork, 2)),
        ("fork from the beginning", five, shown(fork, 0)),
        ("gap", one, shown(five, 4)),
        ("foreign operator", two, shown(foreign, 0)),
        ("foreign signature", one, shown(five, 2, signature=eve.sign(b"x").hex())),
        ("signature of another number", one, shown(five, 2, signature=four.signature)),
        ("a name changed", one, edited(0, name="eve")),
        ("a key changed", one, edited(1, key=eve.public.hex())),
        ("a change dropped", one, shown(five, 2, changes=shown(five, 2)["changes"][:-1])),
        ("changes in another order", one, shown(five, 2, changes=shown(five, 2)["changes"][::-1])),
        ("an unknown field", one, shown(five, 2, more=1)),
        ("an unknown change", one, edited(0, change="forgive")),
        ("a negative place", one, shown(five, 2, since=-1)),
    ]
    cases = [_case(name, before, after) for name, before, after in (*good, *bad)]
    assert [case["accepted"] for case in cases] == [True] * len(good) + [False] * len(bad)
    return {"operator": operator.public.hex(), "cases": cases}


def _case(name: str, before: RosterFile, after: dict[str, Any]) -> dict[str, Any]:
    case = {"name": name, "before": before.difference(0).model_dump(mode="json"), "shown": after}
    try:
        found = before.continued(RosterDifference.parse(json.dumps(after).encode()))
    except UsageError as error:
        return case | {"accepted": False, "says": str(error)}
    return case | {"accepted": True, "digest": found.digests[-1].hex()}


if __name__ == "__main__":
    FILE.write_text(json.dumps(make(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
