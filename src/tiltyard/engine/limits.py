"""What a request may ask of the sampler: within these limits no row of finite logits can make it fail."""

from __future__ import annotations

from typing import NamedTuple

from tiltyard.engine.request import EngineRequest
from tiltyard.errors import InvalidRequest, UpstreamFailed


class Range(NamedTuple):
    """Both ends included."""

    lowest: float
    highest: float


# Logits lie within a few hundred of zero; nothing below can carry them out of the range of a float32.
LIMITS = {
    "temperature": Range(0.0, 1e6),
    "top_p": Range(1e-6, 1.0),
    "top_k": Range(0, 2**31 - 1),
    "min_p": Range(0.0, 1.0),
    "repetition_penalty": Range(0.01, 100.0),
    "presence_penalty": Range(-1000.0, 1000.0),
    "frequency_penalty": Range(-1000.0, 1000.0),
}
BIAS = Range(-10_000.0, 10_000.0)

NOT_FINITE = (
    "the model computes numbers here that are not finite: its file is damaged, or this text drives it out of the range "
    "of the types that it is kept in. Run `tiltyard models verify`, or ask another model."
)


def not_finite() -> UpstreamFailed:
    """What ends a request on which the model computes infinities or NaN; the others go on."""
    return UpstreamFailed(NOT_FINITE, code="not_finite")


def check_sampling(request: EngineRequest, vocab_size: int) -> None:
    """Raise `InvalidRequest` naming the setting that is out of range; NaN is in none."""
    for name, limits in LIMITS.items():
        value = getattr(request.sampling, name)
        if not limits.lowest <= value <= limits.highest:
            raise InvalidRequest(
                f"{name} is {value:g}; it must lie between {limits.lowest:g} and {limits.highest:g}",
                param=name,
            )
    for token, bias in request.sampling.logit_bias:
        if not 0 <= token < vocab_size:
            raise InvalidRequest(
                f"logit_bias names token {token}; the model knows 0 to {vocab_size - 1}", param="logit_bias"
            )
        if not BIAS.lowest <= bias <= BIAS.highest:
            raise InvalidRequest(
                f"logit_bias of token {token} is {bias:g}; it must lie between {BIAS.lowest:g} and {BIAS.highest:g}",
                param="logit_bias",
            )
    for name in ("top_logprobs", "prompt_logprobs"):
        count = getattr(request, name)
        if count is not None and not 0 <= count <= vocab_size:
            raise InvalidRequest(f"{name} is {count}; it must lie between 0 and {vocab_size}", param=name)
    _check_masks(request, vocab_size)


def _check_masks(request: EngineRequest, vocab_size: int) -> None:
    sampling = request.sampling
    if not 0 <= sampling.min_tokens <= request.max_tokens:
        raise InvalidRequest(
            f"min_tokens is {sampling.min_tokens}; it must lie between 0 and max_tokens ({request.max_tokens})",
            param="min_tokens",
        )
    for name, ids in (
        ("bad_words", [token for word in sampling.bad_words for token in word]),
        ("allowed_token_ids", sampling.allowed_token_ids or ()),
        ("stop_token_ids", request.stop_ids),
    ):
        if (bad := next((token for token in ids if not 0 <= token < vocab_size), None)) is not None:
            raise InvalidRequest(f"{name} has token {bad}; the model knows 0 to {vocab_size - 1}", param=name)
    if not all(sampling.bad_words):
        raise InvalidRequest("bad_words has an empty word; remove it", param="bad_words")
    if sampling.allowed_token_ids is not None:
        never = {word[0] for word in sampling.bad_words if len(word) == 1}
        never |= request.stop_ids if sampling.min_tokens else set()
        if not set(sampling.allowed_token_ids) - never:
            raise InvalidRequest(
                "allowed_token_ids leaves no token that bad_words and min_tokens do not exclude; allow more",
                param="allowed_token_ids",
            )
