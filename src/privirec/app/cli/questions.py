"""Questions that an import asks on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from privirec.data.exports import Entry, Mapped, Record
from privirec.device.titles import clean_title
from privirec.rows import say

_SHOWN = 3
"""Number of values that are shown of each column."""


def ask_columns(records: Sequence[Record]) -> Mapped | None:
    """Ask which columns of an unknown table hold items, times and ratings."""
    names = list(dict.fromkeys(name for record in records for name in record))
    if not names:
        return None
    say("This is no export that PriviRec recognises. Its columns are:")
    for number, name in enumerate(names, start=1):
        values = dict.fromkeys(str(record.get(name) or "") for record in records[:50])
        shown = ", ".join(clean_title(each)[:30] for each in list(values)[:_SHOWN] if each)
        say(f"  {number}  {clean_title(name)}: {shown}")
    item = _choice("Which column names the item (title or id)?", names)
    time = _choice("Which column says when (empty: none)?", names, optional=True)
    rating = _choice("Which column is a rating (empty: none)?", names, optional=True)
    return Mapped(item or names[0], time, rating)


def _choice(question: str, names: Sequence[str], *, optional: bool = False) -> str | None:
    while True:
        answer = typer.prompt(question, default="" if optional else None, show_default=False)
        if optional and not answer.strip():
            return None
        if answer.strip().isdigit() and 1 <= int(answer) <= len(names):
            return names[int(answer) - 1]
        if answer.strip() in names:
            return str(answer.strip())
        say(f"A number from 1 to {len(names)}, please.")


def ask_same(entry: Entry, items: Sequence[str], titles: dict[str, str]) -> str | None:
    """Ask which of these items an entry is, if any."""
    by = f" ({entry.by})" if entry.by else ""
    say(f"In your export: {entry.names[0]}{by}")
    for number, item in enumerate(items, start=1):
        say(f"  {number}  {clean_title(titles[item])}")
    answer = typer.prompt("The same as which one (empty: none)?", default="", show_default=False)
    chosen = answer.strip()
    return items[int(chosen) - 1] if chosen.isdigit() and 1 <= int(chosen) <= len(items) else None
