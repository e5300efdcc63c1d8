"""Requests as bytes: the message from which a client computes a contribution.

    frame "PRW" with the name, the plain fields and the shapes of the arrays | arrays

The header names a contribution of the registry, its plain fields and, in order, its arrays. A field
that is a name is left out where it has its default. Arrays follow without gaps, little-endian, in
the narrowest integers that hold them. Coarse blocks may take half a byte per entry (`packing`).
Each request has exactly one encoding. Anything else is refused, and nothing in a message can name
code.
"""

from __future__ import annotations

import math
from dataclasses import Field, fields
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from privirec.codec import Frame, Malformed
from privirec.errors import FederationError
from privirec.federated import fixed_point
from privirec.federated.contributions import REGISTRY, Contribution, check_registered

FRAME = Frame(b"PRW", 1, largest_header=1 << 16)
MAX_BYTES = 1 << 31
"""Limit on the size of a carrier's message."""

_NARROW: dict[str, Any] = {"i1": np.int8, "i2": np.int16, "i4": np.int32, "i8": np.int64}
# Declared type of a field -> dtype in memory and number of dimensions.
_ARRAYS: dict[str, tuple[type[np.signedinteger[Any]], int]] = {
    "Integers": (np.int64, 1),
    "NDArray[np.int16]": (np.int16, 2),
    "NDArray[np.int32]": (np.int32, 2),
}
_HALF = "half"
"""Type name of arrays with half a byte per entry."""


def encode(ask: Contribution) -> bytes:
    """Return the canonical encoding of a request."""
    check_registered(ask)
    plain: dict[str, Any] = {}
    arrays: list[dict[str, Any]] = []
    chunks: list[bytes] = []
    for field in fields(ask):  # type: ignore[arg-type]
        value = getattr(ask, field.name)
        if field.type in _ARRAYS:
            kind = _narrowest(value)
            arrays.append({"name": field.name, "dtype": kind, "shape": list(value.shape)})
            if kind == _HALF:
                chunks.append(fixed_point.pack_half_bytes(value))
            else:
                chunks.append(value.astype(f"<{kind}").tobytes())
        elif not (_is_name(field) and value == field.default):
            plain[field.name] = value.hex() if field.type == "bytes" else value
    return b"".join([FRAME.head({"ask": ask.name, "fields": plain, "arrays": arrays}), *chunks])


def decode(message: bytes, max_bytes: int = MAX_BYTES) -> Contribution:
    """Return the request in a message.

    Raises FederationError for anything that `encode` does not write.
    """
    if len(message) > max_bytes:
        _refuse(f"{len(message)} bytes where {max_bytes} are the most")
    try:
        header, position = FRAME.read(message)
    except Malformed as error:
        _refuse(str(error))
    try:
        name, plain, arrays = header["ask"], header["fields"], header["arrays"]
        kind = REGISTRY[name]
        values: dict[str, Any] = {}
        described = iter(arrays)
        for field in fields(kind):  # type: ignore[arg-type]
            if field.type in _ARRAYS:
                values[field.name], position = _array(
                    message, position, next(described), field.name, str(field.type)
                )
            else:
                values[field.name] = _plain(_given(plain, field), str(field.type))
        ask: Contribution = kind(**values)
        # Each request has one encoding: surplus fields, other orders and wider arrays are refused
        # too.
        if position != len(message) or encode(ask) != message:
            _refuse("not in the canonical encoding")
    except FederationError:
        raise
    except KeyError as error:
        _refuse(f"no {str(error)[:40]}")
    except (ValueError, TypeError, StopIteration, RecursionError, AttributeError, OverflowError):
        _refuse("its fields cannot be read")
    return ask


def _is_name(field: Field[Any]) -> bool:
    """Return True for a field that is left out of a message where it has its default."""
    return field.type == "str"


def _given(plain: dict[str, Any], field: Field[Any]) -> Any:
    return plain.get(field.name, field.default) if _is_name(field) else plain[field.name]


def _plain(value: Any, kind: str) -> Any:
    if kind == "bytes":
        return bytes.fromhex(value)
    if kind == "str":
        if type(value) is not str:
            _refuse("a name that is not text")
        return value
    if kind == "int":
        if type(value) is not int or not 0 <= abs(value) < 2**63:
            _refuse("a number that is not whole or too large")
        return value
    if kind == "float":
        if type(value) is not float or not math.isfinite(value):
            _refuse("a number that is not finite")
        return value
    raise TypeError(kind)


def _array(
    message: bytes, position: int, entry: dict[str, Any], name: str, declared: str
) -> tuple[NDArray[Any], int]:
    wanted, dimensions = _ARRAYS[declared]
    shape = entry["shape"]
    if entry["name"] != name or len(shape) != dimensions:
        _refuse(f"{name} is not described")
    if not all(type(length) is int and 0 <= length < 2**40 for length in shape):
        _refuse(f"{name} has an impossible shape")
    count = math.prod(shape)
    if entry["dtype"] == _HALF and wanted is np.int16:
        size = fixed_point.packed_bytes(count, fixed_point.HALF_BYTE)
        if position + size > len(message):
            _refuse(f"cut off in {name}")
        halves = np.frombuffer(message, np.uint8, size, position)
        return fixed_point.unpack_half_bytes(halves, count).reshape(shape), position + size
    dtype = np.dtype(_NARROW[entry["dtype"]]).newbyteorder("<")
    if dtype.itemsize > np.dtype(wanted).itemsize:
        _refuse(f"{name} holds larger numbers than it may")
    end = position + count * dtype.itemsize
    if end > len(message):
        _refuse(f"cut off in {name}")
    flat = np.frombuffer(message, dtype, count, position)
    return flat.astype(wanted).reshape(shape), end


def _narrowest(values: NDArray[Any]) -> str:
    if values.dtype == np.int16 and fixed_point.bits_of(values) == fixed_point.HALF_BYTE:
        return _HALF
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    for name, dtype in _NARROW.items():
        limits = np.iinfo(dtype)
        if limits.min <= low and high <= limits.max:
            return name
    raise AssertionError("unreachable: all fields are 64-bit integers at most")


def _refuse(why: str) -> NoReturn:
    raise FederationError(f"an ask that cannot be read: {why}")
