"""How text is cut before byte-pair merging, by the name that a GGUF file gives (`tokenizer.ggml.pre`).

The cut decides token ids, so an unknown name is refused: guessing would serve a subtly different model.
Each rule is the one of the model's original `tokenizer.json`; tests check them on llama.cpp's vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Regex
from tokenizers.normalizers import NFC, Normalizer
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Punctuation, Sequence, Split

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Words end where a capital follows a small letter; marks belong to letters (Mistral Nemo).
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN_PATTERN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True)
class Rule:
    """One way to cut text, and the two habits that come with it."""

    cut: Callable[[], PreTokenizer]
    normalize: Callable[[], Normalizer] | None = None
    ignore_merges: bool = False
    """A piece that is a token as a whole is that token, whatever the merges would build (Llama 3)."""
    add_bos: bool = False
    """Whether a raw prompt begins with BOS when the file does not say."""


def _gpt2() -> PreTokenizer:
    return ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> PreTokenizer:
    return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)])


def _pattern(pattern: str) -> Callable[[], PreTokenizer]:
    return lambda: Sequence(
        [
            Split(Regex(pattern), behavior="isolated"),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _deepseek_coder() -> PreTokenizer:
    patterns = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+")
    return Sequence(
        [Split(Regex(pattern), behavior="isolated") for pattern in patterns]
        + [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def _falcon() -> PreTokenizer:
    return Sequence(
        [
            Punctuation("contiguous"),
            ByteLevel(add_prefix_space=False, use_regex=True),
            Digits(individual_digits=False),
            Split(Regex("[0-9][0-9][0-9]"), behavior="isolated"),
        ]
    )


LLAMA3 = Rule(_pattern(LLAMA3_PATTERN), ignore_merges=True, add_bos=True)

RULES: dict[str, Rule] = {
    "gpt-2": Rule(_gpt2),
    "smollm": Rule(_single_digits),
    "starcoder": Rule(_single_digits),
    "refact": Rule(_single_digits),
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "tekken": Rule(_pattern(TEKKEN_PATTERN), ignore_merges=True, add_bos=True),
    "qwen2": Rule(_pattern(QWEN2_PATTERN), normalize=NFC),
    "deepseek-coder": Rule(_deepseek_coder),
    "falcon": Rule(_falcon),
    "mpt": Rule(_gpt2, normalize=NFC),
}
