"""Grammars over one model's vocabulary: llguidance compiles them and says, token by token, what may come next."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import version

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from tiltyard.errors import InvalidRequest

SLOW_S = 0.0002
"""A mask that takes longer than handing it to a helper costs."""
STALLING_S = 0.02
"""After a mask that took longer than this the answers of others do not wait for the next one."""
SLOW_MASKS = 16
"""Masks after a slow one that a helper makes as well: slow and fast ones come in turns."""
HELPERS = 4

LIMITS = LLParserLimits(
    # In units of work, not of time: the same grammar fails at the same place on every machine.
    max_lexer_states=50_000,  # 1-2 kB each
    step_max_items=10_000,  # the parser of an ambiguous grammar takes up to 0.05 ms an item, and others wait for it
    verbose_errors=False,
)


ENGINE = f"llguidance {version('llguidance')}"
"""Which library decides what a grammar allows; another version may decide otherwise."""


class GrammarFailed(Exception):
    """The library refuses a grammar; the message is its own."""


class Vocabulary:
    """A model's tokens as the grammar library wants them; immutable, shared by threads."""

    def __init__(
        self, tokens: Sequence[bytes], special: Sequence[int], stop_ids: Sequence[int], size: int
    ) -> None:
        """`size` is the width of the model's logits; ids without a token never come. `tokens` by id, control tokens (`special`) spelled out; `stop_ids` may come where a grammar accepts."""
        self.size = size
        self._helpers = ThreadPoolExecutor(HELPERS, thread_name_prefix="masks")
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_Tokens(tokens, special, stop_ids)), n_vocab=self.size, eos_token=list(stop_ids)
        )

    def compile(self, text: str) -> CompiledGrammar:
        """Compile a grammar in llguidance's language; raises `GrammarFailed`. Keeps no lock of Python's."""
        matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise GrammarFailed(matcher.get_error())
        grammar = CompiledGrammar(matcher, -(-self.size // 32), self._helpers)
        # A grammar without any text shows itself only here.
        first = matcher.deep_copy()
        first.compute_bitmask()
        if first.is_error():
            raise GrammarFailed(f"{first.stop_reason()}: {first.get_error()}")
        if warnings := matcher.get_grammar_warnings():
            # A warning is a keyword that was understood in part.
            raise GrammarFailed("; ".join(warnings))
        return grammar


class CompiledGrammar:
    """A grammar at its beginning; `engine.constraint.Grammar`."""

    def __init__(self, matcher: LLMatcher, mask_words: int, helpers: ThreadPoolExecutor) -> None:
        self._matcher = matcher
        self._mask_words = mask_words
        self._helpers = helpers

    def start(self) -> GrammarState:
        """Begin an answer."""
        return GrammarState(self._matcher.deep_copy(), self._mask_words, self._helpers)


class GrammarState:
    """Where one answer stands; `engine.constraint.Constraint`.

    Most masks take microseconds and are made when they are asked for. Where one took long, the next ones are made by
    a helping thread as soon as their token is known, while the model runs the step.
    """

    def __init__(self, matcher: LLMatcher, mask_words: int, helpers: ThreadPoolExecutor) -> None:
        self._matcher = matcher
        self._helpers = helpers
        self._own = np.empty(mask_words, np.uint32)
        self._ready: Future[None] | None = None
        self._took_s = 0.0
        self._expect_slow = 0
        self._complete = False

    def fill(self, mask: NDArray[np.uint32]) -> None:
        """Write which tokens may come next; raises `InvalidRequest` when that takes more work than is allowed."""
        if self._ready is None:
            self._compute()
        self._settle()
        if self._matcher.is_error():
            raise InvalidRequest(
                f"the grammar needs more work here than one token may take; simplify it ({_reason(self._matcher)})",
                code="grammar_too_complex",
            )
        mask[:] = self._own

    def accept(self, token: int) -> None:
        """Go on by a token; one that was not allowed shows at the next `fill`."""
        self._settle()
        self._matcher.consume_token(token)
        self._complete = self._matcher.is_stopped() and self._matcher.is_accepting()
        if self._expect_slow and not self._complete:
            self._ready = self._helpers.submit(self._compute)

    def allowed(self, draft: Sequence[int]) -> int:
        """How many tokens of a draft could be taken from here."""
        if self._ready is not None:
            self._ready.result()  # the mask stays good: what is tried is taken back
        return self._matcher.validate_tokens(list(draft))

    @property
    def ready(self) -> bool:
        """Whether the next mask is made, or was quick to make last time."""
        return self._took_s <= STALLING_S or self._ready is None or self._ready.done()

    @property
    def complete(self) -> bool:
        """Whether the grammar accepts and nothing may follow."""
        return self._complete

    def _compute(self) -> None:
        began_s = time.perf_counter()
        self._matcher.unsafe_compute_mask_ptr(self._own.ctypes.data, self._own.nbytes)
        self._took_s = time.perf_counter() - began_s
        slow = self._took_s > SLOW_S
        self._expect_slow = SLOW_MASKS if slow else max(0, self._expect_slow - 1)

    def _settle(self) -> None:
        ready, self._ready = self._ready, None
        if ready is not None:
            ready.result()


def _reason(matcher: LLMatcher) -> str:
    """The library's own words, without what it adds for its developers."""
    return matcher.get_error().split("\n", 1)[0].split("<", 1)[0].strip()[:200]


class _Tokens:
    """What `TokenizerWrapper` asks for. Text is never encoded: `grammar_text` writes `no_forcing` grammars."""

    def __init__(self, tokens: Sequence[bytes], special: Sequence[int], stop_ids: Sequence[int]) -> None:
        self.tokens = tokens
        self.special_token_ids = special
        self.eos_token_id = stop_ids[0]
        self.bos_token_id = None

    def __call__(self, text: bytes | str) -> list[int]:
        """Encode a text: only asked for to find the canonical tokens of forced text."""
        raise NotImplementedError
