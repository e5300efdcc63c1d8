"""What a run costs that is too large to be run: one real client, and samples of the server's work.

The others exist as far as the client and the server see them: all of them have identities and
advertise real keys. What they would deal to the client is sealed with real keys, with random bytes
in the place of shares and pieces, which look the same. Work of the server that is the same for many
messages is timed on a few of them and multiplied by their exact number; work that happens once (the
graph, decoding) is done in full.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from privirec.extra.correlated import messages as noisy
from privirec.extra.correlated.server import CorrelatedServer
from privirec.extra.lightsecagg import messages as light
from privirec.extra.lightsecagg.field import ElementShape
from privirec.extra.lightsecagg.shared import code_of, pieces_context, survivors_statement
from privirec.extra.lightsecagg.thresholds import thresholds
from privirec.extra.lightsecagg.totals import ElementUploads, PieceRelay
from privirec.secagg import (
    ClientPolicy,
    ClientSession,
    Identity,
    Roster,
    ServerModel,
    ServerSession,
    ServerSettings,
    Statement,
    VectorShape,
    keys,
    protocol,
)
from privirec.secagg.announcing import Announcement
from privirec.secagg.bell2020 import messages as bell
from privirec.secagg.messages import addressed, encode
from privirec.secagg.participants import write_participants
from privirec.secagg.prg import MaskGenerator
from privirec.secagg.shamir import PRIME, SHARE_BYTES, check_consistent, combine
from privirec.secagg.uploads import Uploads

SHAPE_BITS = 32
SHARES = (0.05, 0.05)
"""Of corrupt clients and of those who drop out."""
FEW = 4
"""Messages that are timed of each kind."""
OURS = 0
"""The client that is real."""


@dataclass
class Sample:
    """What one sum costs."""

    client_seconds: float = 0.0
    server_seconds: float = 0.0
    opening_seconds: float = 0.0
    """Of the server's, those after the last answer, while everybody waits for the sum."""
    bytes_up: int = 0
    bytes_down: int = 0
    stages: dict[str, Sample] = field(default_factory=dict)
    """What had been spent when a stage was over."""

    def over(self, stage: str) -> None:
        """A stage is over: remember what was spent up to here."""
        self.stages[stage] = replace(self, stages={})

    def client(self, action: Callable[[], Any]) -> Any:
        """Time what the client does."""
        start = time.process_time()
        result = action()
        self.client_seconds += time.process_time() - start
        return result

    def server(self, action: Callable[[], Any], count: float = 1) -> Any:
        """Time what the server does so many times."""
        start = time.process_time()
        result = action()
        self.server_seconds += (time.process_time() - start) * count
        return result

    def each(self, action: Callable[[int], Any], count: float) -> Any:
        """The same for many clients: time it for some of them, after the first has warmed up."""
        first = action(0)
        start = time.process_time()
        for client in range(1, FEW):
            action(client)
        self.server_seconds += (time.process_time() - start) / (FEW - 1) * count
        return first

    def opening(self, action: Callable[[], Any], count: float = 1) -> None:
        """The same for what it does to open the sum."""
        before = self.server_seconds
        self.server(action, count)
        self.opening_seconds += self.server_seconds - before

    def up(self, messages: Iterable[bytes]) -> list[bytes]:
        found = list(messages)
        self.bytes_up += sum(map(len, found))
        return found

    def down(self, message: bytes) -> bytes:
        self.bytes_down += len(message)
        return message


