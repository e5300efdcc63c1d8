"""Distributed point functions: a vector that is zero but for one row, as two short keys.

A *tree* of depth d has one leaf per row. The two keys of a client agree in every leaf but one. That
leaf is `alpha`, and only the client knows it. Each server expands its key into one seed and one
control bit per leaf. Seeds become pseudo-random payloads, which cancel in the sum of both servers'
payloads for all rows but `alpha`; a public *correction* turns that row into the client's row.

The construction is that of Boyle, Gilboa and Ishai (2016). The *proof* is that of de Castro and
Polychroniadou (2022): two servers with equal proofs know that at most one leaf differs, whatever
the client sent. All keys of a report are expanded together, as arrays with one entry per bucket.

A node hashes its seed s as AES_k(o(s)) + o(s) (exclusive or) with o(left, right) = (left + right,
left). The AES keys are public and different in each report; Guo et al. (2020) prove this hash
circular correlation robust if AES behaves like an ideal cipher.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from privirec.compiled import Later
from privirec.secagg.ring import Words

loops = Later("privirec.secagg.two_server.leaf_loops")

SEED_BYTES = 16
HASH_BYTES = 32
MOST_DEPTH = 32
_AES_BLOCK = 16
_PIECE_BYTES = 1 << 18
"""Payloads are made in pieces that fit the cache of one core."""
_LOWEST = np.uint64(1)

Seeds = NDArray[np.uint64]
"""Two words per seed. The lowest bit of the first word is the control bit."""


@dataclass(frozen=True)
class Trees:
    """Size of a report's point functions: `buckets` trees with `leaves` leaves each."""

    buckets: int
    leaves: int

    @property
    def depth(self) -> int:
        return (self.leaves - 1).bit_length()

    @property
    def all_leaves(self) -> int:
        return self.buckets * self.leaves


@dataclass(frozen=True)
class Corrections:
    """Public part of the keys: the same for both servers, and random to anybody else."""

    seeds: Seeds
    """(depth, buckets, 2): added to both children of a node with control bit 1; lowest bits 0."""
    bits: NDArray[np.uint8]
    """(depth, buckets, 2): control bits for the left and for the right child."""
    hashes: NDArray[np.uint8]
    """(buckets, 32): added to the hashes of leaves with control bit 1."""


@dataclass(frozen=True)
class Leaves:
    """Expanded trees: `seeds` of shape (buckets * leaves, 2), control bits in the lowest bits."""

    seeds: Seeds

    @property
    def bits(self) -> NDArray[np.uint64]:
        return self.seeds[:, 0] & _LOWEST


