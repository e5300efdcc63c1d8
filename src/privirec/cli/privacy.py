"""`privirec budget` and `privirec explain-privacy`: what was spent, and what a model says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from privirec.cli import options
from privirec.dp.gaussian import LARGEST_EPSILON, mu_of
from privirec.dp.loss import Loss
from privirec.models.artifact import read_manifest
from privirec.privacy.accountant import Account
from privirec.privacy.explain import explained
from privirec.privacy.policy import Policy
from privirec.report.rows import check_writable, print_table, say, warn, write_json_lines

COLUMNS = [
    ("at", "when"),
    ("run", "run"),
    ("computed", "computed"),
    ("sums", "sums"),
    ("epsilon", "epsilon"),
    ("server", "server's key"),
]
_LIMITS = ("most_epsilon", "most_epsilon_per_period")


def budget(
    folder: Annotated[Path, typer.Argument(help="A client's folder.", metavar="CLIENT")],
    json_file: options.Json = None,
) -> None:
    """Show what a client has spent: when, for what, for whom, and how much is left.

    Epsilon bounds what all sums with noise together can tell about a person, whoever collects them.
    It does not add up run by run: two runs of epsilon 8 are about 12 together. The record is the
    client's own; each line of it is sealed with the client's key, and no server can reset it.
    """
    from privirec.runtime.network.enrolment.folders import (  # noqa: PLC0415 - not for --help
        ClientFolder,
    )

    check_writable(json_file)
    home = ClientFolder(folder)
    policy = Policy.load(folder / "policy.toml")
    _ = home.identity  # refuses a folder that is no client's
    account, now, is_whole = Account(), datetime.now(UTC), True
    if not home.is_new:
        with closing(home.memory()) as memory:
            kept = home.budget(memory)
            account, now = kept.account(), kept.now()
            is_whole = not memory.is_older()
    rows = list(_runs(account, policy.delta))
    totals = _totals(account, policy, now) | {"whole": is_whole}
    if not is_whole:
        for setting in _LIMITS:
            totals[setting]["room"] = 0.0
    write_json_lines(json_file, [*rows, {"total": True, **totals}])
    if not is_whole:
        warn(
            "This record is older than the client's last answer: it was restored from a backup, "
            "and more was spent than it says. The client takes part in no run with it."
        )
    elif not rows:
        say("Nothing was spent: this client was in no sum yet.")
    if rows:
        print_table(f"Client {folder}, at delta {policy.delta:g}", COLUMNS, rows)
    if account.exact:
        warn(
            f"{account.exact} sums were exact: nothing bounds what they tell, so there is no "
            "epsilon for all together. What follows is of the sums with noise alone."
        )
    for what, setting in (
        ("in this client's life", "most_epsilon"),
        (f"within {policy.days_per_period} days", "most_epsilon_per_period"),
    ):
        found = totals[setting]
        spent = found["spent"]
        say(
            f"Spent {what}: {'' if is_whole else 'at least '}"
            + (
                f"epsilon {_at_least(spent)}"
                if isinstance(spent, float)
                else "more than any epsilon"
            )
            + f" of {found['most']:g}; room for a run of epsilon {_at_most(found['room'])}."
        )
    if not is_whole:
        raise typer.Exit(1)


def explain_privacy(
    artifact: Annotated[Path, typer.Argument(help="Folder of a saved model.", metavar="ARTIFACT")],
) -> None:
    """Say in plain words what a saved model was made from, who saw what, and what is promised."""
    for sentence in explained(read_manifest(artifact)[1]):
        say(sentence)


def _runs(account: Account, delta: float) -> Iterator[dict[str, Any]]:
    for run, lines in groupby(account.sums, key=lambda one: one.run):
        sums = tuple(lines)
        epsilon = Account(sums).epsilon(delta)
        yield {
            "at": f"{sums[0].at:%Y-%m-%d %H:%M}",
            "run": run[:8],
            "computed": ", ".join(dict.fromkeys(one.computation for one in sums)),
            "sums": len(sums),
            "epsilon": "none" if math.isinf(epsilon) else float(_at_least(epsilon, digits=5)),
            "server": sums[0].server[:16],
        }


def _at_least(epsilon: float, digits: int = 3) -> str:
    """With so many digits, and never less than it is."""
    return _digits(epsilon, ROUND_CEILING, digits)


def _at_most(epsilon: float) -> str:
    """Never more than it is, but for what a search leaves."""
    return _digits(epsilon * (1 + 1e-6), ROUND_FLOOR, 3)


def _digits(epsilon: float, rounding: str, digits: int) -> str:
    rounded = Context(prec=digits, rounding=rounding).create_decimal(epsilon)
    return f"{float(rounded):.{digits}g}"


def _totals(account: Account, policy: Policy, now: datetime) -> dict[str, Any]:
    period = account.since(now - timedelta(days=policy.days_per_period))
    found: dict[str, Any] = {"delta": policy.delta, "exact_sums": account.exact}
    for setting, loss in (
        ("most_epsilon", account.noisy),
        ("most_epsilon_per_period", period.noisy),
    ):
        most, spent = getattr(policy, setting), loss.epsilon(policy.delta)
        found[setting] = {
            "spent": "none" if math.isinf(spent) else spent,
            "most": most,
            "room": _room(loss, most, policy.delta),
        }
    return found


def _room(spent: Loss, most: float, delta: float) -> float:
    """The epsilon of one more run that stays within `most`, as the client would judge it."""
    low, high = 0.0, mu_of(min(most, LARGEST_EPSILON), delta)
    for _ in range(50):
        middle = (low + high) / 2
        fits = Loss.together((spent, Loss(middle))).epsilon(delta) <= most
        low, high = (middle, high) if fits else (low, middle)
    return Loss(low).epsilon(delta)
