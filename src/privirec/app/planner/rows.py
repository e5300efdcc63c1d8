"""Rows of a plan: the proposal and its alternatives, with bytes, CPU seconds and time."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from privirec.app.planner.methods import PlannedMethod, Proposal, written
from privirec.app.planner.work import work_of
from privirec.experiments.cost import aggregation_bytes, run_bytes
from privirec.federated.programs import SpectralProgram
from privirec.progress import QUIET, Phases
from privirec.runtime.spec import DEFAULT_AGGREGATOR, Assumptions
from privirec.secagg import protocol
from privirec.version import __version__

DATA = "DATA"
"""Placeholder in printed commands if no data set was named."""


@dataclass(frozen=True)
class Links:
    """Speeds of the links, in bytes per second."""

    up: float
    down: float
    server: float
    """Speed of the server's link in each direction; the directions are used one after the other."""


def planned_rows(
    choice: Proposal,
    links: Links,
    *,
    aggregator: str = DEFAULT_AGGREGATOR,
    assumptions: Assumptions | None = None,
    dataset: Sequence[str] = (DATA,),
    phases: Phases = QUIET,
) -> list[dict[str, Any]]:
    """Return rows for the proposal, then for what also fits, then for what does not fit."""
    terms = assumptions or Assumptions()
    ordered = [(choice.proposed, True), *((one, True) for one in choice.others)]
    ordered += [(one, False) for one in choice.too_large]
    rows = []
    for candidate, fits in ordered:
        phases(f"plan: {candidate.spec.method}")(0, 1)
        row = row_of(candidate, links, aggregator, terms)
        proposed = candidate is choice.proposed
        more = {"proposed": proposed, "fits": fits, "why": choice.why if proposed else None}
        rows.append(row | more | {"command": command_of(candidate, dataset)})
    return rows


def row_of(
    candidate: PlannedMethod, links: Links, aggregator: str, terms: Assumptions
) -> dict[str, Any]:
    """Return the bytes, CPU seconds and time of a candidate."""
    people, ledger, sums = candidate.population, candidate.ledger, candidate.sums
    described = candidate.program.describe()
    most = len(candidate.program.sums())
    added = aggregation_bytes(sums, aggregator, terms, people.users, most)
    up, down = ledger.bytes_up + added[0], ledger.bytes_down + added[1]
    cost = run_bytes(ledger, added, people.users)
    at_server = cost["bytes_server_receives"] + cost["bytes_server_sends"]
    work = work_of(candidate, aggregator, terms)
    exchanges = 0
    if aggregator != "none":
        schedule = protocol(aggregator).schedule_for(terms.statement(people.users, most))
        exchanges = len(schedule.steps(len(sums)))
    return {
        "method": candidate.spec.method,
        "model": candidate.spec.model,
        "users": people.users,
        "items": people.items,
        "rank": described.get("rank"),
        "rounds": described.get("rounds"),
        "columns": _columns(candidate),
        "way": described.get("way"),
        "head": described.get("head", candidate.spec.given().get("head")),
        "ring_bits": _ring_bits(candidate),
        "epsilon": described.get("epsilon"),
        "epsilon_replacing": described.get("epsilon_replacing"),
        "delta": described.get("delta"),
        "validation_ndcg@20": candidate.validation_ndcg,
        "sums": len(sums),
        **cost,
        "may_end_early": any(planned.optional for planned in sums),
        "down_is_exact": candidate.down_is_exact,
        "aggregator": aggregator,
        "server_model": terms.server_model.value,
        "corrupt_share": terms.corrupt_share,
        "dropped_share": terms.drop_share,
        "corrupt": terms.statement(people.users, most).corrupt,
        "dropped": terms.statement(people.users, most).dropped,
        "exchanges": exchanges,
        "client_cpu_seconds": work.client,
        "client_seconds": work.client + up / links.up + down / links.down,
        "server_cpu_seconds": work.server,
        "server_seconds": work.server + at_server / links.server,
        "version": __version__,
    }


def _ring_bits(candidate: PlannedMethod) -> int:
    """Return the ring width of the largest sum."""
    largest = max(candidate.sums, key=lambda planned: planned.payload_bytes)
    return largest.shape.ring_bits


def _columns(candidate: PlannedMethod) -> str | None:
    program = candidate.program
    return written(program.columns) if isinstance(program, SpectralProgram) else None


def command_of(candidate: PlannedMethod, dataset: Sequence[str]) -> str:
    """Return the command that runs a candidate; `dataset` holds the words after `--dataset`."""
    words, spec = ["privirec", "run", "--dataset", *dataset], candidate.spec
    if candidate.settings is not None:
        return shlex.join([*words, "--settings", str(candidate.settings)])
    of_run = {name: getattr(spec, name) for name in ("model", "corrupt_share")}
    given = {name: value for name, value in of_run.items() if name in spec.model_fields_set}
    for name, value in {"method": spec.method, **given, **spec.given()}.items():
        words += [f"--{name.replace('_', '-')}", written(value)]
    return shlex.join(words)
