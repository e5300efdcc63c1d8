"""The plain text format of the standard splits: one user per line, `user item item ...`."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from privirec.data.interactions import Interactions
from privirec.errors import DataError, warn_of_data

LARGEST_ID = 2**31 - 1
_NEWLINE, _RETURN, _SPACE, _TAB, _ZERO = b"\n\r \t0"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class _TextLines:
    """Tokens of a file: one of `users` per line, and `items` with their `owners` (users)."""

    numbers: NDArray[np.int64]
    users: NDArray[np.int64]
    owners: NDArray[np.int64]
    items: NDArray[np.int64]


def read_text(path: str | Path) -> Interactions:
    """Read `user item item ...` lines; ids are whole numbers from 0 to 2^31 - 1.

    A user alone on a line has an empty history, repeated items count once, and a user may have
    several lines.
    """
    lines = _parse(Path(path))
    return Interactions.from_pairs(lines.owners, lines.items, user_ids=np.unique(lines.users))


def first_line_of(path: str | Path, users: NDArray) -> tuple[int, int]:
    """Return the number of the first line of one of `users`, and that user, for messages."""
    lines = _parse(Path(path))
    at = int(np.argmax(np.isin(lines.users, users)))
    return int(lines.numbers[at]), int(lines.users[at])


def write_text(path: str | Path, interactions: Interactions) -> None:
    """Write one line per user, items in ascending order; the file is replaced atomically.

    Raises DataError for ids that the format cannot hold (names, numbers above 2^31 - 1).
    """
    for kind, ids in (("user", interactions.user_ids), ("item", interactions.item_ids)):
        if not fits_text(ids):
            raise DataError(f"{path}: {kind} ids must be whole numbers from 0 to {LARGEST_ID}")
    write_lines(path, text_lines(interactions))


def write_csv(path: str | Path, interactions: Interactions) -> None:
    """Write a table of user, item and, if known, timestamp; the file is replaced atomically.

    Unlike the plain text format, it can hold names as ids, and times.
    """
    users = np.repeat(interactions.user_ids, interactions.user_degrees).tolist()
    items = interactions.item_ids[interactions.matrix.indices].tolist()
    columns = [users, items] + ([] if interactions.times is None else [interactions.times.tolist()])
    header = ["user", "item", "timestamp"][: len(columns)]
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([header, *zip(*columns, strict=True)])
    write_lines(path, buffer.getvalue().splitlines())


def text_lines(interactions: Interactions) -> Iterator[str]:
    """Yield one line per user: the canonical form of files and of their checksums."""
    item_names = interactions.item_ids.astype(str)[interactions.matrix.indices].tolist()
    bounds = interactions.matrix.indptr.tolist()
    for user, start, stop in zip(
        interactions.user_ids.tolist(), bounds[:-1], bounds[1:], strict=True
    ):
        yield " ".join([str(user), *item_names[start:stop]])


def fits_text(ids: NDArray) -> bool:
    """Return True if the text format can hold these ids."""
    if len(ids) == 0:
        return True
    return bool(ids.dtype.kind in "iu" and ids.min() >= 0 and ids.max() <= LARGEST_ID)


def write_lines(path: str | Path, lines: Iterable[str], *, private: bool = False) -> None:
    """Write lines to a temporary file and rename it, so that a file is never half-written.

    A private file is readable by its owner only.
    """
    path = Path(path)
    # A device or pipe (/dev/stdout) is written to directly; renaming would replace it.
    is_special = path.exists() and not path.is_file()
    partial = path if is_special else path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            mode = 0o600 if private else 0o666
            opened = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            with open(opened, "w", encoding="utf-8", newline="\n") as file:
                file.writelines(line + "\n" for line in lines)
            if not is_special:
                os.replace(partial, path)
        finally:
            if not is_special:
                partial.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}") from None


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file without a UTF-8 byte order mark, or raise DataError."""
    try:
        with opened(path) as file:
            content = file.read().removeprefix(BYTE_ORDER_MARK)
    except UNREADABLE as error:
        raise cannot_be_read(path, error) from None
    if not content.strip():
        raise DataError(f"{path}: the file is empty")
    return content


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading; gzip is decompressed and UTF-16 becomes UTF-8."""
    with path.open("rb") as raw:
        file: Any = raw
        if raw.peek(2)[:2] == _GZIP:
            file = gzip.GzipFile(fileobj=raw)
        start = file.peek(2)[:2]
        if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            file = codecs.EncodedFile(file, "utf-8", "utf-16")
        yield file


UNREADABLE = (OSError, EOFError, zlib.error, UnicodeDecodeError)
"""Errors of a file that cannot be opened, decompressed or decoded."""


def cannot_be_read(path: Path, error: Exception) -> DataError:
    return DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}")


def in_utf8(path: Path, content: bytes, lines_above: int = 0) -> bytes:
    """Return text in UTF-8; text that is not is taken for Windows-1252, with a DataWarning."""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1 + lines_above
        warn_of_data(
            f"{path}:{line}: byte 0x{content[error.start]:02x} is not UTF-8; the file is read as "
            "Windows-1252 (Latin-1)"
        )
        try:
            return content.decode("cp1252").encode()
        except UnicodeDecodeError:
            return content.decode("latin-1").encode()
    return content


def parse_integers(codes: NDArray[np.uint8], starts: NDArray, ends: NDArray) -> NDArray[np.int64]:
    """Return the numbers in `codes[start:end]`, each of at most 18 digits."""
    lengths = ends - starts
    values = np.zeros(len(starts), np.int64)
    for position in range(int(lengths.max(initial=0))):
        # Shorter numbers read past their end and keep their value.
        inside = position < lengths
        digits = codes[np.minimum(starts + position, len(codes) - 1)].astype(np.int64) - _ZERO
        values = np.where(inside, values * 10 + digits, values)
    return values


def _parse(path: Path) -> _TextLines:
    codes = np.frombuffer(read_bytes(path), np.uint8)
    is_digit = (codes - np.uint8(_ZERO)) < 10  # codes below "0" wrap around to large numbers
    newlines = codes == _NEWLINE
    is_gap = newlines | (codes == _SPACE) | (codes == _TAB)
    returns = np.flatnonzero(codes == _RETURN)  # allowed only in a Windows line end
    is_gap[returns] = newlines[np.minimum(returns + 1, len(codes) - 1)] | (
        returns + 1 == len(codes)
    )

    wrong = np.flatnonzero(~(is_digit | is_gap))
    line_ends = np.flatnonzero(newlines)
    if len(wrong):
        _refuse(path, codes, int(wrong[0]), int(np.searchsorted(line_ends, wrong[0])) + 1)

    edges = np.flatnonzero(np.diff(is_digit, prepend=False, append=False))
    starts, ends = edges[0::2], edges[1::2]
    lines = np.searchsorted(line_ends, starts)
    values = parse_integers(codes, starts, np.minimum(ends, starts + 18))
    huge = np.flatnonzero((values > LARGEST_ID) | (ends - starts > 18))
    if len(huge):
        at = huge[0]
        token = codes[starts[at] : ends[at]].tobytes().decode()
        raise DataError(
            f"{path}:{lines[at] + 1}: id {_shortened(token)} is above the largest, {LARGEST_ID}"
        )

    is_user = np.diff(lines, prepend=-1) != 0
    users = values[is_user]
    owners = users[np.cumsum(is_user) - 1]
    return _TextLines(lines[is_user] + 1, users, owners[~is_user], values[~is_user])


def _refuse(path: Path, codes: NDArray[np.uint8], at: int, line: int) -> NoReturn:
    """Raise DataError that describes the token around the byte at `at`."""
    content = codes.tobytes()
    if content[at] == _RETURN:
        raise DataError(f"{path}:{line}: a carriage return inside a line")
    if content[at] >= 0x80 or content[at] < 0x20:
        raise DataError(f"{path}:{line}: byte 0x{content[at]:02x} is not part of a plain text file")
    start = max(content.rfind(gap, 0, at) for gap in (b"\n", b" ", b"\t")) + 1
    match = re.compile(rb"[^ \t\r\n]+").match(content, start)
    token = match.group().decode("utf-8", "replace") if match else ""
    if re.fullmatch(r"-\d+", token):
        raise DataError(f"{path}:{line}: negative id {_shortened(token)}")
    raise DataError(
        f"{path}:{line}: {_shortened(token)!r} is not an id (expected: user item item ...)"
    )


def _shortened(token: str) -> str:
    return token if len(token) <= 40 else token[:37] + "..."
