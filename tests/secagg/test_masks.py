"""Tests of masks: each kind hides a vector by itself, if all secrets of the other kind are known.

Together the two kinds would hide a vector even if one were missing, so a test of their sum detects
nothing. These tests give the server all seeds, and it must still see noise; likewise with all mask
keys. A client that omits either kind must be caught by the same tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import chisquare

from privirec.secagg import LocalFederation, ServerModel, VectorShape, keys
from privirec.secagg.bell2020 import BellClient
from privirec.secagg.keys import KEY_BYTES
from privirec.secagg.prg import MaskGenerator
from secagg.testing import InsecureSeededBytes

WIDTH, LENGTH, CLIENTS, RUNS = 4, 64, 6, 30
SHAPE = VectorShape(LENGTH, WIDTH, bound=2)
ENTRY = 1
"""Value of all entries of every vector; an unmasked vector would repeat it."""


@dataclass
class Upload:
    """A client's upload, and the secrets behind its masks."""

    sent: np.ndarray
    session: BellClient
    seed: bytes
    private: bytes


class Seen:
    """Runs whose secrets the test knows: uploads and their masks."""

    def __init__(self, server: ServerModel) -> None:
        self.runs = [self._run(number, server) for number in range(RUNS)]

    def _run(self, number: int, server: ServerModel) -> list[Upload]:
        sent: dict[int, np.ndarray] = {}

        def observe(direction: str, client: int, message: bytes) -> None:
            if direction == "vector":
                sent[client] = SHAPE.ring.unpack(message, LENGTH)

        federation = LocalFederation(
            *("secagg+", CLIENTS, [SHAPE]),
            corrupt_share=0.1,
            dropped_share=0.17,
            server=server,
            random_bytes=InsecureSeededBytes(f"masks {number}"),
            observe=observe,
        )
        found = []
        for one in federation.clients:
            assert isinstance(one, BellClient)
            # Secrets are wiped when a sum is answered: keep them from before.
            secrets = (one.state.seeds.reveal(), one.state.mask_privates.reveal())
            found.append(Upload(np.empty(0), one, *secrets))
        federation.sum(lambda _client: [np.full(LENGTH, ENTRY)])
        for client, upload in enumerate(found):
            upload.sent = sent[client]
        return found

    def without_self_masks(self) -> np.ndarray:
        """Return every vector after removal of the self masks, with all seeds known. Shape (runs,
        clients, entries)."""
        return self._left(self._take_self_mask)

    def without_common_masks(self) -> np.ndarray:
        """Return every vector after removal of the common masks, with all mask keys known."""
        return self._left(self._take_common_masks)

    def _left(self, take: Callable[[np.ndarray, Upload], None]) -> np.ndarray:
        rows = []
        for run in self.runs:
            for upload in run:
                left = upload.sent.copy()
                take(left, upload)
                rows.append(SHAPE.ring.reduce(left))
        return np.stack(rows).reshape(RUNS, CLIENTS, LENGTH)

    @staticmethod
    def _take_self_mask(left: np.ndarray, upload: Upload) -> None:
        MaskGenerator().subtract(left, 0, [upload.seed])

    @staticmethod
    def _take_common_masks(left: np.ndarray, upload: Upload) -> None:
        session = upload.session
        state, run = session.state, session.announcement.terms.run
        publics = [
            state.peer_mask_keys[KEY_BYTES * place : KEY_BYTES * (place + 1)]
            for place in range(len(state.peers))
        ]
        for peer, agreed in zip(state.peers, keys.agree(upload.private, publics), strict=True):
            seed = keys.mask_seed(session.exchange.label, agreed, run, 1, session.client, peer)
            generator = MaskGenerator()
            remove = generator.subtract if session.client < peer else generator.add
            remove(left, 0, [seed])


def looks_hidden(left: np.ndarray) -> bool:
    """Check that values are uniform, without repeated or missing masks, and differ between clients
    and runs."""
    values = 1 << WIDTH
    by_client = [
        np.bincount(left[:, client].ravel(), minlength=values) for client in range(CLIENTS)
    ]
    pairs = left[..., 0::2].ravel().astype(int) * values + left[..., 1::2].ravel()
    differences = (left[:, 1:].astype(int) - left[:, :-1]) % values
    across_runs = (left[1:].astype(int) - left[:-1]) % values
    rows = {row.tobytes() for row in left.reshape(-1, LENGTH)}
    return len(rows) == RUNS * CLIENTS and all(
        chisquare(counts).pvalue > 1e-6
        for counts in (
            *by_client,
            np.bincount(pairs, minlength=values * values),
            np.bincount(differences.ravel(), minlength=values),
            np.bincount(across_runs.ravel(), minlength=values),
        )
    )


@pytest.mark.parametrize("server", ServerModel)
def test_common_masks_hide_a_vector_from_who_knows_all_seeds(server: ServerModel) -> None:
    assert looks_hidden(Seen(server).without_self_masks())


@pytest.mark.parametrize("server", ServerModel)
def test_the_own_mask_hides_a_vector_from_who_knows_all_mask_keys(server: ServerModel) -> None:
    assert looks_hidden(Seen(server).without_common_masks())


def test_taking_both_away_leaves_the_vector() -> None:
    """Test that the test knows the right secrets."""
    for upload in Seen(ServerModel.SEMI_HONEST).runs[0]:
        left = upload.sent.copy()
        Seen._take_self_mask(left, upload)
        Seen._take_common_masks(left, upload)
        assert SHAPE.ring.reduce(left).tolist() == [ENTRY] * LENGTH


# --- clients that omit a mask ---------------------------------------------------------------------

ORIGINAL = BellClient.mask_seeds


def without_common(self: BellClient, number: int, asked: bytes) -> tuple[list[bytes], list[bytes]]:
    add, _ = ORIGINAL(self, number, asked)
    return add[:1], []


def without_own(self: BellClient, number: int, asked: bytes) -> tuple[list[bytes], list[bytes]]:
    add, subtract = ORIGINAL(self, number, asked)
    return add[1:], subtract


def same_own_for_all(
    self: BellClient, number: int, asked: bytes
) -> tuple[list[bytes], list[bytes]]:
    add, subtract = ORIGINAL(self, number, asked)
    return [bytes(32), *add[1:]], subtract


MUTANTS = {
    "no common masks": (without_common, Seen.without_self_masks),
    "no own mask": (without_own, Seen.without_common_masks),
    "one own mask for all": (same_own_for_all, Seen.without_common_masks),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_client_that_leaves_out_masks_of_a_kind_is_noticed(
    mutant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, look = MUTANTS[mutant]
    monkeypatch.setattr(BellClient, "mask_seeds", change)
    # The sum is not opened, as it would be wrong: only the uploads count.
    monkeypatch.setattr(LocalFederation, "sum", upload_only)
    assert not looks_hidden(look(Seen(ServerModel.SEMI_HONEST)))


def upload_only(self: LocalFederation, vector_of: Callable[[int], list[np.ndarray]]) -> None:
    for client, message in self.server.outgoing():
        self.clients[client].receive(message)
        packed = b"".join(self.clients[client].contribute(1, vector_of(client)))
        self._observe("vector", client, packed)  # type: ignore[misc]
