"""Did an answer say who wrote it? Then the vote may have been for a name, and a ruleset can leave it out.

Two ways to leak:

- The answer has a name of its own contestant (identity, model family, organisation) that the voter did not bring up.
- The answer introduces itself ("I am …", "trained by …", "我是…", "由…開發") with any well-known name of a model or its maker, its own or not: a
  model that claims to be another one sways a voter all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

KNOWN: Final = (
    "openai", "chatgpt", "gpt", "anthropic", "claude", "google", "gemini", "gemma", "bard", "deepmind", "meta", "llama", "mistral",
    "mixtral", "alibaba", "qwen", "tongyi", "通义", "通義", "deepseek", "microsoft", "phi", "cohere", "command r", "hugging face", "huggingface",
    "smollm", "smollm2", "vicuna", "lmsys", "yi", "01.ai", "零一", "zhipu", "智谱", "智譜", "chatglm", "glm", "baidu", "百度", "ernie", "文心",
    "xai", "grok", "nvidia", "nemotron", "ibm", "granite", "moonshot", "kimi", "databricks", "dbrx", "olmo", "allen institute",
)  # fmt: skip
"""Models and makers that people would recognise."""

_SELF: Final = re.compile(
    r"(?:\bI am\b|\bI['’]m\b|\bmy name is\b"
    r"|\b(?:developed|trained|created|made|built|designed) by\b|我是|我叫|由)",
    re.IGNORECASE,
)
_REACH: Final = 60
"""Characters after an introduction in which a name belongs to it, if the sentence goes on so far."""
_OF_OTHERS: Final = re.compile(
    r"\b(?:not|familiar|sure|aware|with|about|happy|glad|using)\b|不", re.IGNORECASE
)
"""Between "I am" and a name, these make it a word about somebody else."""
_SENTENCE_END: Final = re.compile(r"[.!?。!?\n](?:\s|$)")
_COMMON: Final = frozenset(
    {"chat", "instruct", "base", "plain", "model", "large", "small", "mini", "test", "hot", "cold"}
)


def names_of(identity: str, *further: str) -> tuple[str, ...]:
    """Return what would give a contestant away: its name, the family it begins with, and `further` names.

    >>> names_of("smollm2-hot", "Hugging Face")
    ('smollm2-hot', 'smollm2', 'Hugging Face')
    """
    family = re.split(r"[-_.:/ ]", identity)[0]
    names = (identity, family, *further)
    kept = (name for name in names if len(name) >= 3 and name.casefold() not in _COMMON)
    return tuple(dict.fromkeys(kept))


def leaks(answers: Iterable[str], own_names: Sequence[str], asked: Iterable[str]) -> bool:
    """Whether one of a side's answers says who wrote it; `asked` are the voter's messages.

    >>> leaks(["I am ChatGPT, made by OpenAI."], ["vicuna"], ["Who are you?"])
    True
    >>> leaks(["OpenAI made GPT-4."], ["vicuna"], ["Who made GPT-4?"])
    False
    """
    said = "\n".join(asked)
    own = [name for name in own_names if not _has(said, name)]
    return any(
        any(_has(answer, name) for name in own) or _introduces_itself(answer, own_names) for answer in answers
    )


def _introduces_itself(answer: str, own_names: Sequence[str]) -> bool:
    for found in _SELF.finditer(answer):
        sentence = _SENTENCE_END.split(answer[found.end() : found.end() + _REACH], maxsplit=1)[0]
        if not any(_has(_OF_OTHERS.split(sentence)[0], name) for name in (*KNOWN, *own_names)):
            continue
        if found.group().lower() not in _BY or _speaks_of_itself(answer[: found.start()]):
            return True
    return False


_BY: Final = frozenset(
    f"{verb} by" for verb in ("developed", "trained", "created", "made", "built", "designed")
) | {"由"}


def _speaks_of_itself(before: str) -> bool:
    """Whether what stands before "made by …", in the same sentence, has a first person as its subject."""
    sentence = _SENTENCE_END.split(before[-200:])[-1]
    return (
        re.search(r"\b(?:I|I['’]m|me|my|assistant|language model)\b|我", sentence, re.IGNORECASE) is not None
    )


def _has(text: str, name: str) -> bool:
    """Whether a text has a name as a word; versions and dashes may follow it."""
    if name.isascii():
        return re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z])", text, re.IGNORECASE) is not None
    return name in text
