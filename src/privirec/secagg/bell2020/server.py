"""The server: carries messages, adds masked vectors, takes the masks away that are left."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

from privirec.errors import UsageError
from privirec.secagg import keys
from privirec.secagg.bell2020.shared import COHORT_CHANGED, PAIR_BYTES, Scheme, least_participants
from privirec.secagg.errors import (
    BadKey,
    BadShare,
    BelowThreshold,
    BrokenUpload,
    CohortChanged,
    CohortTooSmall,
    OutOfOrder,
    ProtocolError,
    ReplayedMessage,
    RingTooNarrow,
    Stranger,
    TooManyDropped,
    WrongRun,
)
from privirec.secagg.graph import graph_seed, ranks_among_neighbours, ring_graph, write_participants
from privirec.secagg.keys import KEY_BYTES, TAG_BYTES, Roster
from privirec.secagg.messages import (
    MAX_BLOCK_ENTRIES,
    MAX_ROUNDS,
    RUN_BYTES,
    Advertise,
    Announce,
    Deliver,
    Masked,
    Neighbours,
    SealedShares,
    Shares,
    Survivors,
    Unmask,
    decode,
    encode,
)
from privirec.secagg.parameters import Parameters, Statement
from privirec.secagg.prg import MaskGenerator
from privirec.secagg.protocol import Phase, ServerSession, ServerSettings, zeros
from privirec.secagg.randomness import RandomBytes
from privirec.secagg.ring import BLOCK_ALIGNMENT, VectorShape, Words
from privirec.secagg.shamir import check_consistent, combine


class BellServer(ServerSession):
    """A server that sees masked vectors and, of each client, one of its two secrets."""

    def __init__(
        self,
        scheme: Scheme,
        *,
        roster: Roster,
        statement: Statement,
        shapes: Sequence[VectorShape],
        settings: ServerSettings,
        random_bytes: RandomBytes,
    ) -> None:
        check_settings(roster, statement, shapes, settings)
        scheme.parameters(statement)  # refuse what cannot work before anybody is asked
        self._scheme = scheme
        self._roster = roster
        self._statement = statement
        self._shapes = tuple(shapes)
        self._settings = settings
        self._run = random_bytes(RUN_BYTES)
        self.announcement = encode(
            Announce(
                self._run,
                scheme.code,
                statement,
                settings.min_cohort,
                settings.block_entries,
                roster.digest,
                self._shapes,
            )
        )
        self._digest = hashlib.sha256(self.announcement).digest()
        self.phase = Phase.SETUP
        self.round_number = 1
        self._advertised: dict[int, Advertise] = {}
        # Filled when the advertising stage ends. From then on a client is its place in `_ids`.
        self._ids: NDArray[np.uint32] = np.empty(0, np.uint32)
        self._places: dict[int, int] = {}
        self._parameters = Parameters(0, 0)
        self._neighbours: NDArray[np.int64] = np.empty((0, 0), np.int64)
        self._ranks: NDArray[np.int64] = np.empty((0, 0), np.int64)
        self._shares: dict[int, tuple[bytes, bytes]] = {}
        self._active: NDArray[np.bool_] = np.empty(0, np.bool_)
        self._survived: NDArray[np.bool_] = np.empty(0, np.bool_)
        # Of the round that is being summed.
        self._sum: Words = np.empty(0, np.uint8)
        self._uploads: dict[int, _Upload] = {}
        self._arrived: set[int] = set()
        self._answered: set[int] = set()
        self._collected: dict[int, list[tuple[int, bytes]]] = {}

    def __repr__(self) -> str:
        return f"<{self._scheme.name} server, {self.phase.value}, round {self.round_number}>"

    @property
    def parameters(self) -> Parameters:
        return self._parameters

    @property
    def survivors(self) -> tuple[int, ...]:
        return tuple(self._ids[self._survived].tolist())

    def waiting_for(self) -> set[int]:
        if self.phase is Phase.SETUP:
            if not len(self._ids):
                return set(self._roster) - self._advertised.keys()
            return self._clients(set(range(len(self._ids))) - self._shares.keys())
        if self.phase is Phase.INPUT:
            return self._clients(set(np.flatnonzero(self._active).tolist()) - self._arrived)
        if self.phase is Phase.UNMASK:
            return self._clients(set(np.flatnonzero(self._survived).tolist()) - self._answered)
        return set()

    def receive(self, client: int, message: bytes) -> None:
        received = decode(message)
        if received.run != self._run:
            raise WrongRun("a message of another run")
        if received.client != client:
            raise WrongRun(f"client {client} sends a message of client {received.client}")
        if isinstance(received, Advertise):
            self._take_keys(received)
        elif isinstance(received, Shares):
            self._take_shares(received)
        elif isinstance(received, Masked):
            self._take_block(received)
        elif isinstance(received, Unmask):
            self._take_answer(received)
        else:
            raise OutOfOrder(f"{type(received).__name__} is not for the server")

    def advance(self) -> Iterator[tuple[int, bytes]]:
        if self.phase is Phase.SETUP:
            return self._form_graph() if not len(self._ids) else self._forward_shares()
        if self.phase is Phase.INPUT:
            return self._fix_survivors()
        raise OutOfOrder(f"there is nothing to send in the phase {self.phase.value!r}")

    def open_sum(self) -> Words:
        total = self._sum
        for _ in self.open_blocks():
            pass
        return total

    # --- set-up -----------------------------------------------------------------------------------

    def _take_keys(self, message: Advertise) -> None:
        client = message.client
        if client in self._advertised:
            raise ReplayedMessage(f"client {client} has advertised its keys")
        if self.phase is not Phase.SETUP or len(self._ids):
            raise OutOfOrder(f"client {client} advertises its keys too late")
        if client not in self._roster:
            raise Stranger(f"client {client} is not in the roster")
        if len(message.mask_keys) != self._statement.rounds * KEY_BYTES:
            raise BadKey(f"client {client} has not got one key for each round")
        keys.check_publics(message.sealing_key + message.mask_keys, client)
        signed = keys.advertised_bytes(self._digest, client, message.sealing_key, message.mask_keys)
        keys.verify(self._roster[client], message.signature, signed, client)
        self._advertised[client] = message

    def _form_graph(self) -> Iterator[tuple[int, bytes]]:
        size = len(self._advertised)
        least = max(self._settings.min_cohort, least_participants(self._statement))
        if size < least:
            self._abort(CohortTooSmall(f"{size} clients answered, {least} are needed"))
        try:
            self._parameters = self._scheme.parameters(self._statement.with_clients(size))
        except ProtocolError as error:
            self._abort(error)
        self._ids = np.array(sorted(self._advertised), np.uint32)
        self._places = {client: place for place, client in enumerate(self._ids.tolist())}
        participants = write_participants(self._places, self._roster)
        self._neighbours = self._draw_graph(participants)
        self._ranks = ranks_among_neighbours(self._neighbours)
        return self._neighbour_messages(participants)

    def _draw_graph(self, participants: bytes) -> NDArray[np.int64]:
        seed = graph_seed(self._digest, participants)
        return ring_graph(len(self._ids), self._parameters.neighbours, seed).all_neighbours()

    def _neighbour_messages(self, participants: bytes) -> Iterator[tuple[int, bytes]]:
        for client, place in self._places.items():
            peers = self._ids[self._neighbours[place]].tolist()
            message = Neighbours(
                self._run,
                client,
                self._parameters.neighbours,
                self._parameters.threshold,
                participants,
                tuple(self._advertised[peer] for peer in peers),
            )
            yield client, encode(message)

    def _take_shares(self, message: Shares) -> None:
        place = self._place(message.client)
        if place in self._shares or (self.phase is not Phase.SETUP and self._active[place]):
            raise ReplayedMessage(f"client {message.client} has sent its shares")
        if self.phase is not Phase.SETUP:
            raise OutOfOrder(f"client {message.client} sends its shares too late")
        size = self._statement.rounds * PAIR_BYTES + TAG_BYTES
        if [len(sealed) for sealed in message.sealed] != [size] * self._parameters.neighbours:
            raise BadShare(f"client {message.client} has not sent shares for all its neighbours")
        # One string a client: thousands of small objects each would fill the memory.
        self._shares[place] = (message.nonce, b"".join(message.sealed))

    def _forward_shares(self) -> Iterator[tuple[int, bytes]]:
        self._active = np.zeros(len(self._ids), np.bool_)
        self._active[list(self._shares)] = True
        self._check_enough(int(self._active.sum()))
        shares, self._shares = self._shares, {}
        self._begin_round()
        return self._share_messages(shares)

    def _share_messages(
        self, shares: dict[int, tuple[bytes, bytes]]
    ) -> Iterator[tuple[int, bytes]]:
        size = self._statement.rounds * PAIR_BYTES + TAG_BYTES
        for place in np.flatnonzero(self._active).tolist():
            delivered = []
            ranks = self._ranks[place].tolist()
            for peer, rank in zip(self._neighbours[place].tolist(), ranks, strict=True):
                if peer in shares:
                    nonce, sealed = shares[peer]
                    part = sealed[size * rank : size * (rank + 1)]
                    delivered.append(SealedShares(int(self._ids[peer]), nonce, part))
            client = int(self._ids[place])
            yield client, encode(Deliver(self._run, client, tuple(delivered)))

    # --- rounds -----------------------------------------------------------------------------------

    def _begin_round(self) -> None:
        self.phase = Phase.INPUT
        shape = self._shapes[self.round_number - 1]
        self._sum = (self._settings.accumulator or zeros)(self.round_number, shape)
        if self._sum.shape != (shape.length,) or self._sum.dtype != shape.ring.dtype:
            raise UsageError(f"the accumulator must hold {shape.length} {shape.ring.dtype} words")
        self._uploads.clear()
        self._arrived.clear()
        self._answered.clear()
        self._collected.clear()

    def _take_block(self, message: Masked) -> None:
        place = self._in_round(message, Phase.INPUT, self._arrived)
        shape = self._shapes[self.round_number - 1]
        upload = self._uploads.get(place)
        begun = upload.received if upload else 0
        if message.offset < begun:
            raise ReplayedMessage(f"client {message.client} has sent this block")
        if message.offset > begun:
            raise OutOfOrder(f"client {message.client} has not sent the block before")
        count = min(self._settings.block_entries, shape.length - begun)
        block = shape.ring.unpack(message.packed, count)
        last = begun + count == shape.length
        if upload is None and not last:
            spool = self._settings.spool() if self._settings.spool else None
            upload = self._uploads[place] = _Upload(spool)
        if upload is None or upload.spool is None:
            self._add(begun, block)
        else:
            upload.spool.write(message.packed)
        if upload:
            upload.received += count
        if last:
            if upload and upload.spool:
                self._add_spooled(upload.spool)
            self._uploads.pop(place, None)
            self._arrived.add(place)

    def _add(self, offset: int, block: Words) -> None:
        part = self._sum[offset : offset + len(block)]
        np.add(part, block, out=part)

    def _add_spooled(self, spool: BinaryIO) -> None:
        shape = self._shapes[self.round_number - 1]
        spool.seek(0)
        for offset in range(0, shape.length, self._settings.block_entries):
            count = min(self._settings.block_entries, shape.length - offset)
            packed = spool.read(shape.ring.packed_bytes(count))
            self._add(offset, shape.ring.unpack(packed, count))
        spool.close()

    def _fix_survivors(self) -> Iterator[tuple[int, bytes]]:
        if any(upload.spool is None for upload in self._uploads.values()):
            self._abort(
                BrokenUpload(
                    "a client stopped in the middle of its upload, which was added as it came: "
                    "give the server a spool to survive that"
                )
            )
        survived = np.zeros(len(self._ids), np.bool_)
        survived[list(self._arrived)] = True
        lost = int(self._active.sum()) - len(self._arrived)
        if self.round_number > 1 and lost and not self._settings.allow_cohort_change:
            self._abort(
                CohortChanged(
                    f"{lost} clients are missing in round {self.round_number}: " + COHORT_CHANGED
                )
            )
        self._check_enough(len(self._arrived))
        self._survived = survived
        self.phase = Phase.UNMASK
        return self._survivor_messages()

    def _survivor_messages(self) -> Iterator[tuple[int, bytes]]:
        cohort = len(self._arrived)
        for place in np.flatnonzero(self._survived).tolist():
            survivors, dropped = self._lists(place)
            client = int(self._ids[place])
            message = Survivors(
                self._run,
                self.round_number,
                client,
                cohort,
                tuple(self._ids[survivors].tolist()),
                tuple(self._ids[dropped].tolist()),
            )
            yield client, encode(message)

    def _lists(self, place: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Neighbours of a client whose inputs arrived, and those whose inputs did not."""
        peers = self._neighbours[place]
        survived = self._survived[peers]
        return peers[survived], peers[self._active[peers] & ~survived]

    def _take_answer(self, message: Unmask) -> None:
        place = self._in_round(message, Phase.UNMASK, self._answered)
        if not self._survived[place]:
            raise Stranger(f"client {message.client} is not in the sum of this round")
        survivors, dropped = self._lists(place)
        if len(message.seed_shares) != len(survivors) or len(message.key_shares) != len(dropped):
            raise BadShare(f"client {message.client} has not answered for all its neighbours")
        self._answered.add(place)
        rank_at = dict(
            zip(self._neighbours[place].tolist(), self._ranks[place].tolist(), strict=True)
        )
        owners = survivors.tolist() + dropped.tolist()
        shares = message.seed_shares + message.key_shares
        for owner, share in zip(owners, shares, strict=True):
            collected = self._collected.setdefault(owner, [])
            # One more than needed, to see whether they fit together.
            if len(collected) <= self._parameters.threshold:
                collected.append((rank_at[owner] + 1, share))

    def open_blocks(self) -> Iterator[Words]:
        if self.phase is not Phase.UNMASK:
            raise OutOfOrder(f"there is nothing to open in the phase {self.phase.value!r}")
        add, subtract = self._seeds_to_remove()
        total, shape = self._sum, self._shapes[self.round_number - 1]
        self._active = self._survived.copy()
        self._collected.clear()
        if self.round_number == len(self._shapes):
            self.phase = Phase.DONE
            self._sum = np.empty(0, np.uint8)
        else:
            self.round_number += 1
            self._begin_round()
        return self._unmasked_blocks(total, shape, add, subtract)

    def _unmasked_blocks(
        self, total: Words, shape: VectorShape, add: list[bytes], subtract: list[bytes]
    ) -> Iterator[Words]:
        generator = MaskGenerator()
        step = self._settings.block_entries
        for offset in range(0, shape.length, step):
            block = total[offset : offset + step]
            generator.add(block, offset, add)
            generator.subtract(block, offset, subtract)
            yield shape.ring.reduce(block)

    def _seeds_to_remove(self) -> tuple[list[bytes], list[bytes]]:
        """Seeds of the masks that are left in the sum: (to add, to subtract)."""
        needed = self._parameters.threshold
        add: list[bytes] = []
        subtract: list[bytes] = []
        for owner in np.flatnonzero(self._active).tolist():
            shares = self._collected.get(owner, [])
            if not self._survived[owner] and not self._survived[self._neighbours[owner]].any():
                continue  # nobody in the sum has a mask with this client
            if len(shares) < needed:
                self._abort(
                    BelowThreshold(
                        f"{len(shares)} shares of a secret of client {self._ids[owner]} are left "
                        f"and {needed} are needed: no sum is opened"
                    )
                )
            try:
                if len(shares) > needed:
                    check_consistent(shares)
                (secret,) = combine(shares[:needed])
            except BadShare as error:
                self._abort(error)
            if self._survived[owner]:
                subtract.append(secret)
            else:
                self._remove_pairs(owner, secret, add, subtract)
        return add, subtract

    def _remove_pairs(
        self, owner: int, private: bytes, add: list[bytes], subtract: list[bytes]
    ) -> None:
        """Masks that the survivors made with one who dropped."""
        number, client = self.round_number, int(self._ids[owner])
        if keys.public_key(private) != self._mask_key(client):
            self._abort(BadShare(f"the opened key of client {client} is not the advertised one"))
        peers = self._neighbours[owner]
        survivors = self._ids[peers[self._survived[peers]]].tolist()
        publics = (self._mask_key(peer) for peer in survivors)
        for peer, agreed in zip(survivors, keys.agree(private, publics), strict=True):
            seed = keys.mask_seed(agreed, self._run, number, client, peer)
            # The survivor added it if it is the lower of the two; take back what it did.
            (subtract if peer < client else add).append(seed)

    # --- helpers ----------------------------------------------------------------------------------

    def _mask_key(self, client: int) -> bytes:
        start = (self.round_number - 1) * KEY_BYTES
        return self._advertised[client].mask_keys[start : start + KEY_BYTES]

    def _clients(self, places: set[int]) -> set[int]:
        return set(self._ids[sorted(places)].tolist()) if places else set()

    def _place(self, client: int) -> int:
        if client not in self._places:
            raise OutOfOrder(f"client {client} takes no part in this run")
        return self._places[client]

    def _in_round(self, message: Masked | Unmask, phase: Phase, done: set[int]) -> int:
        """Place of the sender, if this is the round and the phase for its message."""
        place = self._place(message.client)
        if message.round_number != self.round_number or phase is not self.phase:
            raise OutOfOrder(f"client {message.client} is in another round or phase")
        if place in done:
            raise ReplayedMessage(f"client {message.client} has sent this message")
        if not self._active[place]:
            raise Stranger(f"client {message.client} dropped out of this run")
        return place

    def _check_enough(self, left: int) -> None:
        least = self._settings.min_cohort
        if left < least:
            self._abort(CohortTooSmall(f"{left} clients are left, {least} are needed"))
        size = len(self._ids)
        allowed = self._statement.with_clients(size).dropped
        if left < size - allowed:
            self._abort(TooManyDropped(f"{size - left} of {size} clients dropped, {allowed} may"))

    def _abort(self, error: ProtocolError) -> NoReturn:
        self.phase = Phase.ABORTED
        self._sum = np.empty(0, np.uint8)
        self._collected.clear()
        self._shares.clear()
        self._uploads.clear()
        raise error


@dataclass(slots=True)
class _Upload:
    """A vector that is still arriving."""

    spool: BinaryIO | None
    received: int = 0


def check_settings(
    roster: Roster, statement: Statement, shapes: Sequence[VectorShape], settings: ServerSettings
) -> None:
    """Refuse a run that no client should accept, before it is announced."""
    if not 1 <= len(shapes) <= MAX_ROUNDS or statement.rounds != len(shapes):
        raise UsageError(f"{statement.rounds} rounds are stated and {len(shapes)} described")
    if statement.clients != len(roster):
        raise UsageError(f"{statement.clients} clients are stated, the roster has {len(roster)}")
    entries = settings.block_entries
    if not 0 < entries <= MAX_BLOCK_ENTRIES or entries % BLOCK_ALIGNMENT:
        raise UsageError(f"blocks have a multiple of {BLOCK_ALIGNMENT} entries, not {entries}")
    for shape in shapes:
        if not shape.holds(len(roster)):
            raise RingTooNarrow(
                f"{len(roster)} entries of magnitude {shape.bound} can overflow {shape.width} bits"
            )
