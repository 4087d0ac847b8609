"""Ids that sort by time: UUIDv7 (RFC 9562, section 5.7), drawn from the operating system's randomness."""

from __future__ import annotations

import secrets
import time
import uuid


def uuid7(time_ns: int, random_bits: int) -> uuid.UUID:
    """Build a UUIDv7 from nanoseconds since 1970 and 62 random bits.

    The 12 bits after the millisecond hold its fraction (RFC 9562, section 6.2, method 3), so ids made
    within one millisecond still sort by time, to about 244 ns.
    """
    milliseconds, rest_ns = divmod(time_ns, 1_000_000)
    fraction = (rest_ns << 12) // 1_000_000
    value = (milliseconds & (2**48 - 1)) << 80 | 0x7 << 76 | fraction << 64
    return uuid.UUID(int=value | 0b10 << 62 | random_bits & (2**62 - 1))


def new_id() -> str:
    """Make an id for an event or a content row, such as `019ad5c0-3f2a-7b1c-9d4e-…`."""
    return str(uuid7(time.time_ns(), secrets.randbits(62)))


def new_generation_id() -> str:
    """Make a generation id: `gen_` and 32 hex digits."""
    return "gen_" + uuid7(time.time_ns(), secrets.randbits(62)).hex


def new_battle_id() -> str:
    """Make a battle id: `bat_` and 32 hex digits."""
    return "bat_" + uuid7(time.time_ns(), secrets.randbits(62)).hex
