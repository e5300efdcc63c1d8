"""Earlier models, to whose released sums a run of `protected` adds.

A run says in its settings which sums it adds to, by their hash (`ProtectedSettings.after`), so the
signed plan says so too. The manifest of its model lists all earlier runs with their losses.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from numpy.typing import NDArray

from privirec.errors import ArtifactError, UsageError
from privirec.filters.components import Components
from privirec.filters.earlier import Earlier, places_of
from privirec.models import artifact
from privirec.runtime.enrolment.folders import OperatorFolder

NONE = "none"
"""In place of the name of an earlier run: begin anew."""
_KEPT = ("what", "entries", "noise", "loss", "delta")
"""Entries of a ledger that say what a sum has cost."""


@dataclass(frozen=True)
class EarlierModel:
    """A saved model with the noisy sums that it and earlier runs released."""

    folder: Path
    sums: Earlier
    item_ids: NDArray
    digest: str
    """SHA-256 of the sums."""
    runs: list[dict[str, Any]]
    """This run and those before it, with the ledger of each, the earliest first."""

    @classmethod
    def read(cls, folder: Path, trusted_key: Ed25519PublicKey | None = None) -> EarlierModel:
        saved = artifact.read(folder, trusted_key)
        manifest = saved.manifest
        sums = artifact.read_released(folder, manifest)
        if sums.n_items != len(saved.item_ids):
            raise ArtifactError(f"{folder}: released sums of another catalogue")
        digest = str(manifest["released"])
        ledger = manifest.get("ledger")
        rows = ledger if isinstance(ledger, list) else []
        costs = [
            {name: row[name] for name in _KEPT if name in row}
            for row in rows
            if isinstance(row, Mapping) and row.get("entries")
        ]
        before = manifest.get("earlier")
        runs = [*(before if isinstance(before, list) else []), {"released": digest, "sums": costs}]
        return cls(folder, sums, saved.item_ids, digest, runs)

    def over(self, item_ids: NDArray) -> Earlier:
        """Return the sums over another catalogue; refuse one that shares no item."""
        ours = np.asarray(self.item_ids)
        if ours.dtype.kind != item_ids.dtype.kind or not np.isin(item_ids, ours).any():
            raise UsageError(f"{self.folder}: a model of other items; none is in this catalogue")
        order = np.argsort(ours, kind="stable")
        found = places_of(item_ids, ours[order])
        return self.sums.over(np.where(found >= 0, order[found], found))


def with_earlier(components: Components, after: Path | None) -> Components:
    """Return components whose origin names the earlier runs that they rest on."""
    if after is None or components.released is None:
        return components
    origin = {**(components.origin or {}), "earlier": EarlierModel.read(after).runs}
    return replace(components, origin=origin)


# --- the runs of a federation ---------------------------------------------------------------------


def last_run(home: OperatorFolder) -> str | None:
    """Return the name of the last run whose model keeps released sums, if there is one."""
    runs = home.folder / "runs"
    found = sorted(runs.glob(f"*/model/{artifact.RELEASED}")) if runs.is_dir() else []
    models = [path.parent for path in found if (path.parent / artifact.MANIFEST).exists()]
    models.sort(key=lambda model: (model / artifact.MANIFEST).stat().st_mtime_ns)
    return models[-1].parent.name if models else None


def run_to_go_on_from(home: OperatorFolder, wanted: str | None) -> EarlierModel | None:
    """Return the model that a new run adds to: that of the last run, unless `wanted` says none.

    An earlier one than the last is refused, because sums released since then would be thrown away.
    """
    last = last_run(home)
    if wanted == NONE or (wanted is None and last is None):
        return None
    if wanted is not None and not home.run(wanted).is_dir():
        raise UsageError(f"{home.run(wanted)}: no such run")
    if wanted not in (None, last):
        known = f"the last one is {last}" if last else "no run has any"
        raise UsageError(
            f"{wanted} is not the last run with released sums: {known}; --after {NONE} begins anew"
        )
    return _model_of(home, str(last))


def released_by(home: OperatorFolder, digest: str) -> EarlierModel:
    """Return the model of this federation whose released sums have this hash."""
    runs = home.folder / "runs"
    for manifest in sorted(runs.glob(f"*/model/{artifact.MANIFEST}")):
        if artifact.read_manifest(manifest.parent)[1].get("released") == digest:
            return _model_of(home, manifest.parent.parent.name)
    where = shlex.quote(str(runs))
    raise UsageError(f"{where}: no model has the released sums {digest[:16]} that this run adds to")


def _model_of(home: OperatorFolder, name: str) -> EarlierModel:
    return EarlierModel.read(home.run(name) / "model", home.signing_key.public_key())
