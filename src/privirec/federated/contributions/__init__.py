"""Closed set of contributions that a server may request from a client.

Each one is a pure function of the client's histories and the public inputs. Every kind has its own
file and an entry in `REGISTRY`.
"""

from __future__ import annotations

from collections.abc import Iterator

from privirec.errors import FederationError
from privirec.federated.contributions.base import (
    Aim,
    ClientContext,
    Contribution,
    Histories,
    Integers,
    LaterSum,
    Opened,
    PlannedSum,
    SumShape,
)
from privirec.federated.contributions.head_item_item import HeadItemItem
from privirec.federated.contributions.item_degrees import ItemDegrees
from privirec.federated.contributions.item_item import ItemItem
from privirec.federated.contributions.noisy import NoiseShare, NoisyPopularity
from privirec.federated.contributions.noisy_gram import NoisyHeadGram
from privirec.federated.contributions.noisy_pairs import NoisyPairs
from privirec.federated.contributions.noisy_power import NoisyPowerStep
from privirec.federated.contributions.power_step import PowerStep, SeededStep, start_signs
from privirec.federated.contributions.scaled_step import RowReach, ScaledStep, SeededScaledStep
from privirec.federated.contributions.user_start import UserStart
from privirec.federated.contributions.validation import Candidate, ValidationMetrics
from privirec.federated.randomness import RandomStream
from privirec.registry import Registry

REGISTRY: Registry[type[Contribution]] = Registry(
    *("contributions", "contribution"),
    *(ItemDegrees, ItemItem, HeadItemItem, PowerStep, SeededStep, UserStart),
    *(RowReach, ScaledStep, SeededScaledStep, ValidationMetrics),
    *(NoisyPopularity, NoisyHeadGram, NoisyPowerStep, NoisyPairs),
)


def check_registered(ask: Contribution) -> None:
    """Raise FederationError unless the registry holds exactly this type under its name."""
    if REGISTRY.get(ask.name) is not type(ask):
        raise FederationError(f"{ask.name!r} is not in the registry of contributions")


def answer(ask: Contribution, histories: Histories, randomness: RandomStream) -> Iterator[Integers]:
    """Yield a client's contribution block by block; refuse a request of an unknown kind."""
    check_registered(ask)
    if ask.n_items != histories.n_items:
        raise FederationError("asked about another catalogue than this client's")
    unit = ask.encoding  # raises if the sum could leave its ring
    for block in ask.blocks(histories, randomness):
        yield unit.wrapped(block)
