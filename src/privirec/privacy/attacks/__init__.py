"""Attacks on releases.

Each attack has its own file and an entry in `ATTACKS`.
"""

from __future__ import annotations

from privirec.privacy.attacks.aimed import Aimed
from privirec.privacy.attacks.base import Attack, Found, Guesses, Test
from privirec.privacy.attacks.canaries import Canaries
from privirec.privacy.attacks.cliques import Cliques
from privirec.privacy.attacks.differencing import TwoCohorts, TwoRuns
from privirec.privacy.attacks.few_users import LikelihoodPeeling
from privirec.privacy.attacks.last_item import InformedLastItem, LastItem
from privirec.privacy.attacks.matching_pursuit import MatchingPursuit
from privirec.privacy.attacks.membership import InformedMembership, Membership
from privirec.privacy.attacks.peeling import Peeling
from privirec.privacy.attacks.start_block import StartBlock

ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attack in (
        *(Peeling(), LikelihoodPeeling(), Cliques(), MatchingPursuit(), StartBlock()),
        *(TwoCohorts(), TwoRuns(), Aimed()),
        *(Membership(), InformedMembership(), LastItem(), InformedLastItem(), Canaries()),
    )
}
"""All attacks, by the name that reports use."""
