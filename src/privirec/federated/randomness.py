"""Randomness of a client's noise: secret, and readable in any order.

A client has one 32-byte seed per run, and derives one stream from it for each sum. Entry i of a
stream is the little-endian 64-bit word at byte 8 i of the AES-256-CTR key stream, counter from 0,
under a key that HKDF-SHA-256 derives from the seed, the number of the sum and its name. A stream
can be read from any entry on, so noise does not depend on how a vector is cut into blocks.

NumPy's generators are not used here: anyone who can predict noise can subtract it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from privirec.errors import FederationError, UsageError
from privirec.federated.dp.mechanism import NoiseSampler

SEED_BYTES = 32

_DOMAIN = b"privirec/client-stream/1\0"
_NOISE_DOMAIN = b"privirec/client-noise/1\0"
_INSECURE_DOMAIN = b"privirec/insecure-client-seed/1\0"
_AES_BLOCK = 16
_WORD = 8
_BEFORE_ALL_SUMS = 0


HeldOutWords = tuple[NDArray[np.uint64], NDArray[np.uint64]]
"""Random words of one client: one for each of its users, and one for each of their items."""


class RandomStream:
    """Secret random words of one client for one sum. Keys are derived only when it is read."""

    def __init__(self, seed: bytes, purpose: bytes) -> None:
        self._seed = seed
        self._purpose = purpose

    def __repr__(self) -> str:
        return "RandomStream(<redacted>)"

    @cached_property
    def _key(self) -> bytes:
        return HKDF(SHA256(), SEED_BYTES, None, _DOMAIN + self._purpose).derive(self._seed)

    @cached_property
    def _noise_key(self) -> bytes:
        return HKDF(SHA256(), SEED_BYTES, None, _NOISE_DOMAIN + self._purpose).derive(self._seed)

    def without_noise(self) -> RandomStream:
        """Return the stream of a client to whose vector others add the noise."""
        return _WithoutNoise(self._seed, self._purpose)

    def add_noise(self, sampler: NoiseSampler, block: NDArray[np.int64], start: int) -> None:
        """Add the noise of entries start ... start + len(block), from a separate key."""
        sampler.add(block, start, [self._noise_key])

    def words(self, start: int, count: int) -> NDArray[np.uint64]:
        """Return entries start ... start + count, uniform over all 64-bit integers."""
        counter, skip = divmod(start * _WORD, _AES_BLOCK)
        nonce = modes.CTR(counter.to_bytes(_AES_BLOCK, "big"))
        stream = Cipher(algorithms.AES256(self._key), nonce).encryptor()
        return np.frombuffer(stream.update(bytes(skip + count * _WORD)), "<u8", offset=skip)


class _WithoutNoise(RandomStream):
    """Random words of a client that adds no noise."""

    def add_noise(self, sampler: NoiseSampler, block: NDArray[np.int64], start: int) -> None:
        """Add nothing: the servers add the noise to the sum."""


class ClientRandomness:
    """A client's source of randomness in one run. Its seed must never be used for two runs."""

    def __init__(self, seed: bytes, *, secret: bool = True) -> None:
        if len(seed) != SEED_BYTES:
            raise UsageError(f"a seed of {len(seed)} bytes where {SEED_BYTES} are needed")
        self._seed = seed
        self.secret = secret

    def __repr__(self) -> str:
        return "ClientRandomness(<redacted>)"

    @classmethod
    def fresh(cls, random_bytes: Callable[[int], bytes] = os.urandom) -> ClientRandomness:
        return cls(random_bytes(SEED_BYTES))

    @classmethod
    def insecure(cls, seed: int, client: int) -> ClientRandomness:
        """Return randomness that anyone who knows the two numbers can reproduce.

        It is for repeatable runs on one machine, which holds all histories anyway.
        """
        text = f"{seed}/{client}".encode()
        return cls(hashlib.shake_256(_INSECURE_DOMAIN + text).digest(SEED_BYTES), secret=False)

    def held_out_words(self, n_users: int, n_interactions: int) -> HeldOutWords:
        """Return the words by which a client chooses its users' held-out items in this run.

        They are secret to the client, like noise. A server that knew or chose which users hold out
        which items could request degrees over any group of people, item by item, and subtract.
        """
        words = self.stream(_BEFORE_ALL_SUMS, "held-out").words(0, n_users + n_interactions)
        return words[:n_users], words[n_users:]

    def stream(self, number: int, name: str) -> RandomStream:
        """Return the stream of a sum, by its number in the run (from 1) and its name."""
        return RandomStream(self._seed, number.to_bytes(8, "big") + name.encode())


@dataclass(frozen=True)
class ClientStream:
    """A client of a simulated cohort: its users, and its stream for the current sum."""

    first_user: int
    n_users: int
    stream: RandomStream
    clients: int = 1
    """Number of clients that it represents; the noise of all of them is drawn at once."""


class _NoRandomness(RandomStream):
    """Randomness of contributions without noise; reading it is an error."""

    def __init__(self) -> None:
        super().__init__(b"", b"")

    def __repr__(self) -> str:
        return "NO_RANDOMNESS"

    def words(self, start: int, count: int) -> NoReturn:
        raise FederationError("a contribution with noise was given no randomness")

    def add_noise(self, sampler: NoiseSampler, block: NDArray[np.int64], start: int) -> None:
        raise FederationError("a contribution with noise was given no randomness")

    def __iter__(self) -> Iterator[ClientStream]:
        raise FederationError("a contribution with noise was given no randomness")


NO_RANDOMNESS = _NoRandomness()
