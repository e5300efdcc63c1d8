"""Hypothesis strategies for messages of every kind."""

from __future__ import annotations

from hypothesis import strategies as st

from privirec.secagg.bell2020.messages import (
    VERSION,
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
from privirec.secagg.messages import Announce, ProtocolMessage
from privirec.secagg.parameters import ServerModel, Statement
from privirec.secagg.ring import VectorShape

runs = st.binary(min_size=16, max_size=16)
clients = st.integers(0, 2**32 - 2)
numbers = st.integers(0, 2**32 - 1)
rounds = st.integers(1, 4096)
id_lists = st.lists(clients, unique=True, max_size=6).map(lambda ids: tuple(sorted(ids)))


def strings(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


shapes = st.builds(
    VectorShape,
    st.integers(1, 2**48 - 1),
    st.integers(1, 64),
    st.integers(1, 2**64 - 1),
    st.booleans(),
)


@st.composite
def announcements(draw: st.DrawFn) -> Announce:
    described = tuple(draw(st.lists(shapes, min_size=1, max_size=4)))
    statement = Statement(
        draw(numbers),
        draw(st.integers(0, 10**6)),
        draw(st.integers(0, 10**6)),
        draw(st.integers(0, 65535)),
        draw(st.integers(0, 65535)),
        len(described),
        server=draw(st.sampled_from(ServerModel)),
    )
    entries = 8 * draw(st.integers(1, 1 << 19))
    return Announce(
        draw(runs),
        draw(st.integers(0, 255)),
        VERSION,
        statement,
        draw(numbers),
        entries,
        draw(strings(32)),
        described,
    )


@st.composite
def advertisements(draw: st.DrawFn, run: bytes, client: int, count: int) -> Advertise:
    return Advertise(run, client, draw(strings(32)), draw(strings(32 * count)), draw(strings(64)))


@st.composite
def messages(draw: st.DrawFn) -> ProtocolMessage:
    kind = draw(st.integers(1, 10))
    run, client, number = draw(runs), draw(clients), draw(rounds)
    if kind == 1:
        return draw(announcements())
    if kind == 2:
        return draw(advertisements(run, client, draw(st.integers(1, 3))))
    if kind == 3:
        count = draw(st.integers(1, 3))
        keys = tuple(draw(advertisements(run, peer, count)) for peer in draw(id_lists))
        present = draw(st.binary(max_size=5))
        path = tuple(draw(st.lists(strings(32), max_size=4)))
        graph = (draw(numbers), draw(numbers), present, draw(strings(32)), path)
        return Neighbours(run, client, *graph, keys)
    if kind == 4:
        size = draw(st.integers(1, 90))
        sealed = tuple(draw(st.lists(strings(size), max_size=4)))
        return Shares(run, client, draw(strings(12)), sealed)
    if kind == 5:
        size = draw(st.integers(1, 90))
        shares = [
            SealedShares(peer, draw(strings(12)), draw(strings(size))) for peer in draw(id_lists)
        ]
        return Deliver(run, client, tuple(shares))
    if kind == 7:
        return Survivors(run, number, client, draw(st.binary(max_size=20)))
    if kind == 9:
        return Confirm(run, 1, client, draw(strings(64)))
    if kind == 10:
        return Confirmed(run, 1, client, tuple(draw(st.lists(strings(64), max_size=4))))
    shares_of = st.lists(strings(33), max_size=4).map(tuple)
    return Unmask(run, number, client, draw(shares_of), draw(shares_of))
