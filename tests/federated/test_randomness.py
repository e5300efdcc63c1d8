"""Tests of a client's streams: reproducible from any position, one per purpose, never printed."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from privirec.errors import FederationError, UsageError
from privirec.federated.noise import NO_NOISE, AddedNoise, noise_of
from privirec.federated.randomness import NO_RANDOMNESS, ClientRandomness

SEED = bytes(range(32))


@given(st.integers(0, 1000), st.lists(st.integers(0, 40), min_size=1, max_size=6))
def test_a_stream_reads_the_same_in_any_pieces(start: int, lengths: list[int]) -> None:
    stream = ClientRandomness(SEED).stream(3, "some-sum")
    whole = stream.words(start, sum(lengths))
    assert whole.dtype == np.uint64
    position, pieces = start, []
    for length in lengths:
        pieces.append(stream.words(position, length))
        position += length
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_a_stream_is_what_its_description_says() -> None:
    info = b"privirec/client-stream/1\0" + (3).to_bytes(8, "big") + b"some-sum"
    key = HKDF(SHA256(), 32, None, info).derive(SEED)
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(800))
    words = ClientRandomness(SEED).stream(3, "some-sum").words(7, 93)
    np.testing.assert_array_equal(words, np.frombuffer(stream, "<u8")[7:])


def test_every_purpose_has_a_stream_of_its_own() -> None:
    sources = [ClientRandomness(SEED), ClientRandomness(SEED[::-1])]
    sources += [ClientRandomness.insecure(seed, client) for seed in (0, 1) for client in (0, 1, 11)]
    sources += [ClientRandomness.insecure(11, 1), ClientRandomness.fresh()]
    streams = [
        source.stream(number, name).words(0, 4).tobytes()
        for source in sources
        for number, name in ((1, "a"), (2, "a"), (1, "b"))
    ]
    assert len(set(streams)) == len(streams) == 30


def test_a_repeatable_run_draws_what_it_drew_before() -> None:
    words = ClientRandomness.insecure(5, 2).stream(1, "a").words(0, 1000)
    digest = hashlib.sha256(words.tobytes()).hexdigest()
    assert digest == "f7492129db2d4cbd8c1cadc5ff42566f00e6c94c6243baab75bb53d82f002386"
    assert abs(words.astype(float).mean() / 2**63 - 1) < 0.1


def test_nothing_secret_is_printed() -> None:
    source = ClientRandomness(SEED)
    for shown in (repr(source), str(source), repr(source.stream(1, "a")), repr(NO_RANDOMNESS)):
        assert SEED.hex() not in shown
        assert "redacted" in shown or shown == "NO_RANDOMNESS"


def test_noise_without_randomness_is_an_error_and_not_no_noise() -> None:
    with pytest.raises(FederationError, match="no randomness"):
        NO_RANDOMNESS.words(0, 1)
    with pytest.raises(FederationError, match="no randomness"):
        list(NO_RANDOMNESS)
    with pytest.raises(UsageError, match="31 bytes"):
        ClientRandomness(SEED[1:])


def test_noise_survives_its_row() -> None:
    noise = AddedNoise("uniform", 2.5, "a test", 10.0, 1e-9)
    assert noise_of(noise.as_row()) == noise
    assert noise_of("none") == NO_NOISE
    for wrong in ("some", {"distribution": "uniform"}, {**noise.as_row(), "more": 1}):
        with pytest.raises(UsageError, match="not a description of noise"):
            noise_of(wrong)
    for scale, largest, tail in ((0.0, 1.0, 0.0), (1.0, 0.0, 0.0), (1.0, 1.0, 1.0)):
        with pytest.raises(UsageError, match="noise of"):
            AddedNoise("uniform", scale, "a test", largest, tail)
