"""Actions on a person's history, with messages, for `privirec device` and the person's page."""

from __future__ import annotations

from collections.abc import Collection

from privirec.device.store import Run, Store, Summary
from privirec.errors import UsageError

ONLY_USER = "me"
"""Default user of a store on a personal device."""

_SHOWS = (
    "It was in exact sums: anyone with those of an earlier and a later run can read in their "
    "difference what was forgotten. The client therefore sits out of exact runs until the next "
    "period of its calendar (days_between_changes in policy.toml), when the changes of all clients "
    "come at once."
)
_HIDDEN = (
    "It was in sums with noise, and their promise covers this change too: the client goes on "
    "taking part in such runs."
)


def only_user(store: Store, user: str | None) -> str:
    """Return the named user, or the only one; raise UsageError if there are several."""
    if user is not None:
        return user
    users = store.users()
    if len(users) > 1:
        raise UsageError(f"{store.path}: {len(users)} users, so say which with --user")
    return users[0] if users else ONLY_USER


def forgetting(
    store: Store, items: Collection[str], user: str | None, *, everything: bool = False
) -> list[str]:
    """Forget items, a user (without items) or everything, and return sentences on the effect."""
    before = store.pending_forgets()
    if everything:
        gone = store.forget_everything()
    elif items:
        gone = store.forget_items(only_user(store, user), items)
    else:
        gone = store.forget_user(user)
    summary, runs = store.summary(), store.runs()
    said = [f"Forgotten: {counted(gone)}."]
    if summary.pending_forgets > before:
        said.append(_until_next_run(summary.pending_forgets))
        said += [_in_a_run(run) for run in runs if run.forgotten and not run.finished]
        used = [run for run in runs if run.sent and run.forgotten]
        if any(run.exact for run in used):
            said.append(_SHOWS)
        if any(not run.exact for run in used):
            said.append(_HIDDEN)
    else:
        said.append("No run has used them.")
    if summary.traces:
        said.append(
            "Another program has the store open: their traces stay in the file until it is closed."
        )
    return said


def used_by_runs(summary: Summary) -> list[str]:
    """Return sentences on which part of a history runs have used."""
    run = summary.last_run
    if run is None:
        said = ["No run has used them."] if summary.interactions else []
    else:
        state = "used" if run.finished else "is using or began to use"
        said = [
            f"Run {run.run[:8]} of {run.begun[:10]} {state} {counted(run.interactions)}; "
            f"waiting for a later one: {summary.waiting:,}."
        ]
    if summary.pending_forgets:
        said.append(_until_next_run(summary.pending_forgets))
    return said


def counted(count: int, kind: str = "") -> str:
    return f"{count:,} {kind}interaction{'' if count == 1 else 's'}"


def _in_a_run(run: Run) -> str:
    """Return a sentence on the effect of forgetting on an unfinished run."""
    if run.sent:
        return (
            f"Run {run.run}: your vector has left, so that run may still be opened with them in "
            "it. This client gives no further answer there."
        )
    return f"Run {run.run}: nothing has left, and this client leaves it."


def _until_next_run(count: int) -> str:
    return (
        f"Forgotten since: {counted(count)}. The filters of an earlier run may still count them; "
        "forgetting takes effect there at the next run."
    )