@dataclass
class Crowd:
    """All clients: one session, and the keys of everybody."""

    name: str
    clients: int
    entries: int
    model: ServerModel = ServerModel.SEMI_HONEST
    sums: int = 1
    """That are set up; one of them is done."""
    server: ServerSession = field(init=False)
    client: ClientSession = field(init=False)

    def __post_init__(self) -> None:
        self.identities = [Identity.generate(os.urandom) for _ in range(self.clients)]
        self.roster = Roster({place: one.public for place, one in enumerate(self.identities)})
        self.statement = Statement.of(self.clients, *SHARES, rounds=self.sums, server=self.model)
        self.settings = ServerSettings()
        self.shape = shape_of(self.entries)
        found = protocol(self.name)
        self.server = found.server(
            self.roster, self.statement, [self.shape] * self.sums, self.settings, os.urandom
        )
        session: Any = self.server
        self.announcement = Announcement.read(self.server.announcement, session.exchange)
        self.label = session.exchange.label
        policy = ClientPolicy(proven_sums=True)
        self.client = found.client(OURS, self.identities[OURS], self.roster, policy, os.urandom)
        self.sealing = [os.urandom(32) for _ in range(self.clients)]
        self.dropped = self.statement.dropped
        self.survivors = self.clients - self.dropped

    @property
    def run(self) -> bytes:
        return self.announcement.terms.run

    def advertise(self, sample: Sample, message_of: Callable[[int], bytes]) -> None:
        """Everybody advertises keys, ours in earnest."""
        raw = sample.down(self.server.announcement)
        (ours,) = sample.up([sample.client(lambda: self.client.receive(raw))])
        others = [(client, message_of(client)) for client in range(1, self.clients)]

        def take_all() -> None:
            self.server.receive(OURS, ours)
            for client, message in others:
                self.server.receive(client, message)
            self.server.advance()

        sample.server(take_all)

    def signed(self, client: int, sealing: bytes, masks: bytes) -> bytes:
        statement = keys.advertised_bytes(self.announcement.digest, client, sealing, masks)
        return self.identities[client].sign(statement)

    def first_messages(self, sample: Sample) -> bytes:
        """What the server tells our client, timed on a few."""
        outgoing = self.server.outgoing()
        return sample.down(sample.each(lambda _one: next(outgoing)[1], self.clients))

    def upload(self, sample: Sample, uploads: Uploads) -> None:
        """Our vector, and what it takes to add it up, for everybody who sends one."""
        values = np.arange(self.entries, dtype=np.int64) % 1000
        packed = sample.client(lambda: b"".join(self.client.contribute(1, [values])))
        sample.up([packed])
        sample.each(lambda client: uploads.take(client, packed), self.survivors)


def shape_of(entries: int) -> VectorShape:
    return VectorShape(entries, SHAPE_BITS, 2**SHAPE_BITS - 1, bounds_sum=True)


def sample_bell(
    name: str,
    clients: int,
    entries: int,
    model: ServerModel = ServerModel.SEMI_HONEST,
    sums: int = 1,
) -> Sample:
    """Bell et al. and Bonawitz et al.: `name` says which graph.

    Stages are "set-up", "input" and "unmask".
    """
    crowd, sample = Crowd(name, clients, entries, model, sums), Sample()
    masks = [os.urandom(32) for _ in range(clients)]

    def advertisement(client: int) -> bytes:
        sealing, mask = keys.public_key(crowd.sealing[client]), keys.public_key(masks[client])
        mask *= sums
        signature = crowd.signed(client, sealing, mask)
        return encode(bell.Advertise(crowd.run, client, sealing, mask, signature))

    crowd.advertise(sample, advertisement)
    told = crowd.first_messages(sample)
    (shares,) = sample.up([sample.client(lambda: crowd.client.receive(told))])
    dealt = [addressed(shares, one) for one in range(FEW)]
    sample.each(lambda one: crowd.server.receive(one, dealt[one]), clients)

    neighbours = bell.decode(told)
    assert isinstance(neighbours, bell.Neighbours)
    peers = [key.client for key in neighbours.keys]
    ours = bell.decode(shares)
    assert isinstance(ours, bell.Shares)
    delivered = _delivered(crowd, peers, ours)
    message = sample.each(lambda _one: encode(delivered), clients)
    sample.down(message)
    sample.client(lambda: crowd.client.receive(message))
    sample.over("set-up")

    uploads = Uploads(1, crowd.shape, crowd.settings)
    crowd.upload(sample, uploads)
    sample.over("input")

    complete = len(peers) == clients - 1
    gone = crowd.dropped if complete else len(peers) * crowd.dropped // clients
    strangers = [one for one in range(1, clients) if one not in peers]
    late = {*peers[:gone], *strangers[: crowd.dropped - gone]}
    bitmap = write_participants(set(range(clients)) - late, crowd.roster)
    survivors = encode(bell.Survivors(crowd.run, 1, OURS, bitmap))
    sample.each(lambda one: addressed(survivors, one), crowd.survivors)
    asked = sample.down(survivors)
    (answer,) = sample.up([sample.client(lambda: crowd.client.receive(asked))])
    if crowd.model is ServerModel.ACTIVE:
        told = _confirmed(crowd, sample, answer, peers[gone:])
        (answer,) = sample.up([sample.client(lambda: crowd.client.receive(told))])
    sample.each(lambda _one: bell.decode(answer), crowd.survivors)
    _open_bell(crowd, sample, neighbours, gone, uploads)
    sample.over("unmask")
    return sample


