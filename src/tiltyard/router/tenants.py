"""What a tenant may do and use: one table of `tiltyard.toml`, with the arithmetic of its prices."""

from __future__ import annotations

from typing import get_args

from pydantic import Field, field_validator, model_validator

from tiltyard.errors import InvalidRequest, NotFound
from tiltyard.events.schema import DataPolicy
from tiltyard.identity.manifest import Frozen, Number, Whole
from tiltyard.wire.terms import HEADER_CLASS, ServiceClass, ServiceTerms

NANO = 10**9
"""Money is counted in whole billionths, so that sums are exact; a double of Redis is exact to 9 million units."""
MAX_BUDGET = 9_000_000


class TenantTerms(Frozen):
    """`[tenants.NAME]`: limits, prices, permissions; what is left out is not limited.

    >>> TenantTerms(prompt_price=0.5, output_price=2.0).cost_nano(1000, 10)
    520000
    """

    requests_per_minute: Whole | None = Field(default=None, ge=1)
    tokens_per_minute: Whole | None = Field(default=None, ge=1)
    """Prompt tokens, and answered ones times `output_weight`."""
    output_weight: Number = Field(default=1.0, ge=0, le=1000)
    concurrency: Whole | None = Field(default=None, ge=1)
    """Requests being answered at once."""
    prompt_price: Number = Field(default=1.0, ge=0, le=1_000_000)
    """For a million tokens, in the unit of the budgets."""
    output_price: Number = Field(default=1.0, ge=0, le=1_000_000)
    daily_budget: Number | None = Field(default=None, gt=0, le=MAX_BUDGET)
    """For a day of UTC."""
    monthly_budget: Number | None = Field(default=None, gt=0, le=MAX_BUDGET)
    """For a calendar month of UTC."""
    models: tuple[str, ...] | None = None
    """Names that may be asked for; `None`: all."""
    classes: tuple[ServiceClass, ...] = get_args(ServiceClass)
    default_class: ServiceClass | None = None
    """Class of a request that names none; the first of `classes` where left out."""
    personal_data: DataPolicy = "keep"
    """What is done with personal data in a request before it is served."""
    keep_content: bool = True
    """Whether prompts and answers are kept, encrypted; without them nothing can be replayed."""

    @field_validator("prompt_price", "output_price")
    @classmethod
    def _in_thousandths(cls, price: float) -> float:
        if round(price, 3) != price:
            raise ValueError(f"a price is {price!r}; write at most three decimals")
        return price

    @model_validator(mode="after")
    def _classes_fit(self) -> TenantTerms:
        if not self.classes:
            raise ValueError("classes is empty; leave it out to allow all")
        if self.default_class is not None and self.default_class not in self.classes:
            raise ValueError(f"default_class {self.default_class!r} is not among classes")
        return self

    def cost_nano(self, prompt_tokens: int, output_tokens: int) -> int:
        """What tokens cost, in billionths of the budgets' unit: a price for a million, in thousandths."""
        prompt, output = round(self.prompt_price * 1000), round(self.output_price * 1000)
        return prompt_tokens * prompt + output_tokens * output

    def weight(self, prompt_tokens: int, output_tokens: int) -> float:
        """What tokens count in `tokens_per_minute`."""
        return prompt_tokens + output_tokens * self.output_weight

    def may_ask(self, model: str) -> bool:
        """Whether a model name is among those allowed."""
        return self.models is None or model in self.models

    def check_model(self, model: str) -> None:
        """Raise the `NotFound` that a model which does not exist gets too: names of others are no news."""
        if not self.may_ask(model):
            raise NotFound(
                f"model {model!r} does not exist for this tenant; available: {', '.join(self.models or ())}",
                param="model",
                code="model_not_found",
            )

    def with_class(self, terms: ServiceTerms) -> ServiceTerms:
        """Give a request that named no class the default one; raises `InvalidRequest` for one not allowed."""
        if not terms.class_named:
            default = self.default_class or (
                terms.service_class if terms.service_class in self.classes else self.classes[0]
            )
            return terms.of_class(default)
        if terms.service_class not in self.classes:
            raise InvalidRequest(
                f"class {terms.service_class} is not open to this tenant; use {', '.join(self.classes)}",
                param=HEADER_CLASS,
                code="class_not_allowed",
            )
        return terms


UNLIMITED = TenantTerms()
