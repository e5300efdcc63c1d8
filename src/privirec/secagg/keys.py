"""Identities (Ed25519), key agreement (X25519 and HKDF), and sealing of shares (AES-256-GCM).

Every derived key is bound to the protocol and its version, its purpose, the run, the sum and the
ordered pair of clients, so that a key is never valid in another context.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from privirec.secagg.errors import BadKey, BadShare, BadSignature, WipedSecret

RandomBytes = Callable[[int], bytes]
"""Source of random bytes. Sessions are given a source and never choose one."""

KEY_BYTES = 32
SIGNATURE_BYTES = 64
NONCE_BYTES = 12
TAG_BYTES = 16
MAX_CLIENT_ID = (1 << 32) - 2

# X25519 public keys of small order (1, 2, 4 or 8), on the curve and on its twist. Their shared
# secret is zero for every private key. All encodings are listed without the top bit, which X25519
# ignores.
_FIELD = (1 << 255) - 19
_SMALL_ORDER = frozenset(
    number.to_bytes(KEY_BYTES, "little")
    for number in (
        0,
        1,
        _FIELD - 1,
        _FIELD,
        _FIELD + 1,
        0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
        0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
    )
)

NOTHING_ASKED = bytes(32)
"""Digest of what clients are asked for if the application specifies nothing."""

LABEL = b"privirec-secagg-"
"""Prefix of everything that is derived, signed or sealed.

Derived keys have the protocol and its version as well (`MessageOrder.label`). Signed and sealed
bytes have them in the digest of the announcement.
"""


_SHA256 = SHA256()


class Secret:
    """Bytes that do not show in a repr and can be wiped progressively from the front.

    Wiped bytes cannot be revealed, because zeros used as a key would protect nothing. Wiping clears
    only this copy. Python may have made other copies during computations. They are unreachable but
    remain in memory until that memory is reused.
    """

    __slots__ = ("_data", "wiped")

    def __init__(self, data: bytes | bytearray, wiped: int = 0) -> None:
        self._data = bytearray(data)
        self.wiped = 0
        """Number of bytes wiped at the front."""
        if wiped:
            self.wipe(wiped)

    def reveal(self, start: int = 0, stop: int | None = None) -> bytes:
        """Return the bytes start ... stop; raise WipedSecret if any of them is wiped."""
        if start < self.wiped:
            raise WipedSecret("a secret that was wiped cannot be used")
        return bytes(self._data[start:stop])

    def wipe(self, stop: int | None = None) -> None:
        """Overwrite the bytes before `stop` (default: all) with zeros."""
        stop = len(self._data) if stop is None else stop
        self._data[:stop] = bytes(stop)
        self.wiped = max(self.wiped, stop)

    def stored(self) -> bytes:
        """Return all bytes for storage, with zeros for wiped ones; store `wiped` as well."""
        return bytes(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return "<redacted>"


class Identity:
    """A client's long-term signing key."""

    __slots__ = ("_key", "public")

    def __init__(self, seed: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = self._key.public_key().public_bytes_raw()

    @classmethod
    def generate(cls, random_bytes: RandomBytes) -> Identity:
        return cls(random_bytes(KEY_BYTES))

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)

    def __repr__(self) -> str:
        return f"Identity(public={self.public.hex()}, private=<redacted>)"


class Roster(Mapping[int, bytes]):
    """Public keys of all clients that may take part: id -> Ed25519 key, in ascending order of id.

    Clients receive the roster over a channel that the server does not control. Otherwise, a server
    could invent clients or act as a man in the middle between real ones.
    """

    def __init__(self, keys: Mapping[int, bytes]) -> None:
        self.ids = tuple(sorted(keys))
        if self.ids and not 0 <= self.ids[0] <= self.ids[-1] <= MAX_CLIENT_ID:
            raise ValueError(f"client ids lie between 0 and {MAX_CLIENT_ID}")
        if any(len(key) != KEY_BYTES for key in keys.values()):
            raise ValueError(f"a public key has {KEY_BYTES} bytes")
        self._keys = {client: keys[client] for client in self.ids}
        self._places = {client: place for place, client in enumerate(self.ids)}
        digest = hashlib.sha256(LABEL + b"roster")
        for client, key in self._keys.items():
            digest.update(struct.pack(">I", client) + key)
        self.digest = digest.digest()

    @cached_property
    def id_array(self) -> NDArray[np.uint32]:
        """All ids, ascending."""
        return np.array(self.ids, np.uint32)

    def place(self, client: int) -> int:
        """Position of a client in the roster's order."""
        return self._places[client]

    def __getitem__(self, client: int) -> bytes:
        return self._keys[client]

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Roster({len(self)} clients, {self.digest.hex()[:16]})"


