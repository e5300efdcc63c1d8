"""A client's vector for upload: sealed and written once, and sent as often as the server asks."""

from __future__ import annotations

from pathlib import Path


def upload_file(folder: Path, step: int) -> Path:
    """Return the file of the sealed vector of a step."""
    return folder / f"upload-{step}"


def forget_uploads(folder: Path, before: int | None = None) -> None:
    """Remove all uploads of a run, or only those of steps before `before`."""
    for path in folder.glob("*upload-*"):  # with parts that a crash left
        number = path.name.partition("upload-")[2]
        if before is None or not number.isdigit() or int(number) < before:
            path.unlink(missing_ok=True)
