"""Refusal by a policy: the rule that applies, and the reason in words."""

from __future__ import annotations

from enum import StrEnum
from typing import NoReturn

from privirec.errors import FederationError


class Rule(StrEnum):
    """Rules of a policy, by the names under which a client refuses."""

    POLICY = "policy"
    """A computation, an aggregator or a limit of one run."""
    PEOPLE = "too-few-people"
    COHORT = "cohort"
    """Sums of several runs would isolate a few people."""
    OPENED = "opened-too-much"
    """The sums of all runs would reveal too much in total."""
    AIMED = "aimed-block"
    BUDGET = "budget"
    """More epsilon than this client allows, or less noise than it relies on."""


class PolicyRefusal(FederationError):
    """Refusal of a request that this client does not answer for any server."""

    def __init__(self, reason: str, rule: Rule = Rule.POLICY) -> None:
        super().__init__(reason)
        self.rule = rule


def refuse(rule: Rule, asked: str) -> NoReturn:
    raise PolicyRefusal(f"asked for {asked}", rule)
