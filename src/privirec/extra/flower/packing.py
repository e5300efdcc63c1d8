"""Bytes in a Flower message: one array, which Flower splits into chunks itself."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Message, RecordDict

KIND = "query.privirec"
_RECORD, _NAME = "message", "bytes"


def pack(content: bytes) -> RecordDict:
    array = Array(dtype="uint8", shape=(len(content),), stype="bytes", data=content)
    return RecordDict({_RECORD: ArrayRecord({_NAME: array})})


def unpack(message: Message) -> bytes:
    """Return the bytes of a message, or b"" if it is not ours; the signature check refuses that."""
    record = message.content.get(_RECORD)
    if not isinstance(record, ArrayRecord) or _NAME not in record:
        return b""
    return bytes(record[_NAME].data)
