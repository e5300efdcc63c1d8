"""Where the randomness of a client's noise comes from: its own, secret, and readable in any order.

A client has one 32-byte seed for a run, and from it one stream for each sum. Entry i of a stream is
the little-endian 64-bit word at byte 8 i of the AES-256-CTR key stream, counter from 0, under a key
that HKDF-SHA-256 derives from the seed, the number of the sum and its name. A stream can be read
from any entry on, so noise does not depend on how a vector is cut into blocks.

Nothing here comes from NumPy's generators: whoever can predict noise can take it off again.
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

from privirec.dp.sampler import NoiseGenerator
from privirec.errors import FederationError, UsageError

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
    """Secret random words of one client for one sum. Costs nothing until it is read."""

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

    def add_noise(self, generator: NoiseGenerator, block: NDArray[np.int64], start: int) -> None:
        """Add the noise of entries start ... start + len(block), from a key of its own."""
        generator.add(block, start, [self._noise_key])

    def words(self, start: int, count: int) -> NDArray[np.uint64]:
        """Entries start ... start + count, uniform over all 64-bit integers."""
        counter, skip = divmod(start * _WORD, _AES_BLOCK)
        nonce = modes.CTR(counter.to_bytes(_AES_BLOCK, "big"))
        stream = Cipher(algorithms.AES256(self._key), nonce).encryptor()
        return np.frombuffer(stream.update(bytes(skip + count * _WORD)), "<u8", offset=skip)


class ClientRandomness:
    """A client's source of randomness in one run. Its seed must never serve two runs."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise UsageError(f"a seed of {len(seed)} bytes where {SEED_BYTES} are needed")
        self._seed = seed

    def __repr__(self) -> str:
        return "ClientRandomness(<redacted>)"

    @classmethod
    def fresh(cls, random_bytes: Callable[[int], bytes] = os.urandom) -> ClientRandomness:
        return cls(random_bytes(SEED_BYTES))

    @classmethod
    def insecure(cls, seed: int, client: int) -> ClientRandomness:
        """The same for everybody who knows two numbers: for runs on one machine that can be
        repeated, where all histories are in one place anyway."""
        text = f"{seed}/{client}".encode()
        return cls(hashlib.shake_256(_INSECURE_DOMAIN + text).digest(SEED_BYTES))

    def held_out_words(self, n_users: int, n_interactions: int) -> HeldOutWords:
        """By which a client chooses what its users keep back in this run.

        They are its own secret, like noise. A server that knew, or chose, who keeps back what could
        ask for degrees over any people that it likes, item by item, and subtract.
        """
        words = self.stream(_BEFORE_ALL_SUMS, "held-out").words(0, n_users + n_interactions)
        return words[:n_users], words[n_users:]

    def stream(self, number: int, name: str) -> RandomStream:
        """The stream of a sum, by its number in the run (from 1) and its name."""
        return RandomStream(self._seed, number.to_bytes(8, "big") + name.encode())


@dataclass(frozen=True)
class ClientStream:
    """A client of a simulated cohort: its users, and its stream for the sum at hand."""

    first_user: int
    n_users: int
    stream: RandomStream
    clients: int = 1
    """How many clients it stands for: the noise of all of them, drawn at once."""


class _NoRandomness(RandomStream):
    """For contributions without noise: it is an error to read it."""

    def __init__(self) -> None:
        super().__init__(b"", b"")

    def __repr__(self) -> str:
        return "NO_RANDOMNESS"

    def words(self, start: int, count: int) -> NoReturn:
        raise FederationError("a contribution with noise was given no randomness")

    def add_noise(self, generator: NoiseGenerator, block: NDArray[np.int64], start: int) -> None:
        raise FederationError("a contribution with noise was given no randomness")

    def __iter__(self) -> Iterator[ClientStream]:
        raise FederationError("a contribution with noise was given no randomness")


NO_RANDOMNESS = _NoRandomness()
