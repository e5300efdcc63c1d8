"""Validation of columns of ids, times, ratings and weights.

Missing, negative and mixed values raise DataError.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privirec.data.dates import read_dates
from privirec.errors import DataError

MISSING_WORDS = ("nan", "NaN", "NAN", "None", "none", "null", "NULL", "NA", "<NA>", "N/A", "#N/A")
"""Words that programs write for a missing value. As names they would merge into one busy user."""
LARGEST = 2**63 - 1
"""Largest id that is a number."""
_OFFSET = re.compile(r"([+-])(\d\d):?(\d\d)$")
"""Time zone at the end of a time."""
AT_ONCE = 1 << 12
"""Number of ids that are converted to text or objects at a time."""


def clean_ids(values: ArrayLike, where: str) -> NDArray:
    """Return ids as int64 from 0, or as names. `where` names the column in messages.

    Numbers with a zero fraction count as whole: pandas makes them from an integer column with gaps.
    """
    array = np.asarray(values)
    if array.ndim != 1:
        raise DataError(f"{where}: ids stand in one column, not in an array of shape {array.shape}")
    if array.dtype.kind == "O":
        array = _of_objects(array, where)
    if array.dtype.kind == "f":
        _refuse_where(np.isnan(array), where, "is empty (NaN)")
        _refuse_where(array != np.floor(array), where, "is not a whole number")
        _refuse_where(np.abs(array) >= 2.0**53, where, "is too large for an exact number")
        array = array.astype(np.int64)
    if array.dtype.kind == "u":
        _refuse_where(array > np.uint64(LARGEST), where, "an id above 2^63 - 1: make all ids text")
    if array.dtype.kind in "iu":
        if len(array) and array.min() < 0:
            at = int(np.argmax(array < 0))
            raise DataError(f"{where}, row {at + 1}: negative id {array[at]}")
        return array.astype(np.int64, copy=False)
    if array.dtype.kind not in "U":
        raise DataError(f"{where}: ids are whole numbers or names, not {array.dtype}")
    check_names(array, where)
    return array


def in_lines(ids: NDArray) -> Iterator[str]:
    """Yield the ids as text, one per line, in blocks: as objects they take ten times the memory."""
    for first in range(0, len(ids), AT_ONCE):
        some = map(str, ids[first : first + AT_ONCE].tolist())
        yield "\n" * (first > 0) + "\n".join(some)


def check_names(names: NDArray, where: str) -> None:
    """Raise DataError for names that mark a missing id."""
    if not len(names):
        return
    short = np.flatnonzero(np.char.str_len(names) <= max(map(len, MISSING_WORDS)))
    bad = np.isin(names[short], ("", "-1", *MISSING_WORDS))
    if bad.any():
        at = int(short[np.argmax(bad)])
        raise DataError(f"{where}, row {at + 1}: {str(names[at])!r} looks like a missing id")


def _of_objects(array: NDArray, where: str) -> NDArray:
    """Return names if all objects are text, numbers if all are numbers."""
    objects = array.tolist()
    kinds = set(map(type, objects))
    if kinds <= {str, np.str_}:
        return np.array(objects, str) if objects else np.zeros(0, np.int64)
    for at, value in enumerate(objects):
        # Detects None, NaN and pandas' NA: only NaN differs from itself.
        if value is None or type(value).__name__ in ("NAType", "NaTType") or value != value:  # noqa: PLR0124
            raise DataError(f"{where}, row {at + 1}: is empty ({value})")
    if kinds & {str, np.str_}:
        at = next(at for at, value in enumerate(objects) if not isinstance(value, str))
        raise DataError(f"{where}, row {at + 1}: {objects[at]!r} among names; make all ids text")
    if kinds <= {int, float, np.int64, np.int32, np.float64, np.float32}:
        huge = np.array([abs(value) > LARGEST for value in objects])
        _refuse_where(huge, where, "an id above 2^63 - 1: make all ids text")
        return np.array(objects)
    kind = min(kind.__name__ for kind in kinds)
    raise DataError(f"{where}: ids are whole numbers or names, not {kind}")


def _refuse_where(wrong: NDArray[np.bool_], where: str, what: str) -> None:
    if wrong.any():
        raise DataError(f"{where}, row {int(np.argmax(wrong)) + 1}: {what}")


def clean_times(values: ArrayLike, where: str) -> NDArray:
    """Return times as numbers; dates become seconds since 1970."""
    array = np.asarray(values)
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array):
        array = array.astype(str)
    if array.dtype.kind in "US":
        array = _times_of_text(array, where)
    if array.dtype.kind == "O":
        try:
            array = np.array([_without_zone(value) for value in array], "datetime64[us]")
        except (TypeError, ValueError, AttributeError):
            raise DataError(f"{where}: holds no times") from None
    if array.dtype.kind == "M":
        _refuse_where(np.isnat(array), where, "has no time")
        micro = array.astype("datetime64[us]").astype(np.int64)
        whole = not (micro % 1_000_000).any()
        return micro // 1_000_000 if whole else micro / 1e6
    if array.dtype.kind not in "iuf":
        raise DataError(f"{where}: holds no times, but {array.dtype}")
    if array.dtype.kind == "f":
        _refuse_where(~np.isfinite(array), where, "has no time")
        if not len(array) or (array == np.floor(array)).all():
            return array.astype(np.int64)
        return array.astype(np.float64)
    return array.astype(np.int64)


def _times_of_text(array: NDArray, where: str) -> NDArray:
    try:
        return array.astype(np.float64)
    except ValueError:
        pass
    text = np.char.rstrip(array, "Z")
    tails, which = np.unique([value[-6:] for value in text.tolist()], return_inverse=True)
    minutes = np.zeros(len(tails), np.int64)
    for number, tail in enumerate(tails.tolist()):
        zone = _OFFSET.search(tail)
        if zone is None or not any(":" in value for value in text[which == number][:1].tolist()):
            continue  # a date alone may end like a zone, as in 01-0230
        sign, hours, more = zone.groups()
        minutes[number] = int(f"{sign}1") * (60 * int(hours) + int(more))
        text[which == number] = [
            value[: -len(zone.group())] for value in text[which == number].tolist()
        ]
    try:
        return text.astype("datetime64[us]") - minutes[which].astype("timedelta64[m]")
    except ValueError:
        return _times_of_people(array.tolist(), where)


def _times_of_people(texts: list[str], where: str) -> NDArray[np.float64]:
    """Return dates in other forms than ISO 8601 as seconds since 1970."""
    found = read_dates(texts)
    wrong = [text for text, time in zip(texts, found.seconds, strict=True) if time is None]
    if wrong:
        raise DataError(f"{where}: holds no times (such as {wrong[0][:40]!r})")
    if found.is_ambiguous:
        raise DataError(
            f"{where}: {texts[0]!r} may start with a day or a month; write it as in ISO"
        )
    return np.array(found.seconds, np.float64)


def _without_zone(value: Any) -> Any:
    """Return a time in UTC; NumPy knows no time zones."""
    if getattr(value, "tzinfo", None) is None:
        return value
    return value.astimezone(UTC).replace(tzinfo=None)


def _numbers(values: ArrayLike, where: str, what: str) -> NDArray[np.float64]:
    """Return numbers; raise DataError with the row of the first value that is not a number."""
    array = np.asarray(values)
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError):
        pass
    for row, value in enumerate(array.tolist(), start=1):
        try:
            float(value)
        except (TypeError, ValueError):
            if not str(value).strip() or value is None or str(value) in MISSING_WORDS:
                raise DataError(f"{where}, row {row}: has no {what}") from None
            hint = "; write a decimal point" if "," in str(value) else ""
            raise DataError(f"{where}, row {row}: {value!r} is not a {what}{hint}") from None
    raise DataError(f"{where}: holds no numbers")


def clean_ratings(values: ArrayLike, where: str) -> NDArray[np.float64]:
    """Return ratings as numbers; raise DataError for a missing one."""
    ratings = _numbers(values, where, "rating")
    _refuse_where(np.isnan(ratings), where, "has no rating")
    return ratings


def clean_weights(values: ArrayLike, where: str) -> NDArray[np.float64]:
    """Return weights as numbers above zero; raise DataError for any other.

    Rows that should not count have to be left out; a weight of 0 is refused.
    """
    weights = _numbers(values, where, "weight")
    wrong = ~(np.isfinite(weights) & (weights > 0))
    if wrong.any():
        at = int(np.argmax(wrong))
        raise DataError(f"{where}, row {at + 1}: a weight is a number above 0, not {weights[at]:g}")
    return weights


def places_of(ids: NDArray, known: NDArray) -> NDArray[np.int64]:
    """Return the position of each id among the known ones, or -1. 7 and "7" are different ids."""
    texts = {ids.dtype.kind == "U", known.dtype.kind == "U"}
    if not len(ids) or not len(known) or len(texts) > 1 or ids.dtype.kind not in "iuU":
        return np.full(len(ids), -1, np.int64)
    order = np.argsort(known, kind="stable")
    place = order[np.minimum(np.searchsorted(known, ids, sorter=order), len(known) - 1)]
    return np.where(known[place] == ids, place, -1).astype(np.int64)
