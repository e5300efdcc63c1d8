"""What an artifact says about privacy, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from privirec.secagg import Guarantee, protocol, protocol_names

_TO_WHOM = {"server": "the server", "every client": "every client"}


def explained(manifest: Mapping[str, Any]) -> list[str]:
    """One sentence after the other; what the manifest does not say is said to be missing."""
    return list(_sentences(manifest))


def _sentences(manifest: Mapping[str, Any]) -> Iterator[str]:
    federation, run = manifest.get("federation"), manifest.get("run")
    sums = [row for row in _rows(manifest) if row.get("entries")]
    if isinstance(federation, Mapping):
        yield from _of_federation(federation)
    elif sums:
        yield (
            "Made in one process that held all histories, as a federation would have made it: who "
            "ran it saw everything."
        )
    if not sums:
        yield (
            "Computed from histories in one place, exactly. A model computed from exact histories "
            "can give some of them away; nothing bounds how much."
        )
        return
    yield f"{len(sums)} {'sum was' if len(sums) == 1 else 'sums were'} opened:"
    for number, row in enumerate(sums, start=1):
        yield f"  {number}. {_of_sum(row)}"
    yield _promise(sums, run if isinstance(run, Mapping) else {})
    if isinstance(federation, Mapping):
        yield (
            "Each client keeps a record of all runs that it was in, with whatever server: privirec "
            "budget."
        )


def _rows(manifest: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    rows = manifest.get("ledger")
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _of_federation(federation: Mapping[str, Any]) -> Iterator[str]:
    cohort, clients = federation.get("cohort"), federation.get("clients")
    yield f"Made by a federation: {cohort} of {clients} clients were in its sums."
    name = federation.get("aggregator")
    if name in protocol_names():
        promised = protocol(str(name)).guarantee
        sentence = f"Summed by {name}: {promised.value}"
        if promised is Guarantee.CRYPTOGRAPHIC and "server_model" in federation:
            sentence += (
                f", if it is {_server(str(federation['server_model']))} and no more than "
                f"{float(federation.get('corrupt_share') or 0):.0%} of the clients work for it"
            )
        yield sentence + "."


def _server(model: str) -> str:
    return "anything at all" if model == "active" else "honest in following the protocol"


def _of_sum(row: Mapping[str, Any]) -> str:
    noise = row.get("noise")
    if isinstance(noise, Mapping):
        added = f"{noise.get('distribution')} noise of deviation {noise.get('scale'):.3g}"
    else:
        added = "no noise"
    shown = _TO_WHOM.get(str(row.get("revealed_to")), str(row.get("revealed_to")))
    epsilon = row.get("epsilon_so_far", "none")
    so_far = f"epsilon so far {epsilon:.3g}" if isinstance(epsilon, int | float) else "no epsilon"
    return (
        f"{row.get('what')}, {row.get('entries'):,} numbers in a ring of {row.get('ring_bits')} "
        f"bits, to {shown}: {row.get('gives_away') or 'not said'} ({added}; {so_far})."
    )


def _promise(sums: Sequence[Mapping[str, Any]], run: Mapping[str, Any]) -> str:
    epsilon = sums[-1].get("epsilon_so_far", "none")
    if isinstance(epsilon, int | float):
        return (
            f"Promised to every person: epsilon {epsilon:.3g} at delta {sums[-1].get('delta'):g}. "
            "Whether all of a person's history was in these sums or none of it, nobody who sees "
            "the sums, this model or anything made from them can tell better than that says."
        )
    if all(isinstance(row.get("noise"), Mapping) for row in sums):
        return (
            "Promised: nothing. The noise was drawn from a seed"
            + (f" ({run['seed']})" if "seed" in run else "")
            + ", as in any simulation, so whoever knows the seed can take it off. In a federation "
            "every client draws its own, and the same settings promise "
            + (
                f"epsilon {run['epsilon']:.3g} at delta {run['delta']:g}."
                if isinstance(run.get("epsilon"), float)
                else "an epsilon."
            )
        )
    return (
        "Promised: nothing. These sums are exact, and histories can be computed from them; see for "
        "yourself: privirec audit."
    )
