"""Download of the standard data sets: resumable, verified, and renamed when complete."""

from __future__ import annotations

import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from privirec.data.datasets import PUBLISHED, PublishedFile, data_folders
from privirec.errors import DataError, UsageError

SOURCE = "https://raw.githubusercontent.com/gusye1234/LightGCN-PyTorch/master/data"
_CHUNK = 1 << 18
_TIMEOUT_SECONDS = 30.0

Progress = Callable[[str, int, int | None], None]
"""Called with file name, bytes so far, and the size if the server sent it."""


def download(
    name: str,
    data_dir: str | Path | None = None,
    *,
    source: str = SOURCE,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Fetch train.txt and test.txt of a data set from `<source>/<name>`; return their folder.

    The folder is `name` in the first data folder. Files that exist and have the right checksum are
    kept. Other existing files are replaced only with `force`.
    """
    if name not in PUBLISHED:
        raise UsageError(f"{name}: cannot be downloaded; known are {', '.join(PUBLISHED)}")
    if not source.startswith(("https://", "http://")):
        raise UsageError(f"{source}: not a web address (https://...)")
    folder = data_folders(data_dir)[0] / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: cannot be created: {error.strerror}") from None
    for file_name, published in PUBLISHED[name].files.items():
        target = folder / file_name
        if target.exists() and not force:
            if published.matches(target):
                continue
            raise DataError(f"{target}: exists but is not the published file; replace: --force")
        try:
            _fetch(f"{source.rstrip('/')}/{name}/{file_name}", target, published, progress)
        except (OSError, http.client.HTTPException) as error:
            raise DataError(_without_network(name, folder, source, error)) from None
    return folder


def _fetch(url: str, target: Path, published: PublishedFile, progress: Progress | None) -> None:
    """Fetch one file through `<target>.part`, which is kept after an interruption to be resumed."""
    part = target.with_name(target.name + ".part")
    have = part.stat().st_size if part.exists() else 0
    size: int | None = None
    try:
        with _open(url, have) as response:
            start = _start_of(response, have)
            length = response.headers.get("Content-Length")
            size = start + int(length) if length is not None else None
            with part.open("r+b" if start else "wb") as file:
                file.seek(start)
                file.truncate()
                while chunk := _read(response):
                    file.write(chunk)
                    if progress is not None:
                        progress(target.name, file.tell(), size)
                file.flush()
                os.fsync(file.fileno())
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE or not have:
            raise
        # The server has nothing more to send. The checksum decides if the part is complete.
    got = part.stat().st_size
    if size is not None and got < size:
        raise ConnectionError(f"the connection ended after {got:,} of {size:,} bytes")
    if got == 0 or not published.matches(part):
        part.unlink()
        if have:  # the part may have been of another version of the file
            return _fetch(url, target, published, progress)
        raise DataError(f"{url}: what arrived is not the published file (wrong checksum)")
    os.replace(part, target)
    return None


def _open(url: str, have: int) -> http.client.HTTPResponse:
    headers = {"User-Agent": "privirec", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=headers)  # noqa: S310  (scheme checked above)
    return urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)  # noqa: S310


def _read(response: http.client.HTTPResponse) -> bytes:
    """Return the next bytes, including those received before a connection broke."""
    try:
        return response.read(_CHUNK)
    except http.client.IncompleteRead as error:
        return error.partial


def _start_of(response: http.client.HTTPResponse, have: int) -> int:
    """Return the offset of this body: `have`, or 0 if the server sends the whole file."""
    if response.status != http.client.PARTIAL_CONTENT:
        return 0
    match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    if match is None or int(match[1]) != have:
        raise ConnectionError("the server sent another range than requested")
    return have


def _without_network(name: str, folder: Path, source: str, error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return (
        f"{name} could not be downloaded ({reason}); run the same command again to resume, or "
        f"without a network put train.txt and test.txt from {source}/{name} into {folder}"
    )
