"""A request on its way through the engine: its tokens, its blocks, and how much of it has been run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tiltyard.engine.masks import TokenMask
from tiltyard.engine.penalties import SeenTokens
from tiltyard.engine.prefix import Node
from tiltyard.engine.prompt_scores import ScoredPrompt
from tiltyard.engine.request import EngineRequest, PromptScores


class RunningSequence:
    """The engine's own state of one request.

    `computed` tokens have KV; their blocks are `table[:blocks]`; the first `len(path)` are in the tree.
    """

    __slots__ = (
        "blocks",
        "cached_tokens",
        "computed",
        "constraint",
        "mask",
        "path",
        "peak_blocks",
        "prompt_scores",
        "prompt_tokens",
        "request",
        "seen",
        "table",
        "tokens",
    )

    def __init__(self, request: EngineRequest, block_tokens: int) -> None:
        self.request = request
        self.tokens = list(request.prompt)
        self.prompt_tokens = len(request.prompt)
        self.computed = 0
        self.path: list[Node] = []
        # Every position but the last sampled token's will have KV.
        most_blocks = -(-(len(request.prompt) + request.max_tokens - 1) // block_tokens)
        self.table: NDArray[np.int32] = np.zeros(most_blocks, np.int32)
        self.blocks = 0
        self.peak_blocks = 0
        self.cached_tokens: int | None = None
        """Set at the first admission."""
        self.seen = SeenTokens(request.prompt, request.max_tokens) if request.sampling.penalizes else None
        self.constraint = None if request.grammar is None else request.grammar.start()
        self.mask = TokenMask.of(request, self.constraint)
        self.prompt_scores = (
            None
            if request.prompt_logprobs is None
            else ScoredPrompt(request.prompt, request.prompt_logprobs, block_tokens)
        )

    @property
    def outputs(self) -> int:
        """How many tokens have been sampled."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def pending(self) -> int:
        """Tokens that must run before the next one can be sampled."""
        return len(self.tokens) - self.computed

    @property
    def unfinished_tokens(self) -> int:
        """Tokens still to run or to sample."""
        return self.pending + self.request.max_tokens - self.outputs

    @property
    def complete(self) -> bool:
        """Whether a grammar has said that nothing may follow."""
        return self.constraint is not None and self.constraint.complete

    def score_prompt(self, positions: range, logits: NDArray[np.float32]) -> None:
        """Take the logits of positions of the prompt (positions, vocabulary)."""
        if self.prompt_scores is not None:
            self.prompt_scores.score(positions, logits)

    def take_prompt_scores(self) -> PromptScores | None:
        """The scores of the prompt, once: with the first token."""
        if self.prompt_scores is None or self.outputs != 1:
            return None
        return self.prompt_scores.scores

    def append(self, token: int) -> None:
        """Take a sampled token."""
        self.tokens.append(token)
        if self.seen is not None:
            self.seen.add(token)
        if self.constraint is not None and token not in self.request.stop_ids:
            self.constraint.accept(token)
