"""What a request says about its tokens and its text beside `DefaultSampling`; the event keeps all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tiltyard.wire.structured import Structure


@dataclass(frozen=True, slots=True)
class Decoding:
    """Equal values, with equal sampling and seed, give equal answers. Names are those of the request's fields."""

    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    min_tokens: int = 0
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    structure: Structure | None = None
