"""A client's policy, described in sentences and changed in its file.

`privirec client policy` and the person's page use it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from privirec.durable import write_whole
from privirec.errors import UsageError
from privirec.federated.contributions import REGISTRY, Contribution
from privirec.privacy.policy import Policy
from privirec.privacy.worth import worth
from privirec.rows import as_bytes
from privirec.secagg import Guarantee, ServerModel, protocol, protocol_names

FILE = "policy.toml"


@dataclass(frozen=True)
class PolicyOption:
    """A name that a list in a policy may contain, and its meaning."""

    name: str
    meaning: str
    is_safe: bool
    """True for a protocol with a cryptographic guarantee; False for others and for exact sums."""


def exact_sums() -> list[PolicyOption]:
    """Return the sums that no noise protects, and what each of them reveals."""
    own = Contribution.protection.__func__  # type: ignore[attr-defined]
    return [
        PolicyOption(name, kind.gives_away, is_safe=False)
        for name, kind in REGISTRY.items()
        if kind.protection.__func__ is own  # type: ignore[attr-defined]
    ]


def ways_to_sum() -> list[PolicyOption]:
    """Return the aggregation protocols, and the guarantee of each."""
    return [
        PolicyOption(name, promised.value, is_safe=promised is Guarantee.CRYPTOGRAPHIC)
        for name in protocol_names()
        for promised in (protocol(name).guarantee,)
    ]


def in_words(policy: Policy) -> list[str]:
    """Return sentences on what a client agrees to, the most important first."""
    if not policy.takes_part:
        return [
            "This device takes part in nothing. It recommends from the model that it has.",
            *("If taking part is switched on again: " + each for each in _terms(policy)),
        ]
    return ["This device takes part in runs that keep to what follows.", *_terms(policy)]


def _terms(policy: Policy) -> list[str]:
    open_to = [choice for choice in ways_to_sum() if choice.name in policy.aggregators]
    unsafe = [choice for choice in open_to if not choice.is_safe]
    said = [
        *(
            f"Sums with noise may tell at most epsilon {limit.epsilon:g} about a person, all of "
            f"them together {limit.when}. {worth(limit.cap, 'your')}"
            for limit in policy.limits
        ),
        "It is in no exact sum: nothing bounds what those tell."
        if not policy.computations
        else "It is also in these exact sums, and nothing bounds what they tell: "
        f"{', '.join(policy.computations)}.",
        f"Its part of a sum is hidden by {' or '.join(policy.aggregators)}."
        if open_to and not unsafe
        else "It agrees to no way to sum, so it is in none."
        if not open_to
        else f"It agrees to {', '.join(choice.name for choice in unsafe)}: there the server sees "
        "what this device sends.",
        "Its part stays hidden even from a server that lies, if no more than "
        f"{policy.corrupt_share:.0%} of the clients work for it."
        if policy.server == ServerModel.ACTIVE
        else "It trusts the server to keep to the protocol; one that lies could see its part.",
        f"A sum has at least {policy.smallest_cohort} clients, and an exact one at least "
        f"{policy.fewest_other_people} people of other clients.",
        f"All exact runs of {policy.days_between_changes} days use one history, so that no change "
        "shows by itself."
        if policy.days_between_changes
        else "Exact runs use the history of the day, so a change can show.",
        f"One run sends at most {as_bytes(policy.most_bytes_up)}, receives at most "
        f"{as_bytes(policy.most_bytes_down)}, and has at most {policy.most_sums} sums.",
    ]
    return said


def changed(policy: Policy, changes: Mapping[str, Any]) -> Policy:
    """Return the policy with changed settings; raise UsageError of one line if one is invalid."""
    for name in changes:
        if name not in Policy.model_fields:
            raise UsageError(f"a policy has no setting {name}")
    try:
        return Policy.model_validate({**policy.model_dump(), **changes})
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{first['loc'][0]}: {first['msg']}") from None


def change(folder: Path, changes: Mapping[str, Any]) -> list[str]:
    """Write changed settings into a client's policy.toml, and return its new lines.

    If possible, comments and all other lines are kept. The client applies the changed policy from
    the server's next message on.
    """
    path = folder / FILE
    before = Policy.load(path)
    after = changed(before, changes)
    lines = {
        line.partition(" = ")[0]: line
        for line in after.as_toml().splitlines()
        if line not in before.as_toml().splitlines()
    }
    if lines:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        write_whole(path, _edited(text, lines, after).encode())
    return list(lines.values())


def _edited(text: str, lines: Mapping[str, str], wanted: Policy) -> str:
    """Return the text of the file with these lines, which replace those of the same settings.

    If the result does not parse as the wanted policy, because of lists over several lines or former
    names, return the text of the wanted policy alone.
    """
    left = dict(lines)
    kept = [left.pop(line.partition("=")[0].strip(), line) for line in text.splitlines()]
    edited = "".join(f"{line}\n" for line in (*kept, *left.values()))
    try:
        says = Policy.model_validate(tomllib.loads(edited))
    except (tomllib.TOMLDecodeError, ValidationError):
        return wanted.as_toml()
    return edited if says == wanted else wanted.as_toml()


def from_text(text: str) -> Any:
    """Return the value of a setting that a user typed, parsed as in policy.toml."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # A string without quotation marks.
