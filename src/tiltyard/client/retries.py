"""Which failures of a request are worth another try, and how long to wait before it.

A refusal (429, 503, no connection) means that nothing ran: asking again is always safe. An answer that was cut, or
never came, may have run and been charged: it is asked again only with an idempotency key, of a server that runs a
request with the same key once. A request that is wrong stays wrong, and one whose deadline passed has no time left.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiltyard.client.forms import FormNotHeld
from tiltyard.errors import Overloaded, TiltyardError, Unavailable, UpstreamFailed

HEADER_IDEMPOTENCY = "idempotency-key"
HEADER_RESUME = "x-tiltyard-resume-ms"
MOST_BUSY = 256
"""Tries of one request, even where a server says that it is busy and names no time."""
LINGER_MS = 2_000
"""How long a server shall go on with an answer whose connection was lost: until the next try, and not much longer."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How often and how patiently."""

    most: int = 3
    """Tries after the first; 0: none. A server that is busy (429) is asked as often as `patience_s` allows."""
    patience_s: float = 60.0
    """How long one request waits, all tries together, for a server that is busy."""
    first_wait_s: float = 0.25
    longest_wait_s: float = 20.0
    linger_ms: int = LINGER_MS
    """How long a server shall go on with an answer whose connection was lost, where `after_a_cut` holds."""
    after_a_cut: bool = False
    """Also when an answer was cut. Every request then has an idempotency key, and the server goes on for two seconds
    after its client is lost, so a step that you cancel may run so long; without, it ends at once."""

    def headers(self, key: str | None) -> dict[str, str]:
        """What a request with a key says of it."""
        if key is None or not self.after_a_cut:
            return {}
        return {HEADER_IDEMPOTENCY: key, HEADER_RESUME: str(self.linger_ms)}

    def wait_s(
        self, error: TiltyardError, tried: int, waited_s: float = 0.0, *, once: bool = False
    ) -> float | None:
        """Seconds before another try after `tried` ones and `waited_s` seconds, or `None` where there must be none.

        `once`: the request has a key, and the server runs it once.

        >>> Retries().wait_s(Overloaded("busy", retry_after_s=2.0), 0)
        2.0
        >>> Retries().wait_s(UpstreamFailed("cut"), 0) is None
        True
        """
        backoff = min(self.first_wait_s * (1 << min(tried, 16)), self.longest_wait_s)
        if isinstance(error, Overloaded):
            if not error.should_retry:
                return None
            wait_s = max(backoff, error.retry_after_s or 0.0)
            patient = wait_s <= self.longest_wait_s and waited_s + wait_s <= self.patience_s
            return wait_s if patient and self.most > 0 and tried < MOST_BUSY else None
        if tried >= self.most:
            return None
        if isinstance(error, Unavailable):
            return backoff
        cut = isinstance(error, UpstreamFailed) and not isinstance(error, FormNotHeld)
        return backoff if cut and once and self.after_a_cut else None
