"""A federation in one process, with everything on disk that a page reads.

It has real keys, a real run with noise and secure aggregation, an installed model and titles.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from network.memory import MemoryCarrier
from privirec.data import Interactions
from privirec.data.catalogue import Catalogue, write_catalogue
from privirec.device import Store
from privirec.runtime.enrolment.folders import ClientFolder, OperatorFolder
from privirec.runtime.runs import RunFolder
from privirec.runtime.spec import RunSpec

PLACES = ("Lyon", "Oslo", "Porto", "Turku")
_FIRST = (
    "Quiet",
    "Northern",
    "Last",
    "Paper",
    "Winter",
    "Golden",
    "Hidden",
    "Salt",
    "Open",
    "Late",
)
_SECOND = ("Harbour", "Garden", "Letters", "Orchard", "River", "Signal", "Lantern", "Bridge")
_THIRD = ("", " of Glass", " at Noon", " in June", " and Rain", ", Again", " Road", " for Two")


def title(number: int) -> str:
    """Return a made-up title of an item; all titles differ."""
    first, rest = number % len(_FIRST), number // len(_FIRST)
    second, rest = rest % len(_SECOND), rest // len(_SECOND)
    name = f"{_FIRST[first]} {_SECOND[second]}{_THIRD[rest % len(_THIRD)]}"
    part = rest // len(_THIRD)
    return f"{name} {part + 1}" if part else name


@dataclass
class SmallFederation:
    """Federation of one person with a device, and a few shops."""

    folder: Path
    server: OperatorFolder
    person: ClientFolder
    shops: list[ClientFolder]

    @classmethod
    def make(cls, folder: Path, train: Interactions, person: int = 0) -> SmallFederation:
        """Put one user's history on the person's device, and all others in shops."""
        server = OperatorFolder.create(folder / "server")
        home = ClientFolder.create(folder / "me")
        shops = [ClientFolder.create(folder / place.lower()) for place in PLACES]
        members = server.members.approve(home.card("Ada's telephone"))
        for place, shop in zip(PLACES, shops, strict=True):
            members = members.approve(shop.card(f"Shop in {place}"))
        server.save(members)
        made = cls(folder, server, home, shops)
        write_catalogue(server.folder / "catalogue.txt", Catalogue(train.item_ids))
        for client in (home, *shops):
            roster = server.folder / "roster.json"
            client.join(client.offered(roster, operator=server.operator), server="fed.example:9443")
            write_catalogue(client.folder / "catalogue.txt", Catalogue(train.item_ids))
        others = np.setdiff1d(np.arange(train.n_users), [person])
        made._fill(home, train, [person], "me")
        for at, shop in enumerate(shops):
            made._fill(shop, train, others[at :: len(shops)].tolist())
        with Store(home.folder / "history.db") as store:
            store.set_titles({str(item): title(at) for at, item in enumerate(train.item_ids)})
        return made

    @staticmethod
    def _fill(
        client: ClientFolder, train: Interactions, users: Iterable[int], name: str = ""
    ) -> None:
        items = [str(item) for item in train.item_ids.tolist()]
        with Store(client.folder / "history.db", create=True) as store:
            store.add(
                (name or f"user-{user}", items[column])
                for user in users
                for column in train.matrix[[user]].indices.tolist()
            )

    def run(self, name: str, *, model: str = "denoised", **federated: object) -> None:
        """Run over all clients to the end."""
        n_items = len(self.server.catalogue)
        clients = {home.settings.client: home for home in (self.person, *self.shops)}
        chosen = RunSpec.of("protected", model=model, **federated)
        spec = chosen.resolved("", n_items, len(clients))
        run = RunFolder(self.server, name)
        run.prepare(spec)
        with ExitStack() as stack:
            nodes = {
                number: stack.enter_context(closing(home.node()))
                for number, home in clients.items()
            }
            answers = {number: node.answer for number, node in nodes.items()}
            run.serve(lambda _: MemoryCarrier(answers))
