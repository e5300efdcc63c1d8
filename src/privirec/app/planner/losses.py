"""Numbers of clients that may be missing, and that may collude with the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from privirec.errors import UsageError
from privirec.runtime.spec import MOST_COUNTED, RunSpec
from privirec.secagg.parameters import PPM, least_honest, most_missing, share_of

MOST_ROWS = 6


def loss_rows(spec: RunSpec, clients: int) -> list[dict[str, Any]]:
    """Return a row for the shares of a spec, then, for a small roster, others that hold for it."""
    if clients < 2:
        raise UsageError("a federation has at least 2 clients")
    chosen = spec.with_usual_drop_share(clients)
    chosen.check_roster(clients)
    own = _row(chosen, clients)
    others = [_row(each, clients) for each in _others(chosen, clients)]
    counts = ("colluding", "missing")
    new = [row for row in others if any(row[name] != own[name] for name in counts)]
    return [own | {"chosen": True}, *new]


def _others(spec: RunSpec, clients: int) -> Iterator[RunSpec]:
    """Yield for each number of colluding clients the largest share that may be missing."""
    if clients > MOST_COUNTED:
        return
    for corrupt in range(min(clients // 2 + 1, MOST_ROWS)):
        most = most_missing(clients, corrupt, spec.server_model)
        for missing in range(min(clients // 2, -1 if most is None else most), -1, -1):
            shares = {"corrupt_share": corrupt / clients, "drop_share": _share(missing, clients)}
            other = spec.model_copy(update=shares)
            try:
                other.check_roster(clients)
            except UsageError:
                continue
            yield other
            break


def _share(missing: int, clients: int) -> float:
    return share_of(missing, clients) / PPM


def _row(spec: RunSpec, clients: int) -> dict[str, Any]:
    statement = spec.statement(clients, 1)
    return {
        "clients": clients,
        "colluding": statement.corrupt,
        "missing": clients - spec.least_clients(clients),
        "least": spec.least_clients(clients),
        "honest": least_honest(statement),
        "corrupt_share": round(spec.corrupt_share, 6),
        "drop_share": spec.drop_share,
        "server_model": spec.server_model.value,
        "chosen": False,
    }
