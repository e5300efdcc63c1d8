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
from privirec.federated.programs.calibration import Promise
from privirec.federated.programs.protected import DEFAULT_EPSILON
from privirec.privacy.policy import Policy
from privirec.privacy.worth import right_guesses, worth
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
    return [
        "This device takes part in updates of models that keep to what follows.",
        *_terms(policy),
    ]


def _terms(policy: Policy) -> list[str]:
    open_to = [choice for choice in ways_to_sum() if choice.name in policy.aggregators]
    unsafe = [choice.name for choice in open_to if not choice.is_safe]
    said = [_allowance(policy)]
    if policy.computations:
        said.append(
            "It also takes part in updates without noise, which can give histories away: "
            f"{', '.join(policy.computations)}."
        )
    else:
        said.append("It takes no part in updates without noise, because they give histories away.")
    if not open_to:
        said.append("It agrees to no way to send its part, so it takes part in nothing.")
    elif unsafe:
        said.append(f"It agrees to ways in which a server sees what it sends: {', '.join(unsafe)}.")
    else:
        said.append("A server sees only totals of many devices, never what this one sends.")
    said.append(
        "That holds even for a server that lies, as long as no more than "
        f"{policy.corrupt_share:.0%} of the devices work for it."
        if policy.server == ServerModel.ACTIVE
        else "It trusts the server to keep to the rules; one that lies could see what it sends."
    )
    said.append(
        f"At least {policy.smallest_cohort} devices are in a total. One update sends at most "
        f"{as_bytes(policy.most_bytes_up)} and receives at most {as_bytes(policy.most_bytes_down)}."
    )
    said.append(
        f"Up to {policy.most_roster_changes_per_month:,} devices may come, go or change their keys "
        "in 30 days without a question to you."
        if policy.most_roster_changes_per_month
        else "You are asked before any other device comes, goes or changes its keys."
    )
    return said


def _allowance(policy: Policy) -> str:
    """Return sentences on the budget, and what it is worth when it is used up."""
    life, year = policy.limits
    updates = [f"{each.runs(usual_level(policy)):,}" for each in (year, life)]
    if life.epsilon <= year.epsilon:
        return (
            f"Models may learn about you from about {updates[1]} updates of the usual size in all. "
            f"{worth(life.cap, 'your')} That is after all of them."
        )
    return (
        f"Models may learn about you from about {updates[0]} updates of the usual size within a "
        f"year, and {updates[1]} in all. {worth(year.cap, 'your')} That is after a whole year's; "
        f"after all of them at most {right_guesses(life.cap)} of 100."
    )


def allowance_in_short(policy: Policy) -> str:
    """Return the budget of a year in a few words."""
    year = min(policy.limits, key=lambda limit: limit.epsilon)
    return (
        f"About {year.runs(usual_level(policy)):,} updates of the usual size a year; a guess about "
        f"you is then right in at most {right_guesses(year.cap)} of 100 cases."
    )


def usual_level(policy: Policy) -> float:
    """Return the level of a run with the default epsilon."""
    return Promise(DEFAULT_EPSILON, policy.delta, 1, 1).mu


@dataclass(frozen=True)
class BudgetLevel:
    """A choice of both limits in one step."""

    name: str
    title: str
    in_life: float
    per_year: float

    def of(self, policy: Policy) -> Policy:
        return changed(
            policy, {"most_epsilon": self.in_life, "most_epsilon_per_year": self.per_year}
        )

    def fits(self, policy: Policy) -> bool:
        return (policy.most_epsilon, policy.most_epsilon_per_year) == (self.in_life, self.per_year)


LEVELS = (
    BudgetLevel("little", "As little as is useful", in_life=9.0, per_year=4.0),
    BudgetLevel(
        "usual",
        "As usual",
        in_life=Policy().most_epsilon,
        per_year=Policy().most_epsilon_per_year,
    ),
)


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
