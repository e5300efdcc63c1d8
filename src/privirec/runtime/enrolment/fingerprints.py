"""Public keys in a form that two people can compare aloud."""

from __future__ import annotations

import hashlib

DIGITS, GROUP = 30, 5


def fingerprint(key: str) -> str:
    """Return the fingerprint of a key: thirty digits in groups of five.

    Finding another key with the same fingerprint takes 2^99 tries.
    """
    digest = hashlib.sha256(b"privirec-fingerprint-1" + bytes.fromhex(key)).digest()
    digits = str(int.from_bytes(digest, "big") % 10**DIGITS).zfill(DIGITS)
    return " ".join(digits[start : start + GROUP] for start in range(0, DIGITS, GROUP))


def is_told(key: str, told: str) -> bool:
    """Return True if `told`, a key or a fingerprint that somebody read out, denotes this key."""
    plain = "".join(told.split()).replace("-", "").lower()
    return plain in (key, fingerprint(key).replace(" ", ""))
