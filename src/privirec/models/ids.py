"""Users and items by their external ids."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privirec.data.ids import places_of
from privirec.errors import UsageError


def rows_of(users: ArrayLike, known: NDArray) -> NDArray[np.int64]:
    """Return the positions of users by their ids."""
    return look_up(users, known, "user", f"among {len(known)} users")


def look_up(wanted: ArrayLike, known: NDArray, kind: str, where: str) -> NDArray[np.int64]:
    """Return the positions of ids among the known ones; raise UsageError for an unknown id."""
    ids = as_ids(wanted)
    place = places_of(ids, known)
    if (place < 0).any():
        missing = ids[np.argmax(place < 0)]
        raise UsageError(f"{kind} {missing} is not {where}")
    return place


def as_ids(wanted: ArrayLike) -> NDArray:
    """Return one id or several as an array; whole numbers may be floats."""
    ids = np.asarray(wanted).reshape(-1)
    if ids.dtype.kind == "O":
        ids = np.array(ids.tolist())
    if ids.dtype.kind == "f" and len(ids) and (ids == np.floor(ids)).all():
        ids = ids.astype(np.int64)
    return ids


def named(ids: NDArray, places: NDArray[np.int64]) -> NDArray:
    """Return the ids at these positions; -1, or an empty name, for a negative position."""
    if not len(ids):
        return np.full(places.shape, -1)
    nothing = "" if ids.dtype.kind == "U" else -1
    return np.where(places >= 0, ids[places], nothing)
