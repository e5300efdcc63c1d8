"""Documents that a client signs for the operator: its card, and the change of its keys.

The operator can neither make a card for a key without an owner, nor invent a rotation. A rotation
is signed by the old key, and everyone who reads the roster checks it again.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from privirec.codec import canonical
from privirec.errors import UsageError
from privirec.runtime.messages import one_line
from privirec.secagg.errors import BadSignature
from privirec.secagg.keys import MAX_CLIENT_ID, Identity, verify

_CARD = b"privirec-card-1"
_ROTATION = b"privirec-rotation-1"
_RENEWAL = b"privirec-server-renewal-1"

PublicKey = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
"""Ed25519 public key in hexadecimal."""
NodeKey = Annotated[str, Field(pattern=r"^ecdsa-sha2-[!-~]+ [!-~]+$", max_length=500)]
"""Public key with which a client authenticates to the carrier, in OpenSSH format."""
Signature = Annotated[str, Field(pattern="^[0-9a-f]{128}$")]
ClientNumber = Annotated[int, Field(ge=0, le=MAX_CLIENT_ID)]
Name = Annotated[str, AfterValidator(one_line), Field(min_length=1, max_length=100)]


class _Signed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read from a file; raise UsageError unless the content and its signatures are valid."""
        try:
            found = cls.model_validate_json(path.read_bytes())
            found.check()
        except FileNotFoundError:
            raise UsageError(f"{path}: no such file") from None
        except ValidationError:
            raise UsageError(f"{path}: {cls.__doc__}") from None
        except BadSignature:
            raise UsageError(f"{path}: not signed by the keys in it") from None
        return found

    @abstractmethod
    def check(self) -> None:
        """Raise BadSignature unless the keys in it signed it."""

    def as_file(self) -> bytes:
        return self.model_dump_json(indent=2).encode() + b"\n"


class Card(_Signed):
    """not a card made by: privirec client new"""

    name: Name
    key: PublicKey
    node: NodeKey
    signature: Signature
    """Signature by `key`, which proves that the sender has the private key."""

    @classmethod
    def make(cls, name: str, identity: Identity, node: str) -> Card:
        try:
            plain = cls(name=name, key=identity.public.hex(), node=node, signature="0" * 128)
        except ValidationError:
            raise UsageError("a client's name has 1 to 100 characters") from None
        signature = identity.sign(_CARD + canonical(plain._content())).hex()
        return plain.model_copy(update={"signature": signature})

    def check(self) -> None:
        """Raise BadSignature unless `key` signed the card."""
        _verify(self.key, self.signature, _CARD + canonical(self._content()))

    def _content(self) -> dict[str, Any]:
        return self.model_dump(exclude={"signature"})


class Rotation(_Signed):
    """not the change of a key made by: privirec client rotate"""

    operator: PublicKey
    client: ClientNumber
    old: PublicKey
    card: Card
    """Card with the new keys."""
    signature: Signature
    """Signature by the old key."""

    @classmethod
    def make(cls, operator: str, client: int, old: Identity, card: Card) -> Rotation:
        said = rotation_statement(operator, client, old.public.hex(), card.key, card.node)
        signature = old.sign(said).hex()
        return cls(
            operator=operator, client=client, old=old.public.hex(), card=card, signature=signature
        )

    def check(self) -> None:
        """Raise BadSignature unless the old key signed the change, and the new key the card."""
        self.card.check()
        check_rotation(
            self.operator, self.client, self.old, (self.card.key, self.card.node), self.signature
        )


def rotation_statement(operator: str, client: int, old: str, new: str, node: str) -> bytes:
    """Return the statement that the old key signs: these are the client's keys from now on."""
    said = {"operator": operator, "client": client, "old": old, "new": new, "node": node}
    return _ROTATION + canonical(said)


def check_rotation(
    operator: str, client: int, old: str, new: tuple[str, str], signature: str
) -> None:
    """Raise BadSignature unless the old key signed the rotation."""
    _verify(old, signature, rotation_statement(operator, client, old, *new))


def renewal_statement(operator: str, old: str, new: str) -> bytes:
    """Return the statement that a server's old key signs: this is the server's key from now on."""
    return _RENEWAL + canonical({"operator": operator, "old": old, "new": new})


def check_renewal(operator: str, old: str, new: str, signature: str) -> None:
    """Raise BadSignature unless the server's old key signed the new one."""
    _verify(old, signature, renewal_statement(operator, old, new))


def _verify(key: str, signature: str, message: bytes) -> None:
    verify(bytes.fromhex(key), bytes.fromhex(signature), message, 0)