class ReportCipher:
    """The public AES keys and the hash key of one report."""

    def __init__(self, trees: bytes, payloads: bytes) -> None:
        """Derive all keys from bytes that name the trees and, for payloads, also the sum.

        Trees may serve several sums of a client: the payloads of each have a key of their own.
        """
        stream = hashlib.shake_256(b"privirec/point-function/trees/1\0" + trees).digest(64)
        self._left, self._right, self._hash_key = stream[:16], stream[16:32], stream[32:]
        named = b"privirec/point-function/payloads/1\0" + payloads
        self._payload = hashlib.shake_256(named).digest(16)

    def children(self, seeds: Seeds) -> tuple[Seeds, Seeds]:
        """Return the left and right children of nodes, control bits included."""
        mixed = _mixed(seeds & ~np.array([1, 0], np.uint64))
        return _encrypted(self._left, mixed) ^ mixed, _encrypted(self._right, mixed) ^ mixed

    def leaf_hashes(self, seeds: Seeds, positions: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """Return SHA-256 of hash key, position and seed with its control bit, for each leaf."""
        found = np.empty((len(seeds), 8), np.uint32)
        key = np.frombuffer(self._hash_key, ">u4").astype(np.uint32)
        words = np.ascontiguousarray(seeds).view(np.uint8).view(">u4").astype(np.uint32)
        loops.leaf_hashes(key, positions, words.reshape(-1, 4), found)
        return found.astype(">u4").view(np.uint8).reshape(-1, HASH_BYTES)

    def payloads(self, seeds: Seeds, entries: int, dtype: np.dtype) -> Iterator[tuple[int, Words]]:
        """Yield (first leaf, payloads of some leaves); the array is overwritten by the next one."""
        mixed = _mixed(seeds & ~np.array([1, 0], np.uint64))
        blocks = -(-entries * dtype.itemsize // _AES_BLOCK)
        at_once = max(1, _PIECE_BYTES // (blocks * _AES_BLOCK))
        counters = np.zeros((1, blocks, 2), np.uint64)
        counters[0, :, 1] = np.arange(blocks)
        given = np.empty((at_once, blocks, 2), np.uint64)
        made = np.empty(given.nbytes + _AES_BLOCK - 1, np.uint8)
        for first in range(0, len(seeds), at_once):
            some = mixed[first : first + at_once, None, :]
            source = np.bitwise_xor(some, counters, out=given[: len(some)])
            target = made[: source.nbytes + _AES_BLOCK - 1]
            encryptor = _aes(self._payload)
            encryptor.update_into(source.reshape(-1).view(np.uint8).data, target.data)
            stream = target[: source.nbytes].view(np.uint64).reshape(source.shape)
            np.bitwise_xor(stream, some, out=stream)
            words = stream.reshape(len(some), -1).view(dtype)
            yield first, words[:, :entries]


def _aes(key: bytes) -> CipherContext:
    return Cipher(algorithms.AES128(key), modes.ECB()).encryptor()  # noqa: S305 - a fixed permutation


def _encrypted(key: bytes, seeds: Seeds) -> Seeds:
    made = _aes(key).update(np.ascontiguousarray(seeds).view(np.uint8).reshape(-1).data)
    return np.frombuffer(made, np.uint64).reshape(seeds.shape)


def _mixed(seeds: Seeds) -> Seeds:
    return np.stack((seeds[..., 0] ^ seeds[..., 1], seeds[..., 0]), axis=-1)


def _chosen(condition: NDArray[np.uint64], values: Seeds) -> Seeds:
    """Return the values where the condition is 1 and zeros where it is 0."""
    return values * condition[..., None]


def generate(
    trees: Trees,
    alphas: NDArray[np.int64],
    cipher: ReportCipher,
    roots: tuple[Seeds, Seeds],
) -> tuple[Corrections, tuple[Leaves, Leaves]]:
    """Return the corrections for both servers' root seeds, and both leaves alpha of each tree.

    The roots of the first server have control bit 0, those of the second have 1.
    """
    count, depth = trees.buckets, trees.depth
    seeds = np.stack(roots)
    correct_seeds = np.empty((depth, count, 2), np.uint64)
    correct_bits = np.empty((depth, count, 2), np.uint8)
    every = np.arange(count)
    for level in range(depth):
        bit = ((alphas >> (depth - 1 - level)) & 1).astype(np.uint64)
        children = np.stack(cipher.children(seeds), axis=2)  # (server, bucket, side, word)
        controls = children[..., 0] & _LOWEST
        lost = children[:, every, 1 - bit.astype(np.int64)]
        correction = (lost[0] ^ lost[1]) & ~np.array([1, 0], np.uint64)
        both = controls[0] ^ controls[1]
        both[:, 0] ^= bit ^ _LOWEST
        both[:, 1] ^= bit
        correct_seeds[level], correct_bits[level] = correction, both.astype(np.uint8)
        kept = children[:, every, bit.astype(np.int64)]
        full = correction.copy()
        full[:, 0] |= both[every, bit.astype(np.int64)]
        seeds = kept ^ _chosen(seeds[..., 0] & _LOWEST, full[None])
    positions = (every * trees.leaves + alphas).astype(np.uint32)
    hashes = cipher.leaf_hashes(seeds[0], positions) ^ cipher.leaf_hashes(seeds[1], positions)
    corrections = Corrections(correct_seeds, correct_bits, hashes)
    return corrections, (Leaves(seeds[0]), Leaves(seeds[1]))


def expand(trees: Trees, roots: Seeds, corrections: Corrections, cipher: ReportCipher) -> Leaves:
    """Return all leaves of a server's keys."""
    depth = trees.depth
    seeds = roots[:, None, :]
    for level in range(depth):
        controls = seeds[..., 0] & _LOWEST
        sides = []
        for side, children in enumerate(cipher.children(seeds)):
            full = corrections.seeds[level].copy()
            full[:, 0] |= corrections.bits[level, :, side]
            sides.append(children ^ _chosen(controls, full[:, None, :]))
        wanted = -(-trees.leaves >> (depth - 1 - level))
        seeds = np.stack(sides, axis=2).reshape(trees.buckets, -1, 2)[:, :wanted]
    return Leaves(np.ascontiguousarray(seeds).reshape(-1, 2))


def proof(trees: Trees, leaves: Leaves, corrections: Corrections, cipher: ReportCipher) -> bytes:
    """Return 32 bytes that are equal for both servers only if at most one leaf per tree differs."""
    positions = np.arange(trees.all_leaves, dtype=np.uint32)
    hashes = cipher.leaf_hashes(leaves.seeds, positions)
    marked = np.flatnonzero(leaves.bits)
    hashes[marked] ^= corrections.hashes[marked // trees.leaves]
    return hashlib.sha256(b"privirec/point-function/proof\0" + hashes.tobytes()).digest()


def payload_corrections(rows: Words, leaves: tuple[Leaves, Leaves], cipher: ReportCipher) -> Words:
    """Return the public corrections that turn the leaves alpha into `rows`, one for each bucket."""
    entries, dtype = rows.shape[1], rows.dtype
    corrections = rows.copy()
    for own, apply in zip(leaves, (np.subtract, np.add), strict=True):
        for first, payloads in cipher.payloads(own.seeds, entries, dtype):
            part = corrections[first : first + len(payloads)]
            apply(part, payloads, out=part)
    second = leaves[1].bits.astype(bool)
    corrections[second] = -corrections[second]
    return corrections


def add_payloads(
    into: Words, trees: Trees, leaves: Leaves, corrections: Words, cipher: ReportCipher
) -> None:
    """Add a server's payloads of all leaves to `into`, of shape (buckets * leaves, entries).

    The second server's sum counts with a minus.
    """
    bits = leaves.bits.astype(np.uint8)
    for first, payloads in cipher.payloads(leaves.seeds, into.shape[1], into.dtype):
        loops.add_rows(into, payloads, bits, corrections, first, trees.leaves)
