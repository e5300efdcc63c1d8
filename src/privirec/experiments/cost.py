"""Communication costs: the paper's formulas in floats, and the actual bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from privirec.errors import OverflowRefused
from privirec.federated.contributions import PlannedSum
from privirec.federated.fixed_point import FixedPoint
from privirec.federated.programs import (
    DEFAULT_RANK,
    PROGRAMS,
    Program,
    ProgramSettings,
    SpectralProgram,
)
from privirec.federated.programs.power import PowerSettings
from privirec.federated.row_scales import LEAST_WIDTH, narrowest_ring
from privirec.models import GFCF, MODELS
from privirec.privacy.ledger import Ledger
from privirec.runtime.spec import Assumptions, vector_shape
from privirec.secagg import ProtocolError, protocol
from privirec.secagg.errors import ParametersInfeasible
from privirec.secagg.messages import EVERYBODY
from privirec.secagg.protocol import DEFAULT_BLOCK_ENTRIES

COST_ROUNDS, COST_RANK, COST_EPOCHS, COST_EMBEDDING = 3, 2000, 1000, 64
"""Settings of the paper's communication costs: L, k_2, epochs e, embedding size k_3."""
MOST_ENTRIES = 1 << 32
"""Largest number of entries of a sum, assumed to judge the rings of sums of unknown size."""


@dataclass(frozen=True)
class Sizes:
    """Sizes and settings for which costs are computed."""

    users: int
    items: int
    low_pass_rank: int = 256
    """k_1, the rank of PriviRec's low-pass filter."""
    rank: int | None = None
    """k_2, the rank of PriviRec-k's low-rank matrix.

    If None, the paper's formulas and its preset use the value of the paper's cost table, and all
    others use the default of a run.
    """
    rounds: int | None = None
    """L, with the same defaults as `rank`."""
    ring_bits: int | None = None
    """Ring width; None selects each program's default."""
    item_item_entries: int | None = None
    """Number of non-zeros of P~, if the data is available."""
    aggregator: str = "none"
    """Aggregation protocol; its costs assume the defaults of a network."""
    largest_degree: int | None = None
    """Number of people who have the most popular item, if the data is available."""

    @property
    def paper_rank(self) -> int:
        return self.rank or min(COST_RANK, self.items)

    @property
    def paper_rounds(self) -> int:
        return self.rounds or COST_ROUNDS


def formula_rows(sizes: Sizes) -> list[dict[str, Any]]:
    """Return the dominant terms of the paper's cost table, in floats."""
    items, users, rounds, rank = sizes.items, sizes.users, sizes.paper_rounds, sizes.paper_rank
    terms = {
        "PriviRec": ("|I|^2", items**2),
        "PriviRec-k": ("L k2 |I|", rounds * rank * items),
        "federated GCN or MF": (
            "e k3 (|I| + n)",
            COST_EPOCHS * COST_EMBEDDING * (items + users),
        ),
    }
    return [
        {
            "method": method,
            "formula": formula,
            "floats_per_client": floats,
            "floats_server": floats * users,
        }
        for method, (formula, floats) in terms.items()
    ]


def byte_rows(sizes: Sizes) -> list[dict[str, Any]]:
    """Return bytes up and down, per client and at the server, for each program and variant."""
    rows: list[dict[str, Any]] = []
    for program in PROGRAMS.values():
        if not _runs(program, sizes):
            continue
        for label, settings in _variants(program, sizes).items():
            if label in program.presets and getattr(settings, "rank", 0) > sizes.items:
                continue  # The preset is made for larger catalogues.
            made = program(settings, sizes.users, sizes.items)
            planned = made.forecast(sizes.item_item_entries)
            ledger = Ledger.planned(planned)
            sums = [step for step in planned if isinstance(step, PlannedSum)]
            added: tuple[int, int] | None = None
            refused = None
            try:
                added = aggregation_bytes(
                    sums, sizes.aggregator, Assumptions(), sizes.users, len(made.sums())
                )
            except ProtocolError as error:
                refused = str(error)
            rows.append(
                {
                    "method": program.title + (f", {label}" if label else ""),
                    "program": program.name,
                    "preset": label if label in program.presets else None,
                    "users": sizes.users,
                    "items": sizes.items,
                    "rank": getattr(settings, "rank", None),
                    "rounds": getattr(settings, "rounds", None),
                    # The noise determines the ring widths of a program that protects.
                    "ring_bits": None if program.protects else settings.ring_bits,
                    "sums": ledger.sums,
                    **run_bytes(ledger, added, sizes.users),
                    "bytes_up_by_sum": ledger.by_name("bytes_up_per_client"),
                    "bytes_down_by_sum": ledger.by_name("bytes_down_per_client"),
                    "aggregator": sizes.aggregator,
                    "refused": refused,
                }
            )
            if not label:
                usual = ledger.bytes_up
            elif label in program.variants:
                rows[-1]["bytes_up_saved_per_client"] = usual - ledger.bytes_up
    return rows


