"""The person's page of rules: what this device agrees to, in words, with switches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from privirec.app import own_policy
from privirec.app.own_device import OwnDevice
from privirec.app.pages.frame import FramedSite, Html
from privirec.app.pages.web import PageRequest, Response, see
from privirec.errors import UsageError
from privirec.privacy.policy import Policy
from privirec.secagg import ServerModel

MEGABYTE = 1_000_000
OWN = "own"
"""Choice of own figures for the budget."""
_NUMBERS = {
    "most_epsilon": "Most epsilon for as long as this device takes part",
    "most_epsilon_per_year": "Most epsilon within any 365 days",
}
_VOLUME = {
    "most_bytes_up": "Most megabytes that an update sends",
    "most_bytes_down": "Most megabytes that an update receives",
}
_LIMITS = {
    "smallest_cohort": "Fewest devices in a total",
    "fewest_other_people": "Fewest other people in a total without noise",
    "days_between_changes": "Days for which updates without noise use one history",
}


class OwnRules:
    """The page with the policy, and its form."""

    def __init__(self, site: FramedSite, device: OwnDevice) -> None:
        self._site = site
        self._device = device

    def page(self, request: PageRequest) -> Response:
        site, client = self._site, self._device.client
        if client is None:
            nothing = "This device is in no federation, so there is nothing to agree to."
            return site.page(request, "My rules", site.sentences([nothing]))
        policy = Policy.load(client / own_policy.FILE)
        has_own = not any(each.fits(policy) for each in own_policy.LEVELS)
        special = has_own or policy.computations or policy.server != ServerModel.ACTIVE
        content = site.fill(
            "policy",
            words=site.points(own_policy.in_words(policy)),
            csrf=request.session.csrf,
            takes_part=_ticked(policy.takes_part),
            active=_ticked(policy.server == ServerModel.ACTIVE),
            levels=self._levels(policy),
            volume=self._number_fields(policy, _VOLUME),
            open=Html(" open" if special else ""),
            budget=self._number_fields(policy, _NUMBERS),
            exact_count=f"{len(policy.computations) or 'None'} of {len(own_policy.exact_sums())} "
            "agreed to.",
            exact=self._switches("computations", own_policy.exact_sums(), policy.computations),
            ways=self._switches("aggregators", own_policy.ways_to_sum(), policy.aggregators),
            limits=self._number_fields(policy, _LIMITS),
        )
        return site.page(request, "My rules", content)

    def save(self, request: PageRequest) -> Response:
        if self._device.client is None:
            raise UsageError("this device has no policy: it is in no federation")
        changes: dict[str, Any] = {
            "takes_part": "takes_part" in request.form,
            "server": ServerModel.ACTIVE if "active" in request.form else ServerModel.SEMI_HONEST,
            "computations": tuple(request.form.get("computations", ())),
            "aggregators": tuple(request.form.get("aggregators", ())),
        }
        for name, label in (_NUMBERS | _VOLUME | _LIMITS).items():
            changes[name] = _number(request.given(name), label, name)
        chosen = request.given("level", OWN)
        if chosen not in (OWN, *(level.name for level in own_policy.LEVELS)):
            raise UsageError(f"there is no choice {chosen[:40]!r}")
        for level in own_policy.LEVELS:
            if level.name == chosen:
                changes |= {
                    "most_epsilon": level.in_life,
                    "most_epsilon_per_year": level.per_year,
                }
        lines = own_policy.change(self._device.client, changes)
        request.session.notice = (
            "\n".join(["Saved; it applies from the next message of a server on.", *lines])
            if lines
            else "Nothing was changed."
        )
        return see("policy")

    def _levels(self, policy: Policy) -> list[Html]:
        chosen = next((each.name for each in own_policy.LEVELS if each.fits(policy)), OWN)
        choices = [
            (each.name, each.title, own_policy.allowance_in_short(each.of(policy)))
            for each in own_policy.LEVELS
        ]
        mine = own_policy.allowance_in_short(policy) if chosen == OWN else "Set them below."
        choices.append((OWN, "My own figures", mine))
        return [
            self._site.fill(
                "level", name=name, title=title, meaning=said, checked=_ticked(name == chosen)
            )
            for name, title, said in choices
        ]

    def _number_fields(self, policy: Policy, names: dict[str, str]) -> list[Html]:
        return [
            self._site.fill(
                "number_field",
                name=name,
                label=label,
                value=f"{getattr(policy, name) / (MEGABYTE if _is_bytes(name) else 1):.12g}",
            )
            for name, label in names.items()
        ]

    def _switches(
        self, name: str, choices: Sequence[own_policy.PolicyOption], chosen: Sequence[str]
    ) -> list[Html]:
        return [
            self._site.fill(
                "named_switch",
                list=name,
                name=choice.name,
                meaning=choice.meaning,
                checked=_ticked(choice.name in chosen),
            )
            for choice in choices
        ]


def _ticked(on: bool) -> Html:
    return Html(" checked" if on else "")


def _is_bytes(name: str) -> bool:
    return "bytes" in name


def _number(text: str, label: str, name: str) -> float | int:
    try:
        value = float(text) * (MEGABYTE if _is_bytes(name) else 1)
        return int(value) if value == int(value) else value
    except (ValueError, OverflowError):
        raise UsageError(f"{label}: {text[:40]!r} is not a number") from None
