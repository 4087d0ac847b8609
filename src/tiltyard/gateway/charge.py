"""What one request may cost, held before it runs and settled when it has ended, whatever the end."""

from __future__ import annotations

import asyncio

from tiltyard.errors import Overloaded
from tiltyard.gateway.caller import Caller
from tiltyard.router.ledger import NOTHING, Ask, Denial, Hold, Ledger, Used
from tiltyard.telemetry.metrics import GatewayMetrics


class LimitReached(Overloaded):
    """A tenant's rate, or its requests at once."""

    default_code = "rate_limit_exceeded"


class RequestTooLarge(LimitReached):
    """A request that no minute of its tenant has room for."""

    default_code = "request_too_large"


class QuotaSpent(LimitReached):
    """A tenant's budget; the code is OpenAI's."""

    default_code = "insufficient_quota"


class Charge:
    """Use as an asynchronous context; `used` before its end says what is billed, else nothing is."""

    def __init__(self, ledger: Ledger, metrics: GatewayMetrics, caller: Caller, ask: Ask) -> None:
        self._ledger = ledger
        self._metrics = metrics
        self._caller = caller
        self._ask = ask
        self._hold: Hold | None = None
        self._settling: asyncio.Future[None] | None = None

    async def reserve(self) -> None:
        """Hold what the request may cost; raises `LimitReached`, and then holds nothing."""
        caller = self._caller
        label = self._metrics.tenant_label(caller.tenant)
        asking = asyncio.ensure_future(self._ledger.reserve(caller.tenant, caller.terms, self._ask))
        try:
            verdict = await asyncio.shield(asking)
        except asyncio.CancelledError:  # the answer may be on its way: what it grants must not stay held
            asking.add_done_callback(self._give_back)
            raise
        caller.standing = verdict.standing
        if isinstance(verdict, Denial):
            self._metrics.refused.labels(label, verdict.reason).inc()
            raise limit_reached(caller, verdict, self._ask)
        self._hold = verdict

    async def settle(self, prompt_tokens: int, output_tokens: int) -> None:
        """Bill what was used and give the hold back; once, and to the end even if the caller is cancelled."""
        if self._settling is None:
            terms = self._caller.terms
            used = Used(
                terms.weight(prompt_tokens, output_tokens), terms.cost_nano(prompt_tokens, output_tokens)
            )
            self._settling = asyncio.ensure_future(self._settle(used))
        await asyncio.shield(self._settling)

    async def _settle(self, used: Used) -> None:
        if self._hold is not None:
            await self._ledger.settle(self._hold, self._caller.terms, used)

    def _give_back(self, asking: asyncio.Future[Hold | Denial]) -> None:
        if (
            not asking.cancelled()
            and asking.exception() is None
            and isinstance(hold := asking.result(), Hold)
        ):
            self._settling = asyncio.ensure_future(self._ledger.settle(hold, self._caller.terms, NOTHING))


def limit_reached(caller: Caller, denial: Denial, ask: Ask) -> LimitReached:
    """The error for a denial: names tenant, limit, value and the next step."""
    terms, tenant = caller.terms, caller.tenant
    later = "" if denial.retry_after_s is None else f" Try again in {denial.retry_after_s:,.1f} s."
    match denial.reason:
        case "concurrency":
            message = f"{terms.concurrency} requests of tenant {tenant} are being answered, its limit.{later}"
        case "requests":
            message = f"tenant {tenant} may send {terms.requests_per_minute:,} requests a minute.{later}"
        case "tokens":
            message = (
                f"tenant {tenant} may use {terms.tokens_per_minute:,} tokens a minute; this request is "
                f"taken to need {ask.tokens:,.0f}.{later}"
            )
        case "request_too_large":
            message = (
                f"this request is taken to need {ask.tokens:,.0f} tokens; tenant {tenant} may use "
                f"{terms.tokens_per_minute:,} a minute. Shorten it or send a smaller max_tokens."
            )
        case "daily_budget" | "monthly_budget":
            window = denial.reason.removesuffix("_budget")
            budget = terms.daily_budget if window == "daily" else terms.monthly_budget
            message = (
                f"this request may cost up to {ask.worst_nano / 1e9:,.6g}, which the {window} budget of tenant "
                f"{tenant} ({budget:,.10g}) no longer covers. Send a smaller max_tokens, or wait for the next window."
            )
    kind: type[LimitReached] = LimitReached
    if denial.reason == "request_too_large":
        kind = RequestTooLarge
    elif denial.reason.endswith("_budget"):
        kind = QuotaSpent
    return kind(message, retry_after_s=denial.retry_after_s, should_retry=kind is LimitReached)
