"""The folders of a whole federation on one machine, for any carrier."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import numpy as np

from privirec.data.catalogue import Catalogue, write_catalogue
from privirec.data.interactions import Interactions
from privirec.data.text import fits_text, text_lines
from privirec.durable import write_whole
from privirec.errors import UsageError
from privirec.privacy.policy import Policy
from privirec.runtime.enrolment.certificates import make_certificates
from privirec.runtime.enrolment.folders import ClientFolder, OperatorFolder

CLIENT_THREADS = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)
"""Environment variables for clients that share a machine: one thread per client."""


def make_federation(
    folder: Path, train: Interactions, n_clients: int, policy: Policy
) -> tuple[OperatorFolder, list[Path]]:
    """Create keys, certificates, the roster, and the folders of the operator and all clients.

    Each client gets a consecutive range of users. Returns the operator's folder and the list of
    the clients' folders.
    """
    if not 1 <= n_clients <= train.n_users:
        raise UsageError(f"{n_clients} clients for {train.n_users} users")
    home = OperatorFolder.create(folder / "server")
    make_certificates(home.folder / "tls")
    write_catalogue(home.folder / "catalogue.txt", Catalogue(train.item_ids))
    edges = np.linspace(0, train.n_users, n_clients + 1).astype(int).tolist()
    members = home.members
    clients = []
    for number, (start, stop) in enumerate(itertools.pairwise(edges)):
        client = ClientFolder.create(folder / f"client-{number}")
        _write_histories(client.folder / "history.txt", train.rows(start, stop))
        write_whole(client.folder / "policy.toml", policy.as_toml().encode())
        shutil.copyfile(home.folder / "catalogue.txt", client.folder / "catalogue.txt")
        shutil.copyfile(home.folder / "tls/ca.crt", client.folder / "ca.crt")
        members = members.approve(client.card(f"client-{number}"))
        clients.append(client.folder)
    home.save(members)
    for path in clients:
        client = ClientFolder(path)
        client.join(client.offered(home.folder / "roster.json"))
        client.write(client.settings.model_copy(update={"histories": "history.txt"}))
    return home, clients


def _write_histories(path: Path, part: Interactions) -> None:
    if fits_text(part.user_ids) and fits_text(part.item_ids):
        write_whole(path, "".join(f"{line}\n" for line in text_lines(part)).encode())
        return
    raise UsageError("a local federation needs users and items that are whole numbers")