def public_key(private: bytes) -> bytes:
    """Return the X25519 public key of a private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def check_publics(publics: bytes, client: int) -> None:
    """Raise BadKey if one of these concatenated X25519 public keys has small order."""
    for start in range(0, len(publics), KEY_BYTES):
        key = publics[start : start + KEY_BYTES]
        if key[:-1] + bytes([key[-1] & 0x7F]) in _SMALL_ORDER:
            raise BadKey(f"client {client} has a public key of small order: no honest client does")


def agree(private: bytes, publics: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the X25519 agreement with each public key; raise BadKey for a point of small order."""
    key = X25519PrivateKey.from_private_bytes(private)
    for public in publics:
        try:
            yield key.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise BadKey("a public key of small order: no honest client sends one") from None


def mask_seed(
    label: bytes,
    agreed: bytes,
    run: bytes,
    sum_number: int,
    one: int,
    other: int,
    asked: bytes = NOTHING_ASKED,
) -> bytes:
    """Return the seed of the mask that two clients have in common in a sum; symmetric in both.

    One client adds the mask and the other subtracts it. Clients that were asked for different
    things derive different seeds, so that their masks do not cancel.
    """
    pair = (one, other) if one < other else (other, one)
    return derive(label, agreed, b"mask", run, sum_number, pair, asked)


def sealing_key(label: bytes, agreed: bytes, run: bytes, sender: int, receiver: int) -> bytes:
    """Return the key for shares from `sender` to `receiver`; each direction has its own."""
    return derive(label, agreed, b"seal", run, 0, (sender, receiver))


def derive(
    label: bytes,
    agreed: bytes,
    purpose: bytes,
    run: bytes,
    sum_number: int,
    pair: tuple[int, int],
    asked: bytes = b"",
) -> bytes:
    """Return a 32-byte key for one purpose (four letters) and one ordered pair of clients.

    `label` names the protocol and its version (`MessageOrder.label`). In keys that hide a vector,
    `asked` is the digest of what the sum asks for.
    """
    info = purpose + run + struct.pack(">III", sum_number, *pair) + asked
    return HKDF(_SHA256, KEY_BYTES, salt=label, info=info).derive(agreed)


def shares_context(announcement: bytes, sender: int, receiver: int) -> bytes:
    """Return the associated data of sealed shares: announced run, sender and receiver."""
    return LABEL + b"shares" + announcement + struct.pack(">II", sender, receiver)


def seal(key: bytes, nonce: bytes, plain: bytes, context: bytes) -> bytes:
    """Encrypt with AES-256-GCM, with the context as associated data."""
    return AESGCM(key).encrypt(nonce, plain, context)


def unseal(key: bytes, nonce: bytes, sealed: bytes, context: bytes) -> bytes:
    """Decrypt the output of `seal`; raise BadShare if authentication fails."""
    try:
        return AESGCM(key).decrypt(nonce, sealed, context)
    except InvalidTag:
        raise BadShare("sealed shares do not authenticate") from None


def advertised_bytes(
    announcement: bytes, client: int, sealing_public: bytes, mask_publics: bytes
) -> bytes:
    """Return the bytes that a client signs: its keys for all sums, bound to its id and the run."""
    return (
        LABEL
        + b"advertise"
        + announcement
        + struct.pack(">I", client)
        + sealing_public
        + mask_publics
    )


def verify(public: bytes, signature: bytes, message: bytes, client: int | str) -> None:
    """Raise BadSignature unless the owner of the Ed25519 key `public` signed the message."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        raise BadSignature(f"client {client} has not signed this with its identity") from None