def run_bytes(ledger: Ledger, added: tuple[int, int] | None, clients: int) -> dict[str, Any]:
    """Return the bytes of a planned run, per client and at the server, as fields of a row.

    `added` has the bytes up and down per client that the aggregation protocol adds, or is None if
    they are unknown. They have fields of their own, and the totals of the server include them.
    """
    more_up, more_down = added or (0, 0)
    return {
        "bytes_up_per_client": ledger.bytes_up,
        "bytes_down_per_client": ledger.bytes_down,
        "aggregation_bytes_up_per_client": None if added is None else more_up,
        "aggregation_bytes_down_per_client": None if added is None else more_down,
        "bytes_server_receives": (ledger.bytes_up + more_up) * clients,
        "bytes_server_sends": (ledger.bytes_down + more_down) * clients,
    }


def aggregation_bytes(
    sums: Sequence[PlannedSum],
    aggregator: str,
    assumptions: Assumptions,
    clients: int,
    most_sums: int,
) -> tuple[int, int]:
    """Return the bytes up and down per client that an aggregation protocol adds to the vectors.

    Keys are dealt for `most_sums` sums, of which these are the ones to expect.

    They are means over a cohort without drop-outs, rounded for each sum as in a run's ledger.
    """
    if aggregator == "none":  # Clients send plain vectors, without any protocol.
        return 0, 0
    if clients >= EVERYBODY:
        raise ParametersInfeasible(f"{clients:,} clients are more than the protocol can number")
    statement = assumptions.statement(clients, most_sums)
    try:
        shapes = [vector_shape(planned) for planned in sums]
    except ValueError as error:
        raise ParametersInfeasible(str(error)) from None
    found = protocol(aggregator).sum_bytes(statement, shapes, DEFAULT_BLOCK_ENTRIES)
    up = sum(round(float(one.up)) for one in found)
    down = sum(round(float(one.down)) for one in found)
    return up - sum(planned.payload_bytes for planned in sums), down


def _runs(program: type[Program[Any]], sizes: Sizes) -> bool:
    """Return False if a program is known not to run in the chosen ring."""
    if sizes.ring_bits is None or program.protects:
        return True
    return most_people(program, sizes.ring_bits, sizes.users) >= (sizes.largest_degree or 1)


def ring_notes(sizes: Sizes) -> list[str]:
    """Return a sentence for each program that the chosen ring is too narrow for, or may be."""
    notes = []
    for program in PROGRAMS.values():
        if sizes.ring_bits is None or program.protects:
            continue
        most = most_people(program, sizes.ring_bits, sizes.users)
        ring = f"a ring of {sizes.ring_bits} bits"
        if most == 0:
            notes.append(f"{program.title} does not run in {ring} at all.")
        elif sizes.largest_degree is not None and most < sizes.largest_degree:
            notes.append(
                f"{program.title} does not run in {ring}: an item has {sizes.largest_degree:,} "
                f"people, and it holds {most:,}."
            )
        elif sizes.largest_degree is None and most < sizes.users:
            notes.append(
                f"{program.title} runs in {ring} only if no item has more than {most:,} people."
            )
    return notes


def most_people(program: type[Program[Any]], ring_bits: int, users: int) -> int:
    """Return the most people that an item may have for a program to run in a ring.

    The result is at most `users`, and 0 if the program does not run at all.
    """
    return largest(lambda people: _fits(program, ring_bits, people), users)


def largest(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest number up to `most` that fits, or 0 if 1 does not fit.

    `fits` must be monotonic: if a number fits, all smaller ones do.
    """
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _fits(program: type[Program[Any]], ring_bits: int, people: int) -> bool:
    """Return True if a ring holds the sums of a program for an item with this many people."""
    if issubclass(program, SpectralProgram):
        return ring_bits >= max(LEAST_WIDTH, narrowest_ring(people, MOST_ENTRIES))
    try:
        # A person adds at most one to an entry. Power steps are rounded, and they are signed.
        steps = issubclass(program.settings_type, PowerSettings)
        FixedPoint.for_sum(ring_bits, float(people), people if steps else 0, signed=steps)
    except OverflowRefused:
        return False
    return True


def _variants(program: type[Program[Any]], sizes: Sizes) -> dict[str, ProgramSettings]:
    """Return the settings of each preset, of the defaults (with an empty label) and of variants."""
    fields = program.settings_type.model_fields

    def settings(
        preset: str | None, rank: int, rounds: int | None, **changes: Any
    ) -> ProgramSettings:
        chosen = {"rounds": rounds, "ring_bits": sizes.ring_bits}
        given = {name: n for name, n in chosen.items() if n is not None and name in fields}
        offered = {"rank": rank if program.low_rank else sizes.low_pass_rank}
        found: ProgramSettings = program.settings_from(given | changes, offered, preset)
        return found

    model = MODELS[program.usual_model] if program.usual_model else GFCF
    usual_rank = model().config.low_pass_rank or DEFAULT_RANK
    usual = (sizes.rank or min(usual_rank, sizes.items), sizes.rounds)
    of_the_paper = (sizes.paper_rank, sizes.paper_rounds)
    return {
        **{
            name: settings(name, *(of_the_paper if name == "paper" else usual))
            for name in program.presets
        },
        "": settings(None, *usual),
        **{label: settings(None, *usual, **changes) for label, changes in program.variants.items()},
    }
