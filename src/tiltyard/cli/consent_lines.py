"""What `tiltyard events tail` says of consent, terms, readings and erasures."""

from __future__ import annotations

from tiltyard.events.envelope import format_time
from tiltyard.events.schema import (
    ConsentWithdrawn,
    ContentExpired,
    ContentRead,
    DataTermsSet,
    ErasureReceipted,
    EventData,
    MemoryPurged,
)


def consent_line(data: EventData) -> str | None:
    """What happened, in one line; `None` for other events."""
    match data:
        case ConsentWithdrawn():
            return f"{', '.join(data.purposes)} by {data.by}; left: {', '.join(data.left) or 'nothing'}"
        case DataTermsSet():
            each = [
                f"{name}{'' if days is None else f' {days} days'}" for name, days in data.purposes.items()
            ]
            return f"{', '.join(each) or 'nothing'} ({data.basis}), says {data.by}"
        case ContentRead():
            return f"{len(data.contents)} contents to {data.purpose}{f', for {data.who}' if data.who else ''}"
        case ContentExpired():
            return f"{data.contents} contents from before {format_time(data.before_us)}"
        case MemoryPurged():
            held = f"{data.battles} battles, {data.conversations} conversations, {data.streams} streams"
            return f"by server {data.server}: {held}, {data.blocks} blocks of {data.workers} workers"
        case ErasureReceipted():
            held = f", held by {', '.join(data.releases)}" if data.releases else ""
            return f"{data.keys} keys, {data.contents} contents{held}: receipt {data.receipt}"
        case _:
            return None
