"""Masks: a seekable generator that turns a 256-bit seed into ring entries.

Entry i of a seed's mask is the little-endian word at byte i * word_bytes of the AES-256-CTR key
stream under that seed, with the counter starting at 0. A seed is never used for anything else, so
no nonce is needed. In benchmarks/secagg.py, AES is faster than ChaCha20 on all processors with AES
instructions.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from privirec.secagg.ring import Words

SEED_BYTES = 32
_AES_BLOCK = 16
# The key stream is generated and added in pieces that fit the cache of one core.
_PIECE_BYTES = 1 << 17
# The additional block holds the part of an AES block that a seek discards.
_ZEROS = memoryview(bytes(_PIECE_BYTES + _AES_BLOCK))


class MaskGenerator:
    """Generator that adds or subtracts masks in place, with a small buffer of constant size."""

    def __init__(self) -> None:
        self._buffer = np.empty(_PIECE_BYTES + _AES_BLOCK, np.uint8)

    def add(self, block: Words, offset: int, seeds: Iterable[bytes]) -> None:
        """Add entries offset ... offset + len(block) of each seed's mask to `block`."""
        self._apply(np.add, block, offset, seeds)

    def subtract(self, block: Words, offset: int, seeds: Iterable[bytes]) -> None:
        """Subtract entries offset ... offset + len(block) of each seed's mask from `block`."""
        self._apply(np.subtract, block, offset, seeds)

    def _apply(
        self, operation: np.ufunc, block: Words, offset: int, seeds: Iterable[bytes]
    ) -> None:
        word_bytes = block.dtype.itemsize
        per_piece = _PIECE_BYTES // word_bytes
        counter, skip = divmod(offset * word_bytes, _AES_BLOCK)
        nonce = modes.CTR(counter.to_bytes(_AES_BLOCK, "big"))
        buffer = self._buffer
        pieces = []
        for start in range(0, len(block), per_piece):
            piece = block[start : start + per_piece]
            drop = skip if start == 0 else 0
            size = drop + piece.nbytes
            stream = buffer[drop:size].view(block.dtype)
            pieces.append((piece, stream, _ZEROS[:size], memoryview(buffer)[:size]))
        for seed in seeds:
            key_stream = Cipher(algorithms.AES256(seed), nonce).encryptor()
            for piece, stream, zeros, target in pieces:
                key_stream.update_into(zeros, target)
                operation(piece, stream, out=piece)
