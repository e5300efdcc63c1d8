"""The person's page of what left the device: a picture, the budget as a bar, updates, details."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from privirec.app.budget import BudgetStatement, LimitUse, statement_of
from privirec.app.history import only_user
from privirec.app.own_device import OwnDevice
from privirec.app.pages.frame import FramedSite, Html
from privirec.app.pages.web import PageRequest, Response
from privirec.data.dates import in_words
from privirec.device.titles import clean_title
from privirec.models.artifact import read_manifest
from privirec.privacy.explain import explained, in_everyday_words
from privirec.privacy.worth import right_guesses, worth
from privirec.rows import as_bytes
from privirec.runtime.enrolment.folders import ClientFolder

AMBER, RED = 60, 85
"""Percent of a budget from which its bar changes colour."""
LATEST = 5
"""Number of updates on the first screen."""

_RUNS = [
    ("at", "when (UTC)"),
    ("run", "run"),
    ("computed", "what was computed"),
    ("sums", "sums"),
    ("bytes_up", "sent"),
    ("bytes_down", "received"),
    ("epsilon", "epsilon"),
    ("epsilon_replacing", "for replacing"),
    ("server", "server's key"),
    ("state", "how it ended"),
]
_LIMITS = {
    "most_epsilon_per_year": "Privacy budget of a year",
    "most_epsilon": "Privacy budget in all",
}


class WhatLeft:
    """The page that shows what left this device, and what never does."""

    def __init__(self, site: FramedSite, device: OwnDevice) -> None:
        self._site = site
        self._device = device

    def page(self, request: PageRequest) -> Response:
        client = self._device.client
        found = statement_of(client) if client is not None else None
        parts: list[object] = [self._picture(found)]
        if client is None or found is None:
            parts.append(
                self._site.sentences(
                    [
                        "This device is in no federation: nothing of the history leaves it. For a "
                        "page with budget and rules, name a client's folder: privirec device page "
                        "CLIENT."
                    ]
                )
            )
        else:
            parts += self._account(found)
        parts.append(self._model())
        if client is not None and found is not None:
            parts.append(self._figures(client, found))
        return self._site.page(request, "What left this device", *parts)

    # --- the picture ------------------------------------------------------------------------------

    def _picture(self, found: BudgetStatement | None) -> Html:
        fill = self._site.fill
        with self._device.store() as store:
            user = only_user(store, self._device.user)
            items, refused = len(store.items(user)), len(store.dislikes(user))
        stays = [
            f"Your history: {items:,} {'item' if items == 1 else 'items'}, by name",
            "Your searches, and what is recommended to you",
            f"What is not for you{f': {refused:,}' if refused else ''}",
        ]
        sums = sum(row["sums"] for row in found.rows) if found else 0
        exact = found is not None and bool(found.exact)
        grain = Html("")
        if not sums:
            left = ["Nothing"]
        else:
            assert found is not None  # noqa: S101 - there are no sums without a statement
            left = _sent(found, sums)
            dots = ((18, 12), (28, 37), (36, 10), (46, 38), (12, 33))
            grain = Html(
                "".join(f'<circle class="grain" cx="{x}" cy="{y}" r="3"/>' for x, y in dots)
            )
        return fill(
            "flow",
            stays=[fill("point", text=each) for each in stays],
            left=[fill("point", text=each) for each in left],
            state="exact" if exact else "some" if sums else "none",
            grain=grain,
        )

    # --- the account ------------------------------------------------------------------------------

    def _account(self, found: BudgetStatement) -> list[object]:
        site = self._site
        spoilt = [
            f"The update {run[:8]} is spoilt: the server claimed {claim}, which cannot be. Its "
            "model was not installed. The server does not know; talk to the operator, or leave."
            for run, claim in found.spoilt.items()
        ]
        rows = [
            site.fill(
                "update",
                day=in_words(datetime.fromisoformat(f"{row['at']}+00:00").timestamp()),
                said=_update(row),
            )
            for row in found.rows[: -LATEST - 1 : -1]
        ]
        more = len(found.rows) - len(rows)
        updates: list[object] = [
            site.fill("updates", rows=rows)
            if rows
            else site.sentences(["No update has taken place yet, and nothing has left."]),
            site.sentences([f"{more:,} earlier ones are in the figures below."] if more else []),
        ]
        year = next(each for each in found.policy.limits if each.window is not None)
        said = [
            *([] if rows else ["Nothing was spent yet."]),
            *([] if all(use.updates for use in found.uses) else [f"{found.room_in_words()}."]),
            worth(found.spent[year.setting], "your"),
            f"When the budget of a year is used up: at most {right_guesses(year.cap)} of 100.",
        ]
        budget = [
            [site.fill("failure", sentences=site.sentences([each])) for each in found.warnings],
            [self._meter(each) for each in reversed(found.uses)],
            site.sentences(said),
        ]
        return [
            [site.fill("failure", sentences=site.sentences([each])) for each in spoilt],
            site.fill("section", id="budget", heading="How much is used up", content=budget),
            site.fill("section", id="runs", heading="Updates", content=updates),
        ]

    def _meter(self, use: LimitUse) -> Html:
        level = "red" if use.percent >= RED else "amber" if use.percent >= AMBER else "ok"
        room = "used up" if not use.updates else _more(use.updates)
        return self._site.fill(
            "meter",
            id=use.setting,
            label=_LIMITS[use.setting],
            said=f"{use.percent} % used, {room}",
            value=use.percent,
            bar=self._site.fill("bar", percent=use.percent),
            level=level,
        )

    # --- the model, and the figures ---------------------------------------------------------------

    def _model(self) -> Html | None:
        if not self._device.has_model:
            return None
        site = self._site
        _, manifest = read_manifest(self._device.artifact)
        return site.fill(
            "section",
            id="model",
            heading="The model on this device",
            content=[
                site.points(clean_title(each) for each in in_everyday_words(manifest)),
                site.fill(
                    "more_details",
                    summary="Every sum of the model, with figures",
                    content=site.points(clean_title(each) for each in explained(manifest)),
                ),
            ],
        )

    def _figures(self, client: Path, found: BudgetStatement) -> Html:
        site, home = self._site, ClientFolder(client)
        server = "This device has not joined a federation yet."
        if home.has_joined:
            settings = home.settings
            server = (
                f"Server: {settings.server or 'not named yet'}, of the operator with key "
                f"{settings.operator[:16]}."
            )
        why = [f"Run {row['run']}: {row['why']}." for row in found.rows if row["state"] == "left"]
        opened = [
            f"Sums without noise have opened {found.opened:.3f} of the item-item matrix; the "
            f"policy allows {found.policy.largest_opened_share:g}."
        ]
        content = [
            site.sentences([server]),
            site.table("Every run, what was computed, and for whom", _RUNS, found.rows[::-1])
            if found.rows
            else None,
            site.sentences(why),
            site.sentences(found.sentences("your")),
            site.sentences(opened if found.exact else []),
        ]
        return site.fill("more_details", summary="All figures, for experts", content=content)


def _more(updates: int) -> str:
    return f"room for {updates:,} more update{'' if updates == 1 else 's'}"


def _sent(found: BudgetStatement, sums: int) -> list[str]:
    """Return what left the device, in words."""
    sent = sum(row["bytes_up"] or 0 for row in found.rows)
    noisy = sums - found.exact
    said = []
    if noisy:
        said.append(
            f"{noisy:,} {'time' if noisy == 1 else 'times'} your part of a total, blurred by noise "
            "and hidden among the parts of other devices"
        )
    if found.exact:
        said.append(
            f"{found.exact:,} {'time' if found.exact == 1 else 'times'} your part of a total "
            "without noise: nothing limits what such totals give away"
        )
    said.append(f"{as_bytes(sent)} in all; no title and no list of items")
    return said


def _update(row: dict[str, Any]) -> str:
    """Return what one update did, in a sentence."""
    volume = f"sent {as_bytes(row['bytes_up'] or 0)}, received {as_bytes(row['bytes_down'] or 0)}"
    if not row["sums"]:
        return f"Took part, and sent no part of a total: {row['why'] or row['state']}."
    totals = "one total" if row["sums"] == 1 else f"{row['sums']} totals"
    hidden = "without noise" if row["epsilon"] == "none" else "hidden in noise"
    ending = "" if row["state"] == "finished" else f" {row['state'].capitalize()}."
    return f"Your part of {totals}, {hidden}; {volume}.{ending}"
