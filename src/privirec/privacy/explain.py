"""Privacy statements of an artifact, in sentences.

A manifest is only its maker's claim. Epsilon is computed here from the claims about every sum: it
is one value for all of them together, or none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from privirec.federated.dp.loss import Loss
from privirec.privacy.worth import NOTHING, SIMULATED, at_least, figures, simulated, worth
from privirec.secagg import Guarantee, protocol, protocol_names

_TO_WHOM = {"server": "the server", "every client": "every client"}


def explained(manifest: Mapping[str, Any]) -> list[str]:
    """Return a list of sentences; anything that the manifest lacks is reported as missing."""
    return list(_sentences(manifest))


def in_everyday_words(manifest: Mapping[str, Any]) -> list[str]:
    """Return a few sentences without technical terms; they promise nothing that `explained` does
    not."""
    return list(_everyday(manifest))


def _everyday(manifest: Mapping[str, Any]) -> Iterator[str]:
    federation = manifest.get("federation")
    sums = [row for row in _rows(manifest) if row.get("entries")]
    if isinstance(federation, Mapping):
        yield (
            f"Learned from {federation.get('cohort')} of {federation.get('clients')} devices and "
            "shops. Their histories stayed with them."
        )
        yield from _seen_by_server(federation)
    elif sums:
        yield "Computed in one place, which held all histories and saw everything."
    if not isinstance(manifest.get("ledger"), list):
        yield "The file does not say where this model comes from, so nothing is promised."
        return
    if not sums:
        yield (
            "Computed from histories in one place, without noise. Such a model can give some of "
            "them away; nothing limits how much."
        )
        return
    noisy = all(isinstance(row.get("noise"), Mapping) for row in sums)
    some = "1 total" if len(sums) == 1 else f"{len(sums)} totals"
    yield f"{some} became known, {'blurred by noise' if noisy else 'without noise'}."
    number = earlier_runs(manifest)
    if number:
        yield f"The model also uses what {number} earlier run{'s' * (number > 1)} released."
    opened = _all_together(manifest)
    if opened is not None:
        yield (
            "Promised to every person: nobody who sees these totals, this model or anything made "
            "from it can tell better than this whether the person's history was used. "
            f"{worth(opened[0])} Who took part is public."
        )
    elif number:
        yield f"{NOTHING} One of these runs promises nothing."
    elif not noisy:
        yield f"{NOTHING} Histories can be computed from totals without noise."
    elif any(_loss(row) for row in sums):
        yield f"{NOTHING} There is too little noise."
    else:
        yield SIMULATED


def _seen_by_server(federation: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence on what the server saw of a single client."""
    spec = federation.get("spec")
    if not isinstance(spec, Mapping) or spec.get("aggregator") not in protocol_names():
        return
    promised = protocol(str(spec["aggregator"])).guarantee
    if promised is Guarantee.CRYPTOGRAPHIC and "server_model" in spec:
        yield (
            "The server saw only totals and never what a single device sent, "
            f"{_server(str(spec['server_model']))} no more than "
            f"{_number(spec.get('corrupt_share')) or 0:.0%} of the devices work for it."
        )
    elif promised is Guarantee.NONE:
        yield "The server saw what each device sent."
    elif promised is Guarantee.STATISTICAL:
        yield "The server saw what each device sent, blurred by noise."


def losses(manifest: Mapping[str, Any]) -> list[Loss] | None:
    """Return the loss of each sum, or None if one of them is unbounded."""
    found = [_loss(row) for row in _rows(manifest) if row.get("entries")]
    known = [one for one in found if one is not None]
    return known if len(known) == len(found) else None


def delta_of(manifest: Mapping[str, Any]) -> float | None:
    """Return the delta at which epsilon is stated."""
    sums = [row for row in _rows(manifest) if row.get("entries")]
    return _delta(sums) if sums else None


def _sentences(manifest: Mapping[str, Any]) -> Iterator[str]:
    federation, run = manifest.get("federation"), manifest.get("run")
    sums = [row for row in _rows(manifest) if row.get("entries")]
    if isinstance(federation, Mapping):
        yield from _of_federation(federation)
    elif sums:
        yield (
            "Made in one process that held all histories and simulated a federation: the operator "
            "of that process saw everything."
        )
    if not isinstance(manifest.get("ledger"), list):
        yield "The manifest does not say where this model comes from, so nothing is promised."
        return
    if not sums:
        yield (
            "Computed from histories in one place, exactly. A model computed from exact histories "
            "can give some of them away; nothing bounds how much."
        )
        return
    yield f"{len(sums)} {'sum was' if len(sums) == 1 else 'sums were'} opened:"
    for number, row in enumerate(sums, start=1):
        yield f"  {number}. {_of_sum(row, _together(sums[:number]))}"
    seen = "the sums of this run" if earlier_runs(manifest) else _SEEN
    yield _promise(sums, run if isinstance(run, Mapping) else {}, seen)
    yield from promised_together(manifest)
    if isinstance(federation, Mapping):
        yield (
            "Each client keeps a record of all runs that it was in, with any server: privirec "
            "client budget."
        )


def earlier_runs(manifest: Mapping[str, Any]) -> int:
    """Return the number of earlier runs to whose released sums this model adds."""
    earlier = manifest.get("earlier")
    return len(earlier) if isinstance(earlier, list) else 0


