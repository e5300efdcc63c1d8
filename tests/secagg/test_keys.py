"""Tests of keys: separate derivations, bound shares, and secrets that are not printed."""

from __future__ import annotations

import hmac
import itertools
import os

import pytest

from privirec.secagg import keys
from privirec.secagg.bell2020.messages import VERSION
from privirec.secagg.errors import BadKey, BadShare, BadSignature, WipedSecret
from privirec.secagg.keys import Identity, Roster, Secret
from secagg.testing import InsecureSeededBytes

LABEL = b"privirec-secagg-\x01" + bytes([VERSION])
RUN = b"r" * 16


def agreed_secret() -> bytes:
    one, other = os.urandom(32), os.urandom(32)
    (here,) = keys.agree(one, [keys.public_key(other)])
    (there,) = keys.agree(other, [keys.public_key(one)])
    assert here == there
    return here


def test_the_derivation_is_hkdf_sha256() -> None:
    info = b"mask" + RUN + (7).to_bytes(4, "big") + (3).to_bytes(4, "big") + (9).to_bytes(4, "big")
    extracted = hmac.digest(LABEL, b"k" * 32, "sha256")
    expanded = hmac.digest(extracted, info + b"a" * 32 + b"\x01", "sha256")  # RFC 5869, one block
    assert keys.mask_seed(LABEL, b"k" * 32, RUN, 7, 9, 3, b"a" * 32) == expanded


def test_every_part_of_the_derivation_counts() -> None:
    secret = agreed_secret()
    derived = [
        keys.mask_seed(LABEL, secret, RUN, 1, 4, 5),
        keys.mask_seed(LABEL, secret, b"q" * 16, 1, 4, 5),
        keys.mask_seed(LABEL, secret, RUN, 2, 4, 5),
        keys.mask_seed(LABEL, secret, RUN, 1, 4, 6),
        keys.mask_seed(LABEL, os.urandom(32), RUN, 1, 4, 5),
        keys.mask_seed(LABEL, secret, RUN, 0, 4, 5),
        keys.mask_seed(LABEL, secret, RUN, 1, 4, 5, b"a" * 32),
        keys.sealing_key(LABEL, secret, RUN, 4, 5),
        keys.sealing_key(LABEL, secret, RUN, 5, 4),
    ]
    assert all(one != other for one, other in itertools.combinations(derived, 2))
    assert keys.mask_seed(LABEL, secret, RUN, 1, 4, 5) == keys.mask_seed(
        LABEL, secret, RUN, 1, 5, 4
    )


def test_points_of_small_order_are_refused() -> None:
    for point in keys._SMALL_ORDER:
        for sign in (0, 128):  # X25519 ignores the top bit
            encoded = point[:-1] + bytes([point[-1] | sign])
            with pytest.raises(BadKey):
                list(keys.agree(os.urandom(32), [encoded]))
            with pytest.raises(BadKey):
                keys.check_publics(keys.public_key(os.urandom(32)) + encoded, 3)
    keys.check_publics(keys.public_key(b"1" * 32) + keys.public_key(b"2" * 32), 3)


def test_sealed_shares_open_only_where_they_belong() -> None:
    key, nonce = os.urandom(32), os.urandom(12)
    context = keys.shares_context(b"d" * 32, 1, 2)
    sealed = keys.seal(key, nonce, b"shares", context)
    assert keys.unseal(key, nonce, sealed, context) == b"shares"
    others = [
        (os.urandom(32), nonce, sealed, context),
        (key, os.urandom(12), sealed, context),
        (key, nonce, sealed[:-1] + bytes([sealed[-1] ^ 1]), context),
        (key, nonce, b"", context),
        (key, nonce, sealed, keys.shares_context(b"d" * 32, 2, 1)),
        (key, nonce, sealed, keys.shares_context(b"e" * 32, 1, 2)),
    ]
    for other in others:
        with pytest.raises(BadShare):
            keys.unseal(*other)


def test_signatures_cover_every_key_and_the_run() -> None:
    identity = Identity(b"i" * 32)
    signature = identity.sign(keys.advertised_bytes(b"d" * 32, 1, b"s" * 32, b"m" * 64))
    keys.verify(
        identity.public, signature, keys.advertised_bytes(b"d" * 32, 1, b"s" * 32, b"m" * 64), 1
    )
    for changed in (
        keys.advertised_bytes(b"e" * 32, 1, b"s" * 32, b"m" * 64),
        keys.advertised_bytes(b"d" * 32, 2, b"s" * 32, b"m" * 64),
        keys.advertised_bytes(b"d" * 32, 1, b"t" * 32, b"m" * 64),
        keys.advertised_bytes(b"d" * 32, 1, b"s" * 32, b"m" * 63 + b"n"),
    ):
        with pytest.raises(BadSignature):
            keys.verify(identity.public, signature, changed, 1)
    with pytest.raises(BadSignature):
        keys.verify(b"\xff" * 32, signature, b"", 1)


def test_secrets_are_redacted_and_can_be_wiped() -> None:
    secret = Secret(b"very secret bytes")
    assert repr(secret) == str(secret) == f"{secret}" == "<redacted>"
    secret.wipe(5)
    assert secret.stored() == bytes(5) + b"secret bytes"
    assert secret.reveal(5) == b"secret bytes"
    for start in range(5):
        with pytest.raises(WipedSecret):
            secret.reveal(start, 6)
    restored = Secret(secret.stored(), secret.wiped)
    with pytest.raises(WipedSecret):
        restored.reveal()
    secret.wipe()
    assert secret.stored() == bytes(17)
    with pytest.raises(WipedSecret):
        secret.reveal()
    identity = Identity(b"private identity seed 0123456789")
    assert "<redacted>" in repr(identity)
    assert (b"private").hex() not in repr(identity)
    assert "<redacted>" in repr(InsecureSeededBytes(12345))
    assert "12345" not in repr(InsecureSeededBytes(12345))


def test_a_roster_has_one_order_and_one_digest() -> None:
    one, other = Identity(b"1" * 32).public, Identity(b"2" * 32).public
    roster = Roster({7: one, 3: other})
    assert list(roster) == [3, 7]
    assert roster.place(7) == 1
    assert roster.digest == Roster({3: other, 7: one}).digest
    assert roster.digest != Roster({3: one, 7: other}).digest
    with pytest.raises(ValueError, match="ids"):
        Roster({1 << 32: one})
    with pytest.raises(ValueError, match="32 bytes"):
        Roster({1: b"short"})
