"""Shamir's secret sharing of 32-byte secrets over the integers modulo the prime 2^257 - 93.

Holder j (1, 2, ...) gets the value of the polynomial at j; the secret is its value at 0. Many
secrets are shared with the same holders at once. Their coefficients lie side by side in one large
integer, so that one multiplication by a small number does a Horner step for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from privirec.secagg.errors import BadShare, BelowThreshold
from privirec.secagg.keys import RandomBytes

PRIME = (1 << 257) - 93
SECRET_BYTES = 32
SHARE_BYTES = 33
_ELEMENT_MASK = (1 << 257) - 1
# Horner steps between two reductions. More steps need fewer divisions but larger numbers.
_STEPS = 32


def split(
    secrets: Sequence[bytes], holders: int, threshold: int, random_bytes: RandomBytes
) -> list[bytes]:
    """Return the shares of all secrets, one string of len(secrets) * 33 bytes for each holder.

    Holders are numbered from 1. Any `threshold` strings determine the secrets; fewer reveal
    nothing.
    """
    if not 1 <= threshold <= holders:
        raise ValueError(f"a threshold lies between 1 and the {holders} holders, not {threshold}")
    if any(len(secret) != SECRET_BYTES for secret in secrets):
        raise ValueError(f"secrets have {SECRET_BYTES} bytes")
    count = len(secrets)
    # Between reductions, a slot grows from 257 bits by one factor of at most `holders` per step.
    slot_bytes = (257 + 8 + (holders.bit_length() + 1) * min(threshold, _STEPS)) // 8 + 1
    coefficients = [
        _side_by_side(_random_elements(count, random_bytes), slot_bytes)
        for _ in range(threshold - 1)
    ]
    coefficients.reverse()
    coefficients.append(
        _side_by_side([int.from_bytes(secret, "big") for secret in secrets], slot_bytes)
    )
    size = slot_bytes * count
    return [
        b"".join(
            element.to_bytes(SHARE_BYTES, "big")
            for element in _take_apart(_evaluate(coefficients, x, slot_bytes, count), size, count)
        )
        for x in range(1, holders + 1)
    ]


def combine(shares: Sequence[tuple[int, bytes]]) -> list[bytes]:
    """Return the secrets, given (holder, string of shares) pairs of enough holders.

    A wrong share gives a wrong secret. This is detected only if the result does not fit 256 bits,
    which happens about every second time. With one share more than needed, `check_consistent`
    detects it.
    """
    if not shares:
        raise BelowThreshold("no shares to combine")
    size = len(shares[0][1])
    if size % SHARE_BYTES or any(len(string) != size for _, string in shares):
        raise BadShare("strings of shares differ in length")
    weights = _weights_at_zero(tuple(holder for holder, _ in shares))
    secrets = []
    for start in range(0, size, SHARE_BYTES):
        total = 0
        for weight, (_, string) in zip(weights, shares, strict=True):
            total += weight * int.from_bytes(string[start : start + SHARE_BYTES], "big")
        secret = total % PRIME
        if secret >> 256:
            raise BadShare("shares do not fit together")
        secrets.append(secret.to_bytes(SECRET_BYTES, "big"))
    return secrets


def check_consistent(shares: Sequence[tuple[int, bytes]]) -> None:
    """Raise BadShare unless threshold + 1 shares of one secret lie on one polynomial.

    This is the case if the polynomial through all of them has a zero coefficient of x^threshold.
    """
    weights = _leading_weights(tuple(holder for holder, _ in shares))
    total = 0
    for weight, (_, share) in zip(weights, shares, strict=True):
        total += weight * int.from_bytes(share, "big")
    if total % PRIME:
        raise BadShare("one of the shares of a secret is not what was dealt")


def _random_elements(count: int, random_bytes: RandomBytes) -> list[int]:
    """Return uniform field elements. A 257-bit draw misses the field once in 2^250 times."""
    raw = random_bytes(count * SHARE_BYTES)
    elements = []
    for start in range(0, len(raw), SHARE_BYTES):
        element = int.from_bytes(raw[start : start + SHARE_BYTES], "big") & _ELEMENT_MASK
        while element >= PRIME:
            element = int.from_bytes(random_bytes(SHARE_BYTES), "big") & _ELEMENT_MASK
        elements.append(element)
    return elements


def _side_by_side(elements: list[int], slot_bytes: int) -> int:
    return int.from_bytes(
        b"".join(element.to_bytes(slot_bytes, "little") for element in elements), "little"
    )


def _take_apart(joined: int, size: int, count: int) -> list[int]:
    raw = joined.to_bytes(size, "little")
    slot = size // count
    return [
        int.from_bytes(raw[start : start + slot], "little") % PRIME
        for start in range(0, size, slot)
    ]


def _evaluate(coefficients: list[int], x: int, slot_bytes: int, count: int) -> int:
    value = coefficients[0]
    for start in range(1, len(coefficients), _STEPS):
        if start > 1:
            value = _side_by_side(_take_apart(value, slot_bytes * count, count), slot_bytes)
        for coefficient in coefficients[start : start + _STEPS]:
            value = value * x + coefficient
    return value


@lru_cache(maxsize=256)
def _weights_at_zero(holders: tuple[int, ...]) -> tuple[int, ...]:
    """Return Lagrange weights: the secret is the weighted sum of the holders' shares."""
    if len(set(holders)) != len(holders) or min(holders) < 1:
        raise BadShare("the holders of shares are not distinct positive numbers")
    # weight_j = prod_{m != j} m / (m - j) = (prod_m m) / (j * prod_{m != j} (m - j))
    numerator = 1
    for holder in holders:
        numerator = numerator * holder % PRIME
    denominators = []
    for holder in holders:
        product = holder
        for other in holders:
            if other != holder:
                product *= other - holder
        denominators.append(product % PRIME)
    return tuple(numerator * inverse % PRIME for inverse in _inverses(denominators))


@lru_cache(maxsize=256)
def _leading_weights(holders: tuple[int, ...]) -> tuple[int, ...]:
    """Return weights with which the sum of the holders' shares is the leading coefficient."""
    denominators = []
    for holder in holders:
        product = 1
        for other in holders:
            if other != holder:
                product *= holder - other
        denominators.append(product % PRIME)
    return tuple(_inverses(denominators))


def _inverses(elements: list[int]) -> list[int]:
    """Return the inverses of all elements with a single inversion (Montgomery's trick)."""
    prefixes = [1]
    for element in elements:
        prefixes.append(prefixes[-1] * element % PRIME)
    inverse = pow(prefixes[-1], -1, PRIME)
    inverses = [0] * len(elements)
    for index in range(len(elements) - 1, -1, -1):
        inverses[index] = prefixes[index] * inverse % PRIME
        inverse = inverse * elements[index] % PRIME
    return inverses
