"""Bytes in a Flower message: one array, which Flower cuts into chunks of its own."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Message, RecordDict

KIND = "query.privirec"
_RECORD, _NAME = "message", "bytes"


def pack(content: bytes) -> RecordDict:
    array = Array(dtype="uint8", shape=(len(content),), stype="bytes", data=content)
    return RecordDict({_RECORD: ArrayRecord({_NAME: array})})


def unpack(message: Message) -> bytes:
    """The bytes, or none at all: what is not ours is for the signature check to refuse."""
    record = message.content.get(_RECORD)
    if not isinstance(record, ArrayRecord) or _NAME not in record:
        return b""
    return bytes(record[_NAME].data)
