"""Which failures of a request are worth another try, and how long to wait before it.

A refusal (429, 503, no connection) means that nothing ran: asking again is always safe. An answer that was cut, or
never came, may have run and been charged: it is asked again only of a server that does not run a request with the
same idempotency key twice. A request that is wrong stays wrong, and one whose deadline passed has no time left.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiltyard.client.forms import FormNotHeld
from tiltyard.errors import Overloaded, TiltyardError, Unavailable, UpstreamFailed

HEADER_IDEMPOTENCY = "idempotency-key"


@dataclass(frozen=True, slots=True)
class Retries:
    """How often and how patiently."""

    most: int = 3
    """Tries after the first; 0: none."""
    first_wait_s: float = 0.25
    longest_wait_s: float = 20.0

    def wait_s(self, error: TiltyardError, tried: int, *, keyed: bool) -> float | None:
        """Seconds before another try after `tried` ones, or `None` where there must be none.

        `keyed`: the request has a key and the server keeps to it.

        >>> Retries().wait_s(Overloaded("busy", retry_after_s=2.0), 0, keyed=False)
        2.0
        >>> Retries().wait_s(UpstreamFailed("cut"), 0, keyed=False) is None
        True
        """
        if tried >= self.most:
            return None
        backoff = min(self.first_wait_s * (1 << tried), self.longest_wait_s)
        if isinstance(error, Overloaded):
            return None if error.retry_after_s > self.longest_wait_s else max(backoff, error.retry_after_s)
        if isinstance(error, Unavailable):
            return backoff
        if isinstance(error, UpstreamFailed) and not isinstance(error, FormNotHeld) and keyed:
            return backoff
        return None
