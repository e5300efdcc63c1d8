"""What someone who holds a release can find out from it. One file an attack, and a line here."""

from __future__ import annotations

from privirec.privacy.attacks.base import Attack, Found
from privirec.privacy.attacks.matching_pursuit import MatchingPursuit
from privirec.privacy.attacks.peeling import Peeling

ATTACKS: dict[str, Attack] = {attack.name: attack for attack in (Peeling(), MatchingPursuit())}
"""By the name that reports use."""

__all__ = ["ATTACKS", "Attack", "Found", "MatchingPursuit", "Peeling"]
