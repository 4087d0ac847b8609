"""How likely the model finds each of several answers: the sum of its own log-probabilities of their tokens.

Each choice is put where the answer would stand and sent with `prompt_logprobs`; the server scores it as part of the
prompt. One more request with an empty answer is the ruler: what a choice's prompt has beyond the ruler's beginning
and end are the choice's own tokens, however the template writes a turn. Once they are known, the same choices need
no ruler: their prompts must end in the same tokens. The scores are those of the model itself,
before temperature and penalties. They do not say how likely it is that the answer ends there: a choice that another
one begins with is at least as likely as that one, by construction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tiltyard.identity.canonical import Json

Normalize = Literal["sum", "mean"]
"""`sum`: log-probability of the whole choice. `mean`: a token's on average, so that long choices have a chance."""
UNREADABLE = "\ufffd"
TAIL_TOKENS = 16
"""What templates write behind an answer has fewer tokens than this; where it has not, whole prompts are scored."""


class NotScored(Exception):
    """This server gives no log-probabilities of a prompt, or not such that a choice can be found among them."""


@dataclass(frozen=True, slots=True)
class ChoiceScore:
    """One choice: its tokens and the sum of their log-probabilities, in nats."""

    text: str
    logprob: float
    tokens: int

    def score(self, normalize: Normalize) -> float:
        """What is compared; higher is likelier."""
        return self.logprob / self.tokens if normalize == "mean" else self.logprob


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """The end of a prompt of `total` tokens: ids and log-probabilities of its last ones."""

    total: int
    ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    """`None` for a prompt's first token, which follows nothing."""
    texts: tuple[str, ...]
    """What each token says, where the server tells."""

    @property
    def start(self) -> int:
        """Tokens of the prompt before the first one here."""
        return self.total - len(self.ids)

    @classmethod
    def read(cls, value: Json, total: int | None) -> ScoredTokens:
        """Read vLLM's shape: for each token an object whose first member is the token itself, or null."""
        if not isinstance(value, list) or not value:
            raise NotScored("the answer has no prompt_logprobs")
        ids: list[int] = []
        scores: list[float | None] = []
        texts: list[str] = []
        for entry in value:
            if entry is None and not ids:
                ids.append(-1)
                scores.append(None)
                texts.append("")
                continue
            if not isinstance(entry, Mapping) or not entry:
                raise NotScored("prompt_logprobs has an unknown shape")
            token, facts = next(iter(entry.items()))
            if not isinstance(facts, Mapping) or not token.isdecimal():
                raise NotScored("prompt_logprobs has an unknown shape")
            logprob, text = facts.get("logprob"), facts.get("decoded_token")
            if not isinstance(logprob, int | float):
                raise NotScored("prompt_logprobs has an unknown shape")
            texts.append(text if isinstance(text, str) else UNREADABLE)
            ids.append(int(token))
            scores.append(float(logprob))
        if total is not None and len(value) > total:
            raise NotScored("prompt_logprobs has more tokens than the prompt")
        return cls(len(value) if total is None else total, tuple(ids), tuple(scores), tuple(texts))


def window(choices: Sequence[str]) -> int:
    """How many of the last tokens of each prompt are enough to find the choices: a token has a byte at least."""
    return max(len(choice.encode("utf-8", "surrogatepass")) for choice in choices) + TAIL_TOKENS


@dataclass(frozen=True, slots=True)
class Spelling:
    """How choices are spelled in tokens as answers, and what the template writes behind them."""

    choices: tuple[tuple[int, ...], ...]
    tail: tuple[int, ...]

    @property
    def window(self) -> int:
        """How many of the last tokens of each prompt have to be scored."""
        return max(map(len, self.choices)) + len(self.tail)


def spelling(ruler: ScoredTokens, choices: Sequence[str], scored: Sequence[ScoredTokens]) -> Spelling:
    """Find each choice's own tokens in its prompt; raises `NotScored` where the template hides them."""
    spans = [_own_tokens(ruler, one) for one in scored]
    first = min(start for start, _ in spans)  # choices that merge with what stands before them set the start
    behind = min(behind for _, behind in spans)
    found: list[tuple[int, ...]] = []
    for text, one in zip(choices, scored, strict=True):
        start, end = first - one.start, len(one.ids) - behind
        own, said = one.ids[max(0, start) : end], "".join(one.texts[max(0, start) : end])
        told = UNREADABLE in said or _letters(said).endswith(_letters(text))
        if not own or start < 0 or one.logprobs[start] is None or not told:
            raise NotScored(f"the template leaves no trace of the choice {text[:40]!r} that can be scored")
        found.append(own)
    return Spelling(tuple(found), ruler.ids[len(ruler.ids) - behind :])


def choice_scores(
    spelled: Spelling, choices: Sequence[str], scored: Sequence[ScoredTokens]
) -> tuple[ChoiceScore, ...]:
    """The scores of choices whose spelling is known; raises `NotScored` where a prompt ends in another one."""
    found: list[ChoiceScore] = []
    for text, own, one in zip(choices, spelled.choices, scored, strict=True):
        end = len(one.ids) - len(spelled.tail)
        start = end - len(own)
        values = [value for value in one.logprobs[max(0, start) : end] if value is not None]
        if one.ids[end:] != spelled.tail or one.ids[max(0, start) : end] != own or len(values) != len(own):
            raise NotScored(f"the choice {text[:40]!r} is spelled in other tokens here")
        found.append(ChoiceScore(text, math.fsum(values), len(values)))
    return tuple(found)


def _letters(text: str) -> str:
    """A text without what tokenizers write in different ways: spaces."""
    return "".join(text.split()).replace("▁", "").replace("Ġ", "")


def _own_tokens(ruler: ScoredTokens, one: ScoredTokens) -> tuple[int, int]:
    """Where, in tokens from the prompt's start, a prompt leaves the ruler; and how many tokens they end alike."""
    shared = max(ruler.start, one.start)
    at = shared
    end = min(ruler.total, one.total)
    while at < end and ruler.ids[at - ruler.start] == one.ids[at - one.start]:
        at += 1
    most = end - at
    behind = 0
    while behind < most and ruler.ids[-1 - behind] == one.ids[-1 - behind]:
        behind += 1
    if at == shared and shared > 0:
        raise NotScored("the prompts of two choices part before the choices begin")
    return at, behind
