"""A policy's refusal: which rule, and in words."""

from __future__ import annotations

from enum import StrEnum
from typing import NoReturn

from privirec.errors import FederationError


class Rule(StrEnum):
    """What a policy guards, by the names under which a client refuses."""

    POLICY = "policy"
    """A computation, an aggregator or a limit of one run."""
    PEOPLE = "too-few-people"
    COHORT = "cohort"
    """Sums of several runs would set a few people apart."""
    OPENED = "opened-too-much"
    """What the sums of all runs opened would add up to too much."""
    AIMED = "aimed-block"
    BUDGET = "budget"
    """More epsilon than this client allows, or less noise than it counts on."""


class PolicyRefusal(FederationError):
    """Something this client does not do, whoever asks."""

    def __init__(self, reason: str, rule: Rule = Rule.POLICY) -> None:
        super().__init__(reason)
        self.rule = rule


def refuse(rule: Rule, asked: str) -> NoReturn:
    raise PolicyRefusal(f"asked for {asked}", rule)