def promised_together(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield what all runs that the model rests on promise together, if it rests on earlier ones."""
    number = earlier_runs(manifest)
    if not number:
        return
    many = f"{number} earlier run{'s' if number > 1 else ''}"
    together = _all_together(manifest)
    if together is None:
        yield f"The model adds to what {many} released; all together promise nothing."
        return
    loss, delta = together
    both = figures(loss.epsilon(delta), delta, loss.epsilon_replacing(delta))
    yield (
        f"The model adds to what {many} released. Promised to somebody who was in all of them, "
        f"whoever sees the model: {both}. {worth(loss)}"
    )


def _all_together(manifest: Mapping[str, Any]) -> tuple[Loss, float] | None:
    """Return the loss of all sums that the model rests on, those of earlier runs included."""
    rows: list[Mapping[str, Any]] = []
    for run in manifest["earlier"] if earlier_runs(manifest) else ():
        found = _rows(run, "sums") if isinstance(run, Mapping) else ()
        if not found:
            return None
        rows += found
    return _together([*rows, *[row for row in _rows(manifest) if row.get("entries")]])


def _rows(manifest: Mapping[str, Any], name: str = "ledger") -> Sequence[Mapping[str, Any]]:
    rows = manifest.get(name)
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _of_federation(federation: Mapping[str, Any]) -> Iterator[str]:
    cohort, clients = federation.get("cohort"), federation.get("clients")
    yield f"Made by a federation: {cohort} of {clients} clients were in its sums."
    spec = federation.get("spec")
    if not isinstance(spec, Mapping):
        return
    name = spec.get("aggregator")
    if name in protocol_names():
        promised = protocol(str(name)).guarantee
        sentence = f"Summed by {name}: {promised.value}"
        if promised is Guarantee.CRYPTOGRAPHIC and "server_model" in spec:
            sentence += (
                f", {_server(str(spec['server_model']))} no more than "
                f"{_number(spec.get('corrupt_share')) or 0:.0%} of the clients work for it"
            )
            if bits := _number(spec.get("security_bits")):
                sentence += f"; this may fail with probability 2^-{bits:g}, which adds to delta"
        yield sentence + "."


def _server(model: str) -> str:
    if model == "active":
        return "even if it lies, as long as"
    return "as long as it keeps to the protocol and"


def _number(value: object) -> float | None:
    """Return the value if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def _loss(row: Mapping[str, Any]) -> Loss | None:
    """Return the loss of a sum with secret noise, as the manifest states it; None if it has
    none."""
    said = row.get("loss")
    if not isinstance(said, Mapping) or not isinstance(row.get("noise"), Mapping):
        return None
    mu, gap, replacing = (_number(said.get(name)) for name in ("mu", "gap", "replacing"))
    if mu is None or gap is None or replacing is None or not 0 < mu <= replacing or gap < 0:
        return None
    return Loss(mu, gap, replacing)


def _delta(sums: Sequence[Mapping[str, Any]]) -> float | None:
    delta = _number(sums[-1].get("delta"))
    return delta if delta is not None and 0 < delta < 1 else None


def _together(sums: Sequence[Mapping[str, Any]]) -> tuple[Loss, float] | None:
    """Return the loss of these sums together, and delta; None unless they have an epsilon."""
    losses, delta = [_loss(row) for row in sums], _delta(sums)
    if delta is None or None in losses:
        return None
    together = Loss.together(one for one in losses if one)
    return (together, delta) if math.isfinite(together.epsilon(delta)) else None


def _of_sum(row: Mapping[str, Any], opened: tuple[Loss, float] | None) -> str:
    noise = row.get("noise")
    if isinstance(noise, Mapping):
        scale = _number(noise.get("scale"))
        added = f"{noise.get('distribution')} noise of deviation " + (
            "not said" if scale is None else f"{scale:.3g}"
        )
    else:
        added = "no noise"
    shown = _TO_WHOM.get(str(row.get("revealed_to")), str(row.get("revealed_to")))
    so_far = f"epsilon so far {at_least(opened[0].epsilon(opened[1]))}" if opened else "no epsilon"
    entries = _number(row.get("entries"))
    return (
        f"{row.get('what')}, {'some' if entries is None else f'{entries:,}'} numbers in a ring of "
        f"{row.get('ring_bits')} "
        f"bits, to {shown}: {row.get('gives_away') or 'not said'} ({added}; {so_far})."
    )


_SEEN = "the sums, this model or anything made from them"


def _promise(sums: Sequence[Mapping[str, Any]], run: Mapping[str, Any], seen: str) -> str:
    opened = _together(sums)
    if opened is not None:
        loss, delta = opened
        both = figures(loss.epsilon(delta), delta, loss.epsilon_replacing(delta))
        return (
            f"Promised to every person: {both}. Who took part is public. Nobody who sees {seen} "
            "can tell better than this allows whether all of a person's history was in these sums "
            f"or none of it. {worth(loss)}"
        )
    noisy = all(isinstance(row.get("noise"), Mapping) for row in sums)
    if noisy and any(_loss(row) for row in sums):
        return f"{NOTHING} The sums carry noise, but too little for any epsilon."
    if noisy:
        claimed, second = (_number(run.get(name)) for name in ("epsilon", "epsilon_replacing"))
        at = _delta([run]) or _delta(sums)
        if claimed is None or claimed <= 0 or at is None:
            return SIMULATED
        return simulated(claimed, at, max(claimed, second) if second else None)
    return (
        f"{NOTHING} These sums are exact, and histories can be computed from them; see for "
        "yourself: privirec audit."
    )
