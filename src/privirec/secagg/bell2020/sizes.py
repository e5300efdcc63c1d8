"""Predicted bytes of a run of this exchange; see docs/reference/secagg-wire.md, *Sizes*."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from privirec.secagg.bell2020.messages import (
    Advertise,
    Confirm,
    Confirmed,
    Deliver,
    Neighbours,
    SealedShares,
    Shares,
    Survivors,
    Unmask,
)
from privirec.secagg.bell2020.shared import PAIR_BYTES, Scheme
from privirec.secagg.key_tree import HASH_BYTES, path_hashes
from privirec.secagg.keys import KEY_BYTES, NONCE_BYTES, SIGNATURE_BYTES, TAG_BYTES
from privirec.secagg.parameters import Statement
from privirec.secagg.ring import VectorShape
from privirec.secagg.shamir import SHARE_BYTES
from privirec.secagg.sizes import (
    CLIENT,
    RUN,
    SumBytes,
    announced,
    length,
    length_of_list,
    map_bytes,
)


def sum_bytes(
    scheme: Scheme, statement: Statement, shapes: Sequence[VectorShape], block_entries: int
) -> list[SumBytes]:
    """Return the mean bytes per client in each sum.

    Keys are dealt for all sums of the statement, of which a run may leave out the last ones.
    """
    sums, degree = statement.rounds, scheme.parameters(statement).neighbours
    all_shapes = [*shapes, *[shapes[-1]] * (sums - len(shapes))]
    in_map = map_bytes(statement)
    keys = Advertise(RUN, CLIENT, bytes(KEY_BYTES), bytes(sums * KEY_BYTES), bytes(SIGNATURE_BYTES))
    sealed = bytes(sums * PAIR_BYTES + TAG_BYTES)

    def neighbours(count: int) -> Neighbours:
        root = bytes(HASH_BYTES)
        return Neighbours(RUN, CLIENT, degree, 0, b"", root, (), (keys,) * count)

    def deliver(count: int) -> Deliver:
        return Deliver(RUN, CLIENT, (SealedShares(CLIENT, bytes(NONCE_BYTES), sealed),) * count)

    # Paths in the tree of keys differ in length unless the number of clients is a power of two.
    in_paths = path_hashes(statement.clients) * HASH_BYTES if degree else 0
    survivors = length(Survivors(RUN, 1, CLIENT, b"")) + in_map
    opened = length_of_list(
        lambda count: Unmask(RUN, 1, CLIENT, (bytes(SHARE_BYTES),) * count, ()), degree
    )
    first_up = length(keys) + length_of_list(
        lambda count: Shares(RUN, CLIENT, bytes(NONCE_BYTES), (sealed,) * count), degree
    )
    first_down = (
        length(announced(statement, all_shapes, block_entries))
        + length_of_list(neighbours, degree)
        + in_map
        + Fraction(in_paths, statement.clients)
        + length_of_list(deliver, degree)
    )
    if "confirm" in scheme.schedule_for(statement).names:
        first_up += length(Confirm(RUN, 1, CLIENT, bytes(SIGNATURE_BYTES)))
        first_down += length_of_list(
            lambda count: Confirmed(RUN, 1, CLIENT, (bytes(SIGNATURE_BYTES),) * count), degree
        )
    each = [
        SumBytes(Fraction(shape.packed_bytes + opened), Fraction(survivors)) for shape in shapes
    ]
    # Clients that confirm get the map of survivors in that step, and only signatures in the next.
    each[0] = SumBytes(each[0].up + first_up, each[0].down + first_down)
    return each
