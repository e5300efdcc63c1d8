"""`privirec paper cost`: communication costs of the methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from privirec.app.cli import options
from privirec.app.cli.groups import with_groups
from privirec.app.cli.table_options import reads_tables
from privirec.app.pictures.paper import cost_plot
from privirec.data import TableOptions, load_dataset
from privirec.errors import UsageError
from privirec.experiments.cost import (
    COST_RANK,
    COST_ROUNDS,
    Sizes,
    byte_rows,
    formula_rows,
    ring_notes,
)
from privirec.federated.programs import DEFAULT_RANK, DEFAULT_ROUNDS
from privirec.filters import factored
from privirec.rows import as_bytes, print_table, say, warn, write_json_lines
from privirec.runtime.spec import DEFAULT_AGGREGATOR
from privirec.secagg import protocol_names

GOWALLA = (29_858, 40_981)


@dataclass(frozen=True, kw_only=True)
class CostOptions:
    """Options of a table of costs."""

    users: Annotated[
        int | None, typer.Option(min=1, help="n, the number of users (default: Gowalla's).")
    ] = None
    items: Annotated[
        int | None, typer.Option(min=1, help="|I|, the number of items (default: Gowalla's).")
    ] = None
    dataset: Annotated[
        str | None,
        typer.Option(help="Take both numbers, and the true size of P~, from this data set."),
    ] = None
    rank: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"k2 of PriviRec-k (default: {DEFAULT_RANK} as in run; 512 for spectral; "
            f"{COST_RANK} in the paper's formulas and rows; less for a smaller catalogue).",
        ),
    ] = None
    low_pass_rank: Annotated[
        int | None,
        typer.Option(min=1, help="k1 of PriviRec (default: 256, or less for fewer items)."),
    ] = None
    rounds: Annotated[
        int | None,
        typer.Option(
            min=2,
            help=f"L (default: {DEFAULT_ROUNDS} as in run; {COST_ROUNDS} in the paper's formulas "
            "and rows).",
        ),
    ] = None
    ring_bits: Annotated[
        int | None,
        typer.Option(
            min=1, max=64, help="Width of the ring in bits (default: that of each method)."
        ),
    ] = None
    aggregator: Annotated[
        str,
        options.one_of(
            protocol_names(),
            help="Protocol whose overhead to add, as on a network: an active server, 5 % of the "
            "clients corrupt, 20 % dropping out.",
        ),
    ] = DEFAULT_AGGREGATOR
    data_dir: options.DataDir = None
    json_file: options.Json = None
    picture: options.Picture = None


@with_groups
@reads_tables
def command(*, chosen: CostOptions, table: TableOptions) -> None:
    """Show the paper's communication costs in floats, and the bytes that are really sent.

    Up: bytes that a client sends. Down: bytes that it receives, broadcasts and the final filters
    included. The next columns show the overhead of secure aggregation: encoded messages, if no
    client drops out. The server sends and receives n times as much. Without a data set, the
    released item-item matrix counts as a dense triangle; with one, as the sparse matrix that
    clients really fetch.

    Rows without a name after the comma show what privirec run sends by default. The paper's rows
    use the settings of its table of costs.

    --picture draws bytes up and down, the paper's formulas, and the purpose of the bytes.
    """
    sizes = _sizes(chosen, table)
    formulas, rows = formula_rows(sizes), byte_rows(sizes)
    write_json_lines(chosen.json_file, [*formulas, *rows])
    for row in formulas:
        row["millions"] = f"{row['floats_per_client'] / 1e6:,.0f}M"
    where = f"n = {sizes.users:,}, |I| = {sizes.items:,}"
    of_the_paper = f"L = {sizes.paper_rounds}, k2 = {sizes.paper_rank}"
    headings = [("method", "method"), ("formula", "dominant term"), ("millions", "floats/client")]
    print_table(f"The paper's formulas: {where}, {of_the_paper}", headings, formulas)
    print_table("Bytes on the wire, packed as sent", _headings(chosen.aggregator), rows)
    if chosen.picture is not None:
        title = f"{where}; the paper's {of_the_paper}"
        options.say_drawn(cost_plot(title, rows, formulas, chosen.picture))
    for row in rows:
        if row["refused"]:
            warn(f"{row['method']}: {chosen.aggregator} refuses these numbers: {row['refused']}")
            break
    for note in ring_notes(sizes):
        warn(note)
    for row in rows:
        if "bytes_up_saved_per_client" in row:
            saved = as_bytes(row["bytes_up_saved_per_client"])
            say(f"{row['method']} saves {saved} up per client.")


def _sizes(chosen: CostOptions, table: TableOptions) -> Sizes:
    """Return the numbers to compute costs for, from the options or from a data set."""
    users, items, entries, largest_degree = chosen.users, chosen.items, None, None
    if chosen.dataset:
        if users or items:
            raise UsageError("give --dataset, or --users and --items, not both")
        train = load_dataset(chosen.dataset, chosen.data_dir, table=table).train
        users, items = train.n_users, train.n_items
        entries = factored(train).written_out().matrix.nnz
        largest_degree = int(train.item_degrees.max(initial=0))
    n_users, n_items = users or GOWALLA[0], items or GOWALLA[1]
    low_pass_rank = min(256, n_items) if chosen.low_pass_rank is None else chosen.low_pass_rank
    if (largest := max(chosen.rank or 0, low_pass_rank)) > n_items:
        raise UsageError(f"rank {largest} does not fit {n_items} items")
    return Sizes(
        n_users,
        n_items,
        low_pass_rank,
        chosen.rank,
        chosen.rounds,
        chosen.ring_bits,
        entries,
        chosen.aggregator,
        largest_degree,
    )


def _headings(aggregator: str) -> list[tuple[str, str]]:
    return [
        ("method", "method"),
        ("rank", "k"),
        ("rounds", "L"),
        ("sums", "sums"),
        ("ring_bits", "bits"),
        ("bytes_up_per_client", "up/client"),
        ("bytes_down_per_client", "down/client"),
        ("aggregation_bytes_up_per_client", f"+ {aggregator} up"),
        ("aggregation_bytes_down_per_client", "down"),
        ("bytes_server_receives", "server receives"),
        ("bytes_server_sends", "server sends"),
    ]
