"""Fixtures: a client's folder with a history, titles and a model, not yet in a federation."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from privirec.app.own_device import OwnDevice
from privirec.app.pages.person import PersonSite
from privirec.data import Dataset
from privirec.data.catalogue import Catalogue, write_catalogue
from privirec.device import Installed, Store
from privirec.models import GFCF
from privirec.runtime.enrolment.folders import ClientFolder, OperatorFolder

from .small_federation import SmallFederation, title
from .visitor import Visitor, serving

ME = ("3", "5", "9", "21")
"""Items in the history."""


@pytest.fixture(scope="session")
def model(small: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "artifact"
    return GFCF(rank=8).fit(small.train).save(folder)


@pytest.fixture
def client(tmp_path: Path, small: Dataset, model: Path) -> Path:
    home = ClientFolder.create(tmp_path / "me")
    Installed(home.folder / "model").install(model)
    with Store(home.folder / "history.db", create=True) as store:
        store.add(("me", item) for item in ME)
        store.set_titles({str(at): title(at) for at in range(small.train.n_items)})
    return home.folder


@pytest.fixture
def visitor(client: Path) -> Iterator[Visitor]:
    with serving(PersonSite(OwnDevice.at(client))) as server:
        yield Visitor(server).enter()


@pytest.fixture(scope="session")
def federation(small: Dataset, tmp_path_factory: pytest.TempPathFactory) -> SmallFederation:
    """Return a federation after one run with noise."""
    made = SmallFederation.make(tmp_path_factory.mktemp("federation"), small.train, person=3)
    made.run("monday", epsilon=4.0)
    return made


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> OperatorFolder:
    """Return a server with three clients, one of them revoked, before its first run."""
    folder = tmp_path_factory.mktemp("operator")
    home = OperatorFolder.create(folder / "server")
    members = home.members
    for name in ("Oslo", "<b>Lyon</b>", "Gone"):
        members = members.approve(ClientFolder.create(folder / name[:4]).card(name))
    home.save(members.revoke(2))
    write_catalogue(home.folder / "catalogue.txt", Catalogue(["a", "b", "c"]))
    return home


@pytest.fixture
def home(prepared: OperatorFolder, tmp_path: Path) -> OperatorFolder:
    """Return a fresh copy of the folder."""
    subprocess.run(["cp", "-a", str(prepared.folder), str(tmp_path / "server")], check=True)
    return OperatorFolder(tmp_path / "server")
