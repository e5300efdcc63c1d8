"""Parsers for amounts such as `50MB` and `5Mbit/s`, and the format of durations."""

from __future__ import annotations

import re

from privirec.errors import UsageError

MOST = 1e24
"""Upper limit for amounts in bytes, or bytes per second; larger ones must be mistakes."""

_NUMBER = r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*"
_BYTES = re.compile(_NUMBER + r"([kmgt]?b)\s*", re.ASCII | re.IGNORECASE)
# A byte is a capital B and a bit is written out, because Mb/s is ambiguous.
_RATE = re.compile(_NUMBER + r"((?:[kKmMgGtT]?)(?:bit/s|bps|B/s))\s*", re.ASCII)
_THOUSANDS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def parse_bytes(text: str, what: str = "budget") -> int:
    """Return the bytes in `50MB`, `500 kB` or `1000B`; units are powers of 1000."""
    matched = _BYTES.fullmatch(text)
    if matched is None:
        raise UsageError(f"a {what} of {text!r}: give one as 60MB; units are B, kB, MB, GB and TB")
    found = _finite(float(matched[1]) * _THOUSANDS.get(matched[2][0].lower(), 1), text)
    if found < 1:
        raise UsageError(f"a {what} of {text!r} is nothing")
    return int(found)


def parse_rate(text: str, what: str) -> float:
    """Return the bytes per second in `5Mbit/s`, `50Mbps` or `2MB/s`."""
    matched = _RATE.fullmatch(text)
    if matched is None:
        raise UsageError(f"{what}: a speed of {text!r}: give one as 5Mbit/s, 1Gbit/s or 2MB/s")
    unit = matched[2]
    factor = _THOUSANDS.get(unit[0].lower(), 1) / (1 if unit.endswith("B/s") else 8)
    found = _finite(float(matched[1]) * factor, text)
    if not found > 0:
        raise UsageError(f"{what}: with a speed of {text!r} nothing arrives")
    return found


def _finite(value: float, text: str) -> float:
    if not value < MOST:
        raise UsageError(f"{text!r} is too large")
    return value


def as_duration(seconds: float) -> str:
    """Return a duration in its natural unit, with about two significant digits."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds)} s" if seconds >= 0.1 else f"{_digits(1000 * seconds)} ms"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
