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
LINGER_MS = 2_000
"""How long a server shall go on with an answer whose connection was lost: until the next try, and not much longer."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How often and how patiently."""

    most: int = 3
    """Tries after the first; 0: none."""
    first_wait_s: float = 0.25
    longest_wait_s: float = 20.0
    after_a_cut: bool = False
    """Also when an answer was cut. Every request then has an idempotency key, and the server goes on for two seconds
    after its client is lost, so a step that you cancel may run so long; without, it ends at once."""

    def headers(self, key: str | None) -> dict[str, str]:
        """What a request with a key says of it."""
        if key is None or not self.after_a_cut:
            return {}
        return {HEADER_IDEMPOTENCY: key, HEADER_RESUME: str(LINGER_MS)}

    def wait_s(self, error: TiltyardError, tried: int, *, once: bool) -> float | None:
        """Seconds before another try after `tried` ones, or `None` where there must be none.

        `once`: the request has a key, and the server runs it once.

        >>> Retries().wait_s(Overloaded("busy", retry_after_s=2.0), 0, once=False)
        2.0
        >>> Retries().wait_s(UpstreamFailed("cut"), 0, once=False) is None
        True
        """
        if tried >= self.most:
            return None
        backoff = min(self.first_wait_s * (1 << tried), self.longest_wait_s)
        if isinstance(error, Overloaded):
            if error.retry_after_s is None or error.retry_after_s > self.longest_wait_s:
                return None
            return max(backoff, error.retry_after_s)
        if isinstance(error, Unavailable):
            return backoff
        cut = isinstance(error, UpstreamFailed) and not isinstance(error, FormNotHeld)
        if cut and once and self.after_a_cut:
            return backoff
        return None
