"""A request on its way through the engine: its tokens, its blocks, and how much of it has been run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tiltyard.engine.fairness import Account
from tiltyard.engine.masks import TokenMask
from tiltyard.engine.penalties import SeenTokens
from tiltyard.engine.prefix import Node
from tiltyard.engine.prompt_scores import ScoredPrompt
from tiltyard.engine.request import EngineRequest, Finish, PromptScores


class RunningSequence:
    """The engine's own state of one request.

    `computed` tokens have KV; their blocks are `table[:blocks]`; the first `len(path)` are in the tree.
    """

    __slots__ = (
        "accepted_tokens",
        "account",
        "arrival",
        "awaited",
        "blocks",
        "cached_tokens",
        "computed",
        "constraint",
        "drafted_tokens",
        "furthest",
        "hidden_sum",
        "mask",
        "passed",
        "path",
        "peak_blocks",
        "preemptions",
        "prompt_scores",
        "prompt_tokens",
        "request",
        "seen",
        "table",
        "tokens",
    )

    def __init__(self, request: EngineRequest, block_tokens: int, account: Account) -> None:
        self.request = request
        self.account = account
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
        self.hidden_sum: NDArray[np.float64] | None = None
        """Of a text that is being embedded: the hidden states so far."""
        self.drafted_tokens = 0
        self.accepted_tokens = 0
        self.furthest = 0
        """Tokens that have ever had KV: what is run again after a preemption is not charged twice."""
        self.arrival = 0
        self.awaited = False
        """Whether somebody waits, in this step, for what it computes."""
        self.passed = 0.0
        """Tokens run for requests that were admitted past this one."""
        self.preemptions = 0
        self.seen = SeenTokens(request.prompt, request.max_tokens) if request.sampling.penalizes else None
        self.constraint = None if request.grammar is None else request.grammar.start()
        self.mask = TokenMask.of(request, self.constraint)
        self.prompt_scores = (
            None
            if request.prompt_logprobs is None
            else ScoredPrompt(
                request.prompt, request.prompt_logprobs, block_tokens, start=request.prompt_logprobs_from
            )
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
    def finish(self) -> Finish | None:
        """Why the token sampled last ends the answer; `None` if it goes on."""
        if self.outputs and self.tokens[-1] in self.request.stop_ids:
            return "stop"
        if self.constraint is not None and self.outputs and self.constraint.complete:
            return "stop"
        return "length" if self.outputs >= self.request.max_tokens else None

    @property
    def ready(self) -> bool:
        """Whether its next token can be chosen without keeping the others waiting."""
        return self.constraint is None or self.constraint.ready

    @property
    def aged(self) -> bool:
        """Passed by as much work as it is itself."""
        return self.passed >= self.pending

    @property
    def growth_blocks(self) -> int:
        """Blocks that it may still need beyond those it has."""
        return len(self.table) - self.blocks

    def score_prompt(self, positions: range, logits: NDArray[np.float32]) -> None:
        """Take the logits of positions of the prompt (positions, vocabulary)."""
        if self.prompt_scores is not None:
            self.prompt_scores.score(positions, logits)

    @property
    def scores(self) -> PromptScores | None:
        """The scores of the prompt, if they were asked for."""
        return None if self.prompt_scores is None else self.prompt_scores.scores

    def possible(self, draft: Sequence[int]) -> Sequence[int]:
        """As much of a guess as the grammar could let pass."""
        return draft if self.constraint is None else draft[: self.constraint.allowed(draft)]

    def append(self, token: int) -> None:
        """Take a sampled token."""
        self.tokens.append(token)
        self.account.decoded()
        if self.seen is not None:
            self.seen.add(token)
        if self.constraint is not None and token not in self.request.stop_ids:
            self.constraint.accept(token)