def _confirmed(crowd: Crowd, sample: Sample, answer: bytes, staying: list[int]) -> bytes:
    """The server checks what clients have signed, and passes it on to their neighbours."""
    client: Any = crowd.client
    signed = client._statement()  # a benchmark may look
    ours = bell.decode(answer)
    assert isinstance(ours, bell.Confirm)
    public = crowd.roster[OURS]
    sample.each(lambda _one: keys.verify(public, ours.signature, signed, OURS), crowd.survivors)
    signatures = tuple(crowd.identities[peer].sign(signed) for peer in staying)
    confirmed = bell.Confirmed(crowd.run, 1, OURS, signatures)
    return sample.down(sample.each(lambda _one: encode(confirmed), crowd.survivors))


def _delivered(crowd: Crowd, peers: list[int], ours: bell.Shares) -> bell.Deliver:
    """Shares that neighbours have sealed for our client."""
    public = _our_sealing_key(crowd)
    shares = []
    for peer in peers:
        (agreed,) = keys.agree(crowd.sealing[peer], [public])
        key = keys.sealing_key(crowd.label, agreed, crowd.run, peer, OURS)
        context = keys.shares_context(crowd.announcement.digest, peer, OURS)
        sealed = keys.seal(key, ours.nonce, b"".join(_shares(2 * crowd.sums)), context)
        shares.append(bell.SealedShares(peer, ours.nonce, sealed))
    return bell.Deliver(crowd.run, OURS, tuple(shares))


def _our_sealing_key(crowd: Crowd) -> bytes:
    advertised: Any = crowd.server
    found = advertised._advertised[OURS]  # a benchmark may look
    return bytes(found.sealing_key)


def _shares(count: int) -> list[bytes]:
    return [
        (int.from_bytes(os.urandom(40), "big") % PRIME).to_bytes(SHARE_BYTES, "big")
        for _ in range(count)
    ]


def _open_bell(
    crowd: Crowd, sample: Sample, told: bell.Neighbours, gone: int, uploads: Uploads
) -> None:
    """One secret of everybody is rebuilt, and all masks that are left are made again."""
    degree, threshold = told.neighbours, told.threshold
    rng = np.random.default_rng()  # nothing that was computed before
    secret = bytes(32)

    def rebuild() -> None:
        # A constant polynomial: shares that fit together, from holders of whom no two are alike.
        holders = rng.permutation(degree)[: threshold + 1] + 1
        shares = [(int(holder), b"\0" + secret) for holder in holders]
        if len(shares) > threshold:
            check_consistent(shares)
        combine(shares[:threshold])

    # In the complete graph the same clients answer for all: what it takes to combine their shares
    # depends on how many of them come before the owner, and is remembered.
    complete = degree == crowd.clients - 1
    owners = min(crowd.clients, threshold + 2) if complete else crowd.clients
    sample.opening(lambda: [rebuild() for _ in range(FEW)], owners / FEW)
    left = degree - gone
    pairs = crowd.dropped * left
    publics = [keys.public_key(os.urandom(32)) for _ in range(FEW)]
    sample.opening(lambda: list(keys.agree(os.urandom(32), publics)), pairs / FEW)
    seeds = [os.urandom(32) for _ in range(FEW)]
    total = crowd.survivors + pairs
    step = crowd.settings.block_entries
    generator = MaskGenerator()

    def remove() -> None:
        for offset in range(0, crowd.entries, step):
            generator.subtract(uploads.total[offset : offset + step], offset, seeds)

    sample.opening(remove, total / FEW)


def sample_light(clients: int, entries: int) -> Sample:
    """LightSecAgg."""
    crowd, sample = Crowd("lightsecagg", clients, entries), Sample()

    def advertisement(client: int) -> bytes:
        public = keys.public_key(crowd.sealing[client])
        key = light.SignedKey(public, crowd.signed(client, public, b""))
        return encode(light.LightAdvertise(crowd.run, client, key))

    crowd.advertise(sample, advertisement)
    told = crowd.first_messages(sample)
    (pieces,) = sample.up([sample.client(lambda: crowd.client.receive(told))])
    dealt = [addressed(pieces, one) for one in range(FEW)]
    sample.each(lambda one: crowd.server.receive(one, dealt[one]), clients)
    crowd.upload(sample, ElementUploads(1, ElementShape(crowd.shape), crowd.settings))

    staying = [OURS, *range(1 + crowd.dropped, clients)]
    bitmap = write_participants(staying, crowd.roster)
    survivors = encode(light.LightSurvivors(crowd.run, 1, OURS, bitmap))
    sample.each(lambda one: addressed(survivors, one), crowd.survivors)
    sample.down(survivors)
    (confirmed,) = sample.up([sample.client(lambda: crowd.client.receive(survivors))])
    everybody = write_participants(range(clients), crowd.roster)
    statement = survivors_statement(crowd.announcement.digest, everybody, bitmap)
    signature = light.decode(confirmed)
    assert isinstance(signature, light.LightConfirm)
    public = crowd.roster[OURS]
    sample.each(
        lambda _one: keys.verify(public, signature.signature, statement, OURS), crowd.survivors
    )
    opening = _opening(crowd, sample, staying, statement, pieces)
    message = sample.each(lambda _one: encode(opening), crowd.survivors)
    sample.down(message)
    (answer,) = sample.up([sample.client(lambda: crowd.client.receive(message))])
    _open_light(crowd, sample, staying, answer)
    return sample


