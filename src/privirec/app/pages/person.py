"""The user's page: recommendations, their history, what left the device, and their policy.

All changes call the same functions as `privirec device` and `privirec client policy`. The page
makes no network requests, and no script runs in the browser.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from privirec.app import own_policy
from privirec.app.budget import BudgetStatement, statement_of
from privirec.app.history import counted, forgetting, only_user, used_by_runs
from privirec.app.own_device import OwnDevice
from privirec.app.pages.frame import FramedSite, Html
from privirec.app.pages.web import PageRequest, Response, see
from privirec.device import Recommendation, find_items
from privirec.device.titles import clean_title
from privirec.errors import ArtifactError, DataError, UsageError
from privirec.models.artifact import read_manifest
from privirec.privacy.explain import explained
from privirec.privacy.policy import Policy
from privirec.privacy.worth import at_least
from privirec.runtime.enrolment.folders import ClientFolder
from privirec.secagg import ServerModel

FEW, MANY = 10, 50
"""Numbers of recommendations shown at first, and on request."""
NAMED = 3
"""Number of history items that each recommendation names."""
AT_ONCE = 100
"""Number of history items per page."""
MOST_FOUND = 30
MEGABYTE = 1_000_000

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
_NUMBERS = {
    "most_epsilon": "Most epsilon for as long as this device takes part",
    "most_epsilon_per_year": "Most epsilon within any 365 days",
}
_LIMITS = {
    "smallest_cohort": "Fewest clients in a sum",
    "fewest_other_people": "Fewest other people in an exact sum",
    "days_between_changes": "Days for which exact runs use one history",
    "most_bytes_up": "Most megabytes that a run sends",
    "most_bytes_down": "Most megabytes that a run receives",
}


class PersonSite(FramedSite):
    links = (
        ("", "For you"),
        ("history", "My history"),
        ("search", "Search"),
        ("left", "What left"),
        ("policy", "My policy"),
    )
    footer = (
        "This page is served by your own device, to this device only. Viewing it, searching and "
        "recommending send nothing to other machines."
    )

    def __init__(self, device: OwnDevice) -> None:
        super().__init__("person.html", f"on {(device.client or device.store_file).name}")
        self._device = device
        self.pages |= {
            "": self._for_you,
            "history": self._history,
            "search": self._search,
            "item": self._item,
            "left": self._left,
            "policy": self._policy,
            "forget": self._confirm_forgetting,
            "export.csv": self._export,
        }
        self.changes |= {"add": self._add, "forget": self._forget, "policy": self._save_policy}

    # --- viewing ----------------------------------------------------------------------------------

    def _for_you(self, request: PageRequest) -> Response:
        n = MANY if request.asked("n") == str(MANY) else FEW
        found: list[Recommendation] = []
        empty = ""
        with self._device.store() as store:
            user = only_user(store, self._device.user)
            if not store.items(user):
                empty = "Your history is empty. Search for something that you know, and add it."
            elif not self._device.has_model:
                empty = (
                    "No model is on this device yet. It comes with the first run that this device "
                    "takes part in; a saved one can be named with --artifact."
                )
            else:
                try:
                    found = self._device.recommending(store).recommend(user, n, explain=True)
                except (ArtifactError, DataError) as error:
                    return self.page(request, "For you", failure=str(error))
        more = self.fill("more", n=MANY) if len(found) == FEW else None
        cards = [self._card(request, each) for each in found]
        told = self.sentences([empty] if empty else [])
        content = self.fill("for_you", empty=told, cards=cards, more=more) if found else told
        return self.page(request, "For you", content)

    def _history(self, request: PageRequest) -> Response:
        with self._device.store() as store:
            user = only_user(store, self._device.user)
            items = store.items(user)
            first = _whole(request.asked("from", "0"), 0, max(len(items) - 1, 0))
            shown = items[first : first + AT_ONCE]
            rows = [self._line(request, item, store.title(item), have=True) for item in shown]
            used = used_by_runs(store.summary()) if items else []
        turn = [
            self.fill("page_link", first=at, name=name)
            for at, name, there in (
                (max(first - AT_ONCE, 0), "Earlier items", first > 0),
                (first + AT_ONCE, "Further items", first + AT_ONCE < len(items)),
            )
            if there
        ]
        return self.page(
            request,
            "My history",
            self.sentences([f"{_items(len(items))}, on this device only."]),
            self.fill("items", rows=rows) if rows else None,
            self.fill("pages", links=turn) if turn else None,
            self.sentences(used),
            self.fill("history_end") if items else None,
        )

    def _search(self, request: PageRequest) -> Response:
        text = clean_title(request.asked("text"))[:200]
        with self._device.store() as store:
            found = find_items(store, self._device.items(store), text, MOST_FOUND)
            mine = set(store.items(only_user(store, self._device.user)))
        rows = [self._line(request, each.item, each.title, each.item in mine) for each in found]
        told: list[object] = []
        if found:
            many = f"The first {MOST_FOUND}" if len(found) == MOST_FOUND else _items(len(found))
            told = [self.sentences([f"{many}:"]), self.fill("items", rows=rows)]
        elif text and text in mine:
            told = [self.fill("items", rows=[self._line(request, text, None, have=True)])]
        elif text:
            button = self._button("give", request, text, text)
            told = [self.fill("add_unknown", button=button)]
        return self.page(request, "Search", self.fill("searching", text=text), *told)

    def _item(self, request: PageRequest) -> Response:
        item = request.asked("id")
        with self._device.store() as store:
            title = store.title(item)
            mine = set(store.items(only_user(store, self._device.user)))
            found: list[Recommendation] = []
            failure = ""
            try:
                found = self._device.recommending(store).similar(item)
            except (ArtifactError, DataError) as error:
                failure = str(error)
        rows = [self._line(request, each.item, each.title, each.item in mine) for each in found]
        own = self._line(request, item, title, item in mine)
        similar = self.fill(
            "section", id="similar", heading="Similar items", content=self.fill("items", rows=rows)
        )
        return self.page(
            request,
            title or item or "No item",
            self.fill("items", rows=[own]),
            similar if found else None,
            failure=failure,
        )

    def _left(self, request: PageRequest) -> Response:
        parts: list[object] = []
        if self._device.client is None:
            parts = [
                self.sentences(
                    [
                        "This device is in no federation: nothing of the history leaves it. For a "
                        "page with budget and policy, name a client's folder: privirec device page "
                        "CLIENT."
                    ]
                )
            ]
        else:
            parts = self._account(self._device.client)
        if self._device.has_model:
            said = explained(read_manifest(self._device.artifact)[1])
            parts.append(
                self.fill(
                    "section",
                    id="model",
                    heading="What the model on this device was made from",
                    content=self.points(clean_title(each) for each in said),
                )
            )
        return self.page(request, "What left this device", *parts)

    def _account(self, client: Path) -> list[object]:
        """Return the server, the runs and the budget of a client."""
        found = statement_of(client)
        home = ClientFolder(client)
        if home.has_joined:
            settings = home.settings
            server = (
                f"Server: {settings.server or 'not named yet'}, of the operator with key "
                f"{settings.operator[:16]}."
            )
        else:
            server = "This device has not joined a federation yet."
        runs = (
            self.table("Every run, what was computed, and for whom", _RUNS, found.rows[::-1])
            if found.rows
            else self.sentences(["No run has taken place yet, and nothing has left."])
        )
        why = [f"Run {row['run']}: {row['why']}." for row in found.rows if row["state"] == "left"]
        budget = [
            [self.fill("failure", sentences=self.sentences([each])) for each in found.warnings],
            self._meters(found),
            self.sentences(found.sentences("your")),
            self.sentences(
                [
                    f"Exact sums have opened {found.opened:.3f} of the item-item matrix; the "
                    f"policy allows {found.policy.largest_opened_share:g}."
                ]
                if found.exact
                else []
            ),
        ]
        spoilt = [
            f"Run {run[:8]} is spoilt: the server claimed {claim}, which cannot be. Its model was "
            "not installed. The server does not know; talk to the operator, or leave."
            for run, claim in found.spoilt.items()
        ]
        return [
            self.sentences([server]),
            [self.fill("failure", sentences=self.sentences([each])) for each in spoilt],
            self.fill("section", id="runs", heading="Runs", content=[runs, self.sentences(why)]),
            self.fill("section", id="budget", heading="My budget", content=budget),
        ]

    def _meters(self, found: BudgetStatement) -> list[Html]:
        meters = []
        for setting, what in (
            ("most_epsilon", "Since this device joined"),
            ("most_epsilon_per_year", "Within 365 days"),
        ):
            one = found.totals[setting]
            spent = one["spent"] if isinstance(one["spent"], float) else one["most"]
            meters.append(
                self.fill(
                    "meter",
                    id=setting,
                    label=f"{what}: epsilon {at_least(spent)} of {one['most']:g}",
                    spent=at_least(min(spent, one["most"])),
                    most=f"{one['most']:g}",
                )
            )
        return meters

    def _export(self, request: PageRequest) -> Response:
        with self._device.store() as store:
            _, lines = store.exported(Path("my-history.csv"))
            text = "".join(f"{line}\n" for line in lines)
        headers = {"Content-Disposition": 'attachment; filename="my-history.csv"'}
        return Response(text.encode(), "text/csv", headers=headers)

    # --- history ----------------------------------------------------------------------------------

    def _add(self, request: PageRequest) -> Response:
        item = request.given("item")
        with self._device.store() as store:
            new = store.add([(only_user(store, self._device.user), item)])
            name = store.title(item) or item
        request.session.notice = (
            f"Added to your history: {name}." if new else f"Your history has it already: {name}."
        )
        return self._back(request)

    def _forget(self, request: PageRequest) -> Response:
        with self._device.store() as store:
            user = only_user(store, self._device.user)
            if item := request.given("item"):
                said = forgetting(store, [item], user)
            elif request.given("confirm") != "yes":
                raise UsageError("nothing was forgotten: tick “Yes, forget it” first")
            elif request.given("what") not in ("history", "everything"):
                raise UsageError("nothing was forgotten: say what to forget")
            else:
                everything = request.given("what") == "everything"
                said = forgetting(store, (), None if everything else user, everything=everything)
        request.session.notice = "\n".join(said)
        return self._back(request)

    def _confirm_forgetting(self, request: PageRequest) -> Response:
        with self._device.store() as store:
            count = len(store.items(only_user(store, self._device.user)))
            used = used_by_runs(store.summary())
        return self.page(
            request,
            "Forget my history?",
            self.fill(
                "forget",
                csrf=request.session.csrf,
                count=counted(count),
                used=self.sentences(used),
                file=self._device.store_file.name,
            ),
        )

    # --- the policy -------------------------------------------------------------------------------

    def _policy(self, request: PageRequest) -> Response:
        client = self._device.client
        if client is None:
            return self.page(
                request,
                "My policy",
                self.sentences(
                    ["This device is in no federation, so there is nothing to agree to."]
                ),
            )
        policy = Policy.load(client / own_policy.FILE)
        content = self.fill(
            "policy",
            words=self.points(own_policy.in_words(policy)),
            csrf=request.session.csrf,
            takes_part=_ticked(policy.takes_part),
            active=_ticked(policy.server == ServerModel.ACTIVE),
            budget=self._number_fields(policy, _NUMBERS),
            exact_open=Html(" open" if policy.computations else ""),
            exact_count=f"{len(policy.computations) or 'None'} of {len(own_policy.exact_sums())} "
            "agreed to: show all",
            exact=self._switches("computations", own_policy.exact_sums(), policy.computations),
            ways=self._switches("aggregators", own_policy.ways_to_sum(), policy.aggregators),
            limits=self._number_fields(policy, _LIMITS),
        )
        return self.page(request, "My policy", content)

    def _save_policy(self, request: PageRequest) -> Response:
        if self._device.client is None:
            raise UsageError("this device has no policy: it is in no federation")
        changes: dict[str, Any] = {
            "takes_part": "takes_part" in request.form,
            "server": ServerModel.ACTIVE if "active" in request.form else ServerModel.SEMI_HONEST,
            "computations": tuple(request.form.get("computations", ())),
            "aggregators": tuple(request.form.get("aggregators", ())),
        }
        for name, label in (_NUMBERS | _LIMITS).items():
            changes[name] = _number(request.given(name), label, name)
        lines = own_policy.change(self._device.client, changes)
        request.session.notice = (
            "\n".join(["Saved; it applies from the next message of a server on.", *lines])
            if lines
            else "Nothing was changed."
        )
        return see("policy")

    def _number_fields(self, policy: Policy, names: dict[str, str]) -> list[Html]:
        return [
            self.fill(
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
            self.fill(
                "named_switch",
                list=name,
                name=choice.name,
                meaning=choice.meaning,
                checked=_ticked(choice.name in chosen),
            )
            for choice in choices
        ]

    # --- parts of pages ---------------------------------------------------------------------------

    def _card(self, request: PageRequest, each: Recommendation) -> Html:
        causes = [
            self.fill("cause", name=cause.title or cause.item, share=f"({share:.0%})")
            for cause, share in each.strongest(NAMED)
        ]
        name = each.title or each.item
        return self.fill(
            "card",
            query=urlencode({"id": each.item}),
            name=name,
            id=each.item if each.title else None,
            because=self.fill("because", causes=causes) if causes else None,
            buttons=[
                self._button("give", request, each.item, name),
                self.fill("similar_link", query=urlencode({"id": each.item}), name=name),
            ],
        )

    def _line(self, request: PageRequest, item: str, title: str | None, have: bool) -> Html:
        return self.fill(
            "item",
            query=urlencode({"id": item}),
            name=title or item,
            id=item if title else None,
            buttons=self._button("take" if have else "give", request, item, title or item, "plain"),
        )

    def _button(
        self, kind: str, request: PageRequest, item: str, name: str, style: str = "main"
    ) -> Html:
        query = urlencode({key: values[0] for key, values in request.query.items()})
        back = f"{request.path}?{query}" if query else request.path
        return self.fill(
            kind, csrf=request.session.csrf, item=item, name=name, back=back, style=style
        )

    def _back(self, request: PageRequest) -> Response:
        """Redirect to the previous page if it is one of ours."""
        try:
            where = urlsplit(request.given("back", "history"))
        except ValueError:  # unbalanced brackets
            return see("history")
        if where.scheme or where.netloc or where.path not in self.pages:
            return see("history")
        query = urlencode(parse_qsl(where.query))
        return see(where.path + (f"?{query}" if query else ""))


def _ticked(on: bool) -> Html:
    return Html(" checked" if on else "")


def _items(count: int) -> str:
    return f"{count:,} item{'' if count == 1 else 's'}"


def _whole(text: str, low: int, high: int) -> int:
    """Return a whole number within bounds; `low` for any other text."""
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return low
    return max(low, min(int(text), high))


def _is_bytes(name: str) -> bool:
    return "bytes" in name


def _number(text: str, label: str, name: str) -> float | int:
    try:
        value = float(text) * (MEGABYTE if _is_bytes(name) else 1)
        return int(value) if value == int(value) else value
    except (ValueError, OverflowError):
        raise UsageError(f"{label}: {text[:40]!r} is not a number") from None
