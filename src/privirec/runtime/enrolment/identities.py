"""Private keys in files that only their owner can read, and fingerprints of public keys."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from privirec.durable import write_whole
from privirec.errors import UsageError
from privirec.secagg.keys import KEY_BYTES, Identity

DIGITS, GROUP = 30, 5
"""Digits of a fingerprint, and of each group of them."""
_MISSING = {
    "operator.key": "say where it is kept: --operator-key PATH",
    "run.key": "copy it from where the operator made it: privirec server new, or server run-key",
}


def make_identity(path: Path) -> None:
    """Write a new Ed25519 key to a file that only its owner can read."""
    write_whole(path, os.urandom(KEY_BYTES).hex().encode() + b"\n")


def read_identity(path: Path) -> Identity:
    return Identity(read_seed(path))


def make_node_key(folder: Path) -> None:
    """Write the key pair with which Flower authenticates a node, `node.key` and `node.pub`."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    write_whole(folder / "node.key", private)
    write_whole(folder / "node.pub", public + b"\n")


def read_seed(path: Path) -> bytes:
    """Return the key in a file; raise UsageError if others can read the file."""
    try:
        if path.stat().st_mode & 0o077:
            raise UsageError(f"{path}: others may read this key; run: chmod 600 {path}")
        seed = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except FileNotFoundError:
        hint = _MISSING.get(path.name, "make one: privirec client new")
        raise UsageError(f"{path}: no key there; {hint}") from None
    except (ValueError, UnicodeDecodeError):
        raise UsageError(f"{path}: not a key") from None
    if len(seed) != KEY_BYTES:
        raise UsageError(f"{path}: not a key")
    return seed


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
