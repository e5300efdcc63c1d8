"""Tests of secret sharing: any threshold of shares suffices, and no fewer."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privirec.secagg.errors import BadShare, BelowThreshold
from privirec.secagg.shamir import PRIME, SHARE_BYTES, check_consistent, combine, split
from secagg.testing import InsecureSeededBytes


def is_probably_prime(number: int) -> bool:
    """Test primality by Miller-Rabin with forty bases."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    bases = random.Random(0)
    for _ in range(40):
        power = pow(bases.randrange(2, number - 1), odd, number)
        if power in (1, number - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return False
    return True


def test_the_field_is_a_field_and_holds_32_bytes() -> None:
    assert PRIME > 1 << 256
    assert is_probably_prime(PRIME)
    assert not is_probably_prime(PRIME - 2)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_threshold_of_shares_gives_the_secrets(data: st.DataObject) -> None:
    holders = data.draw(st.integers(1, 90))
    threshold = data.draw(st.integers(1, holders))
    secrets = data.draw(st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=5))
    shares = split(secrets, holders, threshold, os.urandom)
    assert len(shares) == holders
    assert {len(share) for share in shares} == {SHARE_BYTES * len(secrets)}
    chosen = data.draw(
        st.lists(st.integers(1, holders), min_size=threshold, max_size=holders, unique=True)
    )
    assert combine([(holder, shares[holder - 1]) for holder in chosen]) == secrets


def test_shares_are_values_of_the_polynomial() -> None:
    """Test against the definition, with the coefficients from the source of randomness."""
    drawn: list[bytes] = []
    source = InsecureSeededBytes(1)

    def recorded(size: int) -> bytes:
        drawn.append(source(size))
        return drawn[-1]

    secret = bytes(range(32))
    shares = split([secret], 40, 37, recorded)
    mask = (1 << 257) - 1
    coefficients = [int.from_bytes(secret, "big")]
    coefficients += [int.from_bytes(raw, "big") & mask for raw in drawn]
    assert len(coefficients) == 37
    for x in (1, 2, 39, 40):
        value = sum(c * x**power for power, c in enumerate(coefficients)) % PRIME
        assert shares[x - 1] == value.to_bytes(33, "big")


def test_fewer_shares_say_nothing() -> None:
    """Test that any threshold - 1 shares fit every secret: a polynomial through them exists."""
    shares = split([b"\0" * 32], 5, 3, os.urandom)
    two = [(1, shares[0]), (4, shares[3])]
    for other in (b"\1" * 32, b"\xff" * 32):
        value_at_0 = int.from_bytes(other, "big")
        ys = [(x, int.from_bytes(share, "big")) for x, share in two]
        # Lagrange through (0, other) and the two shares, evaluated at 2: a valid third share.
        points = [(0, value_at_0), *ys]
        third = 0
        for x, y in points:
            numerator = denominator = 1
            for x_other, _ in points:
                if x_other != x:
                    numerator = numerator * (2 - x_other) % PRIME
                    denominator = denominator * (x - x_other) % PRIME
            third = (third + y * numerator * pow(denominator, -1, PRIME)) % PRIME
        assert combine([*two, (2, third.to_bytes(33, "big"))]) == [other]


def test_shares_that_were_not_dealt_together_are_noticed() -> None:
    noticed = 0
    for trial in range(40):
        shares = split([bytes([trial]) * 32], 3, 2, os.urandom)
        noise = b"\0" + os.urandom(32)
        try:
            combine([(1, shares[0]), (2, noise)])
        except BadShare:
            noticed += 1
    assert noticed > 5  # about half: the other half lands below 2^256


def test_nonsense_is_refused() -> None:
    shares = split([b"a" * 32], 3, 2, os.urandom)
    with pytest.raises(BadShare):
        combine([(1, shares[0]), (1, shares[0])])
    with pytest.raises(BadShare):
        combine([(1, shares[0]), (2, shares[1][:-1])])
    with pytest.raises(BelowThreshold):
        combine([])
    with pytest.raises(ValueError, match="threshold"):
        split([b"a" * 32], 3, 4, os.urandom)
    with pytest.raises(ValueError, match="32 bytes"):
        split([b"a" * 31], 3, 2, os.urandom)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_one_share_more_than_needed_shows_a_wrong_one(data: st.DataObject) -> None:
    holders = data.draw(st.integers(2, 40))
    threshold = data.draw(st.integers(1, holders - 1))
    shares = split([os.urandom(32)], holders, threshold, os.urandom)
    size = threshold + 1
    chosen = data.draw(st.lists(st.integers(1, holders), min_size=size, max_size=size, unique=True))
    pairs = [(holder, shares[holder - 1]) for holder in chosen]
    check_consistent(pairs)
    victim = data.draw(st.integers(0, threshold))
    error = data.draw(st.integers(1, PRIME - 1))
    holder, share = pairs[victim]
    wrong = (int.from_bytes(share, "big") + error) % PRIME
    pairs[victim] = (holder, wrong.to_bytes(SHARE_BYTES, "big"))
    with pytest.raises(BadShare):
        check_consistent(pairs)