def _opening(
    crowd: Crowd, sample: Sample, staying: list[int], statement: bytes, ours: bytes
) -> light.Open:
    """Pieces of all survivors for our client, and the signatures it wants to see."""
    rule = thresholds(crowd.statement)
    code = code_of(crowd.shape, crowd.clients, rule)
    signers = staying[: rule.quorum]
    signatures = tuple(crowd.identities[client].sign(statement) for client in signers)
    everybody = write_participants(range(crowd.clients), crowd.roster)
    context = pieces_context(crowd.announcement.digest, 1, everybody)
    public = _our_light_key(crowd)
    piece = code.field.pack(code.mask(os.urandom(32), 0, code.columns))
    nonce = os.urandom(12)
    parts = []
    for sender in staying[1:]:
        (agreed,) = keys.agree(crowd.sealing[sender], [public])
        key = keys.sealing_key(crowd.label, agreed, crowd.run, sender, OURS)
        bound_to = keys.shares_context(context, sender, OURS)
        parts += (nonce, keys.seal(key, nonce, piece, bound_to))
    dealt = light.decode(ours)
    assert isinstance(dealt, light.Pieces)
    # Everybody's pieces are the same bytes here: they are read and sorted as if they were not.
    relay = PieceRelay(None, range(crowd.clients))
    for sender in staying:
        relay.put(sender, nonce, dealt.sealed)
    size = len(dealt.sealed) // dealt.count * len(staying)
    some = staying[: max(1, (1 << 26) // size)]
    sample.each(
        lambda _one: [None for _ in relay.deliveries(some, staying)], len(staying) / len(some)
    )
    return light.Open(
        crowd.run,
        1,
        OURS,
        write_participants(signers, crowd.roster),
        signatures,
        len(staying) - 1,
        b"".join(parts),
    )


def _our_light_key(crowd: Crowd) -> bytes:
    server: Any = crowd.server
    return bytes(server._advertised[OURS].sealing_key)  # a benchmark may look


def _open_light(crowd: Crowd, sample: Sample, staying: list[int], answer: bytes) -> None:
    """All answers are read, and the sum of all masks is decoded once, in full."""
    code = code_of(crowd.shape, crowd.clients, thresholds(crowd.statement))
    elements = ElementShape(crowd.shape)

    def read(_one: int) -> None:
        message = light.decode(answer)
        assert isinstance(message, light.LightAnswer)
        code.field.unpack(message.packed, code.columns)

    sample.each(read, crowd.survivors)
    nothing = np.zeros(code.columns, np.uint64)
    answers = dict.fromkeys(staying, nothing)
    uploads = ElementUploads(1, elements, crowd.settings)

    def open_sum() -> None:
        uploads.remove_masks(code, answers)
        for _ in uploads.opened_blocks(lambda _offset, _block: None):
            pass

    sample.opening(open_sum)


def sample_correlated(clients: int, entries: int) -> Sample:
    """Averaging with correlated noise: nothing is asked of anybody after the vectors."""
    crowd, sample = Crowd("correlated-noise", clients, entries), Sample()
    server = crowd.server
    assert isinstance(server, CorrelatedServer)

    def advertisement(client: int) -> bytes:
        public = keys.public_key(crowd.sealing[client])
        return encode(noisy.Advertise(crowd.run, client, public, crowd.signed(client, public, b"")))

    crowd.advertise(sample, advertisement)
    told = crowd.first_messages(sample)
    sample.client(lambda: crowd.client.receive(told))
    uploads = Uploads(1, server.wire_shape(1), crowd.settings)
    crowd.upload(sample, uploads)

    def open_sum() -> None:
        for block in uploads.opened_blocks(lambda _offset, _block: None):
            server.in_announced_units(1, block)

    sample.opening(open_sum)
    return sample


def samplers() -> dict[str, Callable[[int, int], Sample]]:
    """Protocol -> (clients, entries) -> what a run costs. A protocol without one is only measured
    where all its clients can be run."""
    return {
        "secagg+": lambda clients, entries: sample_bell("secagg+", clients, entries),
        "secagg": lambda clients, entries: sample_bell("secagg", clients, entries),
        "lightsecagg": sample_light,
        "correlated-noise": sample_correlated,
    }
