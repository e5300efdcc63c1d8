"""The user's page: recommendations, their history, what left the device, and their policy.

All changes call the same functions as `privirec device` and `privirec client policy`. The page
makes no network requests, and no script runs in the browser.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qsl, urlencode, urlsplit

from privirec.app.history import counted, forgetting, only_user, used_by_runs
from privirec.app.importing import EXPORTS, ImportOptions, import_file
from privirec.app.own_device import OwnDevice
from privirec.app.pages.covers import cover
from privirec.app.pages.frame import FramedSite, Html
from privirec.app.pages.person_left import WhatLeft
from privirec.app.pages.person_policy import OwnRules
from privirec.app.pages.web import PageRequest, Response, see
from privirec.data.columns import TableOptions
from privirec.data.dates import in_words as day_of
from privirec.device import Recommendation, Store, find_items
from privirec.device.shelves import Kind, Shelf, shelves
from privirec.device.titles import clean_title
from privirec.errors import ArtifactError, DataError, UsageError

MANY = 50
"""Number of recommendations shown at once, on request."""
NAMED = 2
"""Number of history items that each recommendation names."""
REASONS = 5
"""Number of reasons on the page of an item."""
AT_ONCE = 100
"""Number of history items per page."""
MOST_FOUND = 30

_UPLOADED = ".import-"

_HEADINGS = {
    Kind.BEST: ("Best for you", ""),
    Kind.NEW: ("New to you", "unlike any single thing in your history"),
    Kind.GEMS: ("Hidden gems", "few people have these"),
}


class PersonSite(FramedSite):
    links = (
        ("", "For you"),
        ("history", "My history"),
        ("search", "Search"),
        ("left", "What left"),
        ("policy", "My rules"),
    )
    icons: ClassVar[Mapping[str, str]] = {
        "": "icon_for_you",
        "history": "icon_history",
        "search": "icon_search",
        "left": "icon_left",
        "policy": "icon_policy",
    }
    kind = "person"
    uploads = frozenset({"import"})
    footer = (
        "This page is served by your own device, to this device only. Viewing it, searching and "
        "recommending send nothing to other machines."
    )

    def __init__(self, device: OwnDevice) -> None:
        super().__init__("person.html", "on this device")
        self._device = device
        left, rules = WhatLeft(self, device), OwnRules(self, device)
        self.pages |= {
            "": self._for_you,
            "history": self._history,
            "search": self._search,
            "item": self._item,
            "left": left.page,
            "policy": rules.page,
            "forget": self._confirm_forgetting,
            "export.csv": self._export,
        }
        self.changes |= {
            "add": self._add,
            "import": self._import,
            "forget": self._forget,
            "dislike": self._dislike,
            "like-again": self._like_again,
            "undo": self._undo,
            "policy": rules.save,
        }

    def action(self, request: PageRequest) -> Html | None:
        if not request.session.undo:
            return None
        return self.fill("undo", csrf=request.session.csrf, back=_here(request))

    # --- viewing ----------------------------------------------------------------------------------

    def _for_you(self, request: PageRequest) -> Response:
        all_at_once = request.asked("n") == str(MANY)
        with self._device.store() as store:
            user = only_user(store, self._device.user)
            if not store.items(user):
                return self.page(request, "For you", self._without_history())
            if not self._device.has_model:
                return self.page(request, "For you", self._without_model(store))
            try:
                device = self._device.recommending(store)
                if all_at_once:
                    found = device.recommend(user, MANY, explain=True)
                    cards = [self._card(request, each) for each in found]
                    content = [self.fill("grid", cards=cards), self.fill("fewer")]
                    return self.page(request, "For you", content)
                groups = shelves(device, user)
            except (ArtifactError, DataError) as error:
                return self.page(request, "For you", failure=str(error))
        content = [self._shelf(request, each, at) for at, each in enumerate(groups)]
        return self.page(request, "For you", content, self.fill("more", n=MANY))

    def _without_history(self) -> Html:
        search = Html('<a class="button" href="search">Search</a>')
        export = Html('<a class="button plain" href="history">Add an export</a>')
        return self.fill(
            "empty",
            covers=[cover(name, name) for name in ("Your", "History", "Here")],
            heading="Your history is empty",
            text="Add a few things that you like, or the export of a service such as Netflix or "
            "Spotify. They stay on this device.",
            buttons=[search, export],
        )

    def _without_model(self, store: Store) -> Html:
        return self.fill(
            "empty",
            covers=[cover(each, store.title(each)) for each in store.items(self._user(store))[:3]],
            heading="No model is on this device yet",
            text="It comes with the first update that this device takes part in; a saved one can "
            "be named with --artifact.",
            buttons=None,
        )

    def _user(self, store: Store) -> str:
        return only_user(store, self._device.user)

    def _history(self, request: PageRequest) -> Response:
        with self._device.store() as store:
            user = self._user(store)
            items = store.latest(user)
            first = _whole(request.asked("from", "0"), 0, max(len(items) - 1, 0))
            rows = [
                self._line(request, item, store.title(item), have=True, when=when)
                for item, when in items[first : first + AT_ONCE]
            ]
            refused = [
                self._line(request, item, store.title(item), kind="like_again")
                for item in store.dislikes(user)
            ]
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
            self.fill(
                "section",
                id="refused",
                heading="Not for me",
                content=[
                    self.sentences(
                        ["This teaches only your device, and never leaves it, in no update."]
                    ),
                    self.fill("items", rows=refused),
                ],
            )
            if refused
            else None,
            self._unsure(request),
            self.fill("import", csrf=request.session.csrf),
            self.sentences(used),
            self.fill("history_end") if items else None,
        )

    def _unsure(self, request: PageRequest) -> Html | None:
        """Return the titles of the last import of which the person has to say what they are."""
        waiting = request.session.unsure[:AT_ONCE]
        if not waiting:
            return None
        with self._device.store() as store:
            mine = set(store.items(self._user(store)))
            groups = [
                [
                    self.sentences([f"“{name}” may be:"]),
                    self.fill(
                        "items",
                        rows=[
                            self._line(request, item, store.title(item), have=item in mine)
                            for item in items
                        ],
                    ),
                ]
                for name, items in waiting
            ]
        return self.fill("section", id="unsure", heading="Is it one of these?", content=groups)

    def _search(self, request: PageRequest) -> Response:
        text = clean_title(request.asked("text"))[:200]
        with self._device.store() as store:
            found = find_items(store, self._device.items(store), text, MOST_FOUND)
            mine = set(store.items(self._user(store)))
        rows = [
            self._line(request, each.item, each.title, have=each.item in mine) for each in found
        ]
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
        found: list[Recommendation] = []
        why: Recommendation | None = None
        failure = ""
        with self._device.store() as store:
            title, link = store.title(item), store.link(item)
            user = self._user(store)
            have, refused = item in store.items(user), item in store.dislikes(user)
            try:
                device = self._device.recommending(store)
                found = device.similar(item)
                why = None if have else device.why(item, user)
            except (ArtifactError, DataError) as error:
                failure = str(error)
        name = title or item
        own = self.fill(
            "product",
            name=name or "No item",
            cover=cover(item, title),
            id=item if title else None,
            link=self.fill("web_page", link=link, host=urlsplit(link).hostname) if link else None,
            buttons=[
                self._button("take" if have else "give", request, item, name),
                None
                if have
                else self._button(
                    "like_again" if refused else "dislike", request, item, name, "plain"
                ),
            ],
            why=self._reasons(why) if why else None,
        )
        cards = [self._card(request, each, why=False) for each in found]
        similar = self.fill("shelf", id="similar", heading="Similar", note=None, cards=cards)
        return self.page(
            request, name or "No item", own, similar if found else None, failure=failure
        )

    def _reasons(self, why: Recommendation) -> Html | None:
        reasons = [
            self.fill(
                "reason",
                name=cause.title or cause.item,
                share=f"{share:.0%}",
                bar=self.fill("bar", percent=f"{100 * share:.1f}"),
            )
            for cause, share in why.strongest(REASONS)
        ]
        return self.fill("reasons", reasons=reasons) if reasons else None

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
            new = store.add([(self._user(store), item)])
            name = store.title(item) or item
        session = request.session
        session.unsure = [each for each in session.unsure if item not in each[1]]
        if new:
            session.undo = {"do": "forget", "item": item}
        request.session.notice = (
            f"Added to your history: {name}." if new else f"Your history has it already: {name}."
        )
        return self._back(request)

    def _import(self, request: PageRequest) -> Response:
        """Import an uploaded file. It is on disk only while it is read."""
        name, content = request.files.get("file", ("", b""))
        suffix = Path(name.replace("\\", "/")).suffix.lower()
        if not content or suffix not in EXPORTS:
            raise UsageError(f"choose a file that ends in {', '.join(EXPORTS)}")
        device = self._device
        folder = device.store_file.parent
        for left in folder.glob(f"{_UPLOADED}*"):  # of a page that was killed while it read
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_UPLOADED, dir=folder) as work:
            source = Path(work) / f"export{suffix}"
            source.write_bytes(content)
            with device.store() as store:
                user = self._user(store)
            model = device.artifact if device.has_model else None
            try:
                found = import_file(
                    source, device.store_file, TableOptions(), ImportOptions(user, model)
                )
            except DataError as error:
                told = str(error).replace(f"{source}: ", "").replace(str(source), name)
                raise DataError(_for_page(told)) from None
        request.session.undo = {}
        request.session.unsure = found.unsure
        said = [each.replace(str(source), name) for each in found.sentences]
        request.session.notice = "\n".join(map(_for_page, said))
        return see("history")

    def _dislike(self, request: PageRequest) -> Response:
        item = request.given("item")
        with self._device.store() as store:
            store.dislike(self._user(store), item)
            name = store.title(item) or item
        request.session.undo = {"do": "like-again", "item": item}
        request.session.notice = (
            f"{name} is not shown any more, and things like it come later. This never leaves your "
            "device."
        )
        return self._back(request)

    def _like_again(self, request: PageRequest) -> Response:
        item = request.given("item")
        with self._device.store() as store:
            store.undo_dislike(self._user(store), item)
            name = store.title(item) or item
        request.session.notice = f"{name} may be recommended again."
        return self._back(request)

    def _undo(self, request: PageRequest) -> Response:
        """Undo the last change of this browser, once."""
        last, request.session.undo = request.session.undo, {}
        if not last:
            raise UsageError("there is nothing to undo")
        with self._device.store() as store:
            user, item = self._user(store), last["item"]
            said = [f"Undone: {store.title(item) or item}."]
            if last["do"] == "add":
                store.add_timed([(user, item, last["when"])])
            elif last["do"] == "forget":
                said += forgetting(store, [item], user)[1:]
            else:
                store.undo_dislike(user, item)
        request.session.notice = "\n".join(said)
        return self._back(request)

    def _forget(self, request: PageRequest) -> Response:
        with self._device.store() as store:
            user = self._user(store)
            request.session.undo = {}
            if item := request.given("item"):
                when = dict(store.latest(user)).get(item)
                said = forgetting(store, [item], user)
                request.session.undo = {"do": "add", "item": item, "when": when}
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
            count = len(store.items(self._user(store)))
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

    # --- parts of pages ---------------------------------------------------------------------------

    def _shelf(self, request: PageRequest, shelf: Shelf, number: int) -> Html:
        if shelf.cause is not None:
            heading, note = f"Because of {shelf.cause.title or shelf.cause.item}", ""
        else:
            heading, note = _HEADINGS[shelf.kind]
        says_why = shelf.kind in (Kind.BEST, Kind.GEMS)
        return self.fill(
            "shelf",
            id=f"shelf-{number}",
            heading=heading,
            note=note,
            cards=[self._card(request, each, why=says_why) for each in shelf.items],
        )

    def _card(self, request: PageRequest, each: Recommendation, *, why: bool = True) -> Html:
        causes = [
            self.fill("cause", name=cause.title or cause.item)
            for cause, _ in each.strongest(NAMED if why else 0)
        ]
        name = each.title or each.item
        return self.fill(
            "card",
            query=urlencode({"id": each.item}),
            cover=cover(each.item, each.title),
            name=name,
            because=self.fill("because", causes=causes) if causes else None,
            buttons=[
                self._button("give", request, each.item, name, "small"),
                self._button("dislike", request, each.item, name, "small plain"),
            ],
        )

    def _line(
        self,
        request: PageRequest,
        item: str,
        title: str | None,
        *,
        have: bool = False,
        kind: str = "",
        when: float | None = None,
    ) -> Html:
        about = [item] if title else []
        about += [day_of(when)] if when is not None else []
        kind = kind or ("take" if have else "give")
        return self.fill(
            "item",
            query=urlencode({"id": item}),
            cover=cover(item, title, "thumb"),
            name=title or item,
            id=" · ".join(about) or None,
            buttons=self._button(kind, request, item, title or item, "plain"),
        )

    def _button(
        self, kind: str, request: PageRequest, item: str, name: str, style: str = "main"
    ) -> Html:
        return self.fill(
            kind, csrf=request.session.csrf, item=item, name=name, back=_here(request), style=style
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


def _here(request: PageRequest) -> str:
    """Return the address of a page, to which a form leads back."""
    query = urlencode({key: values[0] for key, values in request.query.items()})
    return f"{request.path}?{query}" if query else request.path


def _items(count: int) -> str:
    return f"{count:,} item{'' if count == 1 else 's'}"


def _for_page(sentence: str) -> str:
    """Return a sentence of a command without its options, which a page does not have."""
    for words in (" (--unsure ask or take)", "; --unsure take accepts the best match, ask asks"):
        sentence = sentence.replace(words, "")
    return re.sub(
        r"[ ;:]*(?:name a file of titles with --titles.*|--keep-unknown .*)$", "", sentence
    )


def _whole(text: str, low: int, high: int) -> int:
    """Return a whole number within bounds; `low` for any other text."""
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return low
    return max(low, min(int(text), high))
