"""One request being answered: from prompt tokens and settings to visible text, choice by choice.

Used by the server and by `LocalModel` alike, so a replay takes the same path as the answer it repeats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tiltyard.engine.constraint import Grammar
from tiltyard.engine.request import (
    EmittedToken,
    EngineRequest,
    Expired,
    PromptScores,
    RequestClass,
    SamplingSettings,
)
from tiltyard.identity.canonical import Digest, digest_of_json
from tiltyard.identity.manifest import DefaultSampling
from tiltyard.models.grammar import ENGINE
from tiltyard.models.tool_calls import Schemas
from tiltyard.models.tool_formats import ToolFormat
from tiltyard.models.tool_parser import CallDelta, ToolParser
from tiltyard.wire.answers import FinishReason
from tiltyard.wire.decoding import Decoding
from tiltyard.wire.terms import ServiceTerms
from tiltyard.wire.worker import FinishedAnswer, FinishedChoice, StepWork
from tiltyard.worker.loop import Done
from tiltyard.worker.spelling import MarksShown, SpelledOut, TokenSpelling
from tiltyard.worker.text import TextStream

SEED_SPAN = 1 << 64


class CallRules(NamedTuple):
    """How calls are read from an answer."""

    format: ToolFormat
    schemas: Schemas
    """Of the functions that may be called."""
    held: bool
    """Whether a grammar makes every call a right one, so that it can be shown while it is written."""
    single: bool
    """Whether one call ends the answer."""

    def parser(self) -> ToolParser:
        """A reader of one answer."""
        return ToolParser(self.format, self.schemas, live=self.held, single=self.single)


class Terms(NamedTuple):
    """How urgent an answer is; deadlines are instants of the engine's clock, `None` for never."""

    priority: RequestClass = "interactive"
    queue_deadline_s: float | None = None
    deadline_s: float | None = None
    speculate: bool = True
    group: str = ""

    @classmethod
    def starting(cls, asked: ServiceTerms, arrived_s: float) -> Terms:
        """What a client asked for, counted from the arrival of its request."""
        queue, total = (
            None if limit is None else arrived_s + limit / 1e3
            for limit in (asked.queue_deadline_ms, asked.deadline_ms)
        )
        return cls(asked.service_class, queue, total, asked.speculate, asked.group)


DEFAULT_TERMS = Terms()


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """Everything that decides an answer. `sampling.max_tokens` has been resolved to a number."""

    generation: str
    identity: str
    behaviour: Digest
    deployment: Digest
    tenant: str
    prompt: tuple[int, ...]
    sampling: DefaultSampling
    seed: int
    stop_ids: frozenset[int]
    decoding: Decoding = field(default_factory=Decoding)
    bad_words: tuple[tuple[int, ...], ...] = ()
    """`decoding.bad_words` in tokens."""
    grammar: Grammar | None = None
    """`decoding.structure`, compiled."""
    n: int = 1
    top_logprobs: int | None = None
    terms: Terms = DEFAULT_TERMS
    prompt_logprobs: int | None = None
    """What the engine is asked for; `echo` may need more than the request's own field."""
    shown_prompt_logprobs: int | None = None
    prompt_logprobs_from: int = 0
    """The first position whose score is shown."""
    echo: bool = False
    """Whether the prompt stands before the answer."""
    adapter: int = 0
    calls: CallRules | None = None
    """`None`: nothing in the answer is a call."""

    def engine_requests(self) -> tuple[EngineRequest, ...]:
        """One request a choice; choice `i` draws from seed `seed + i` (modulo 2^64)."""
        s = self.sampling
        return tuple(
            EngineRequest(
                request_id=f"{self.generation}/{index}",
                prompt=self.prompt,
                sampling=SamplingSettings(
                    temperature=s.temperature,
                    top_p=s.top_p,
                    top_k=s.top_k,
                    min_p=s.min_p,
                    repetition_penalty=s.repetition_penalty,
                    presence_penalty=s.presence_penalty,
                    frequency_penalty=s.frequency_penalty,
                    logit_bias=tuple(sorted(self.decoding.logit_bias.items())),
                    seed=(self.seed + index) % SEED_SPAN,
                    bad_words=self.bad_words,
                    allowed_token_ids=self.decoding.allowed_token_ids,
                    min_tokens=self.decoding.min_tokens,
                ),
                max_tokens=s.max_tokens or 1,
                stop_ids=self.stop_ids,
                namespace=f"{self.behaviour}/{self.tenant}",
                top_logprobs=self.top_logprobs,
                tenant=self.tenant,
                priority=self.terms.priority,
                queue_deadline_s=self.terms.queue_deadline_s,
                deadline_s=self.terms.deadline_s,
                speculate=self.terms.speculate,
                grammar=self.grammar,
                prompt_logprobs=self.prompt_logprobs,
                prompt_logprobs_from=0 if self.echo else self.prompt_logprobs_from,
                group=self.terms.group,
                adapter=self.adapter,
            )
            for index in range(self.n)
        )


class ScoredToken(NamedTuple):
    """A token with its log-probability, for `logprobs`."""

    spelling: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...]
    text_offset: int
    """Characters of the answer before this token."""


@dataclass(frozen=True, slots=True)
class Update:
    """What one token changed for the reader."""

    index: int
    text: str
    """Content: what is not part of a call."""
    scored: Sequence[ScoredToken]
    token_ids: Sequence[int]
    """Tokens since the last update; those of text that is held back come with it."""
    finish_reason: FinishReason | None
    first: bool
    """The first update of this choice."""
    cancel: bool
    """The engine does not know that the answer is over: cancel its request."""
    prompt_scores: PromptScores | None = None
    """With the first update, if they were asked for."""
    calls: Sequence[CallDelta] = ()
    raw: str | None = None
    """Text and calls as the model wrote them, where calls are read."""


class Choice:
    """One of the `n` answers."""

    def __init__(
        self,
        index: int,
        request: EngineRequest,
        spelling: TokenSpelling,
        decoding: Decoding,
        calls: CallRules | None = None,
    ) -> None:
        self.index = index
        self.request = request
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.stop_match: str | None = None
        self.admitted = False
        """Whether the engine has begun to work on it."""
        self._spelling = spelling
        self._stream = TextStream(decoding.stop, show_stop=decoding.include_stop_str_in_output)
        self._parser = None if calls is None else calls.parser()
        self._decoding = decoding
        self._prompt_scores: PromptScores | None = None
        self._shown = 0  # characters that updates have carried
        self._text: list[str] = []
        self._unshown: list[tuple[int, ScoredToken]] = []  # (characters up to its end, token)
        self._begun = False
        self._told = 0  # token ids that updates have carried

    @property
    def text(self) -> str:
        """The visible text so far; where calls are read, with them as the model wrote them."""
        return "".join(self._text)

    def accept(self, token: EmittedToken) -> Update | None:
        """Take one token; `None` if there is nothing new to see."""
        if self.finish_reason is not None:
            return None
        self.token_ids.append(token.token)
        if token.prompt_scores is not None:
            self._prompt_scores = token.prompt_scores
        hidden = (
            token.finish == "stop"
            and token.token in self.request.stop_ids
            and not self._decoding.include_stop_str_in_output
        )
        offset = self._stream.characters
        may_stop = len(self.token_ids) > self._decoding.min_tokens
        text, match = self._stream.push(
            b"" if hidden else self._spelling.token_bytes(token.token), may_stop=may_stop
        )
        if match is None and token.finish is not None:
            tail = self._stream.finish(may_stop=may_stop)
            text, match = text + tail.text, tail.stop_match
        if match is not None:
            self.finish_reason, self.stop_match = "stop", match
        else:
            self.finish_reason = token.finish
        if token.logprob is not None and not hidden:
            self._unshown.append((self._stream.characters, self._score(token, token.logprob, offset)))
        return self._update(text, cancel=match is not None and token.finish is None)

    def expire(self) -> Update | None:
        """The deadline has passed: what is held back is shown, and that is all."""
        if self.finish_reason is not None:
            return None
        text, match = self._stream.finish()
        self.finish_reason, self.stop_match = ("deadline", None) if match is None else ("stop", match)
        return self._update(text, cancel=False)

    def _update(self, text: str, *, cancel: bool) -> Update | None:
        content, calls = text, list[CallDelta]()
        raw = None if self._parser is None else text
        if self._parser is not None:
            content, calls, ended = self._read_calls(self._parser, text)
            cancel = cancel or ended
        if text:
            self._text.append(text)
            self._shown += len(text)
        over = self.finish_reason is not None
        if self.stop_match is not None:  # the tokens of a stop string that is not shown are not shown either
            scored = [entry for _, entry in self._unshown if entry.text_offset < self._shown]
        else:
            scored = [entry for end, entry in self._unshown if over or end <= self._shown]
            del self._unshown[: len(scored)]
        if not (text or scored or over):
            return None
        first, self._begun = not self._begun, True
        token_ids, self._told = self.token_ids[self._told :], len(self.token_ids)
        prompt_scores, self._prompt_scores = self._prompt_scores, None
        return Update(
            index=self.index,
            text=content,
            scored=scored,
            token_ids=token_ids,
            finish_reason=self.finish_reason,
            first=first,
            cancel=cancel,
            prompt_scores=prompt_scores,
            calls=calls,
            raw=raw,
        )

    def _read_calls(self, parser: ToolParser, text: str) -> tuple[str, list[CallDelta], bool]:
        """Content and calls of a piece of text, and whether the engine must be told that the answer is over."""
        content, calls = parser.push(text)
        ended = parser.done and self.finish_reason is None
        if ended or self.finish_reason is not None:
            tail = parser.finish()
            content, calls = content + tail.text, calls + tail.calls
            if parser.calls and self.stop_match is None and self.finish_reason in (None, "stop"):
                self.finish_reason = "tool_calls"
        return content, calls, ended

    def _score(self, token: EmittedToken, logprob: float, offset: int) -> ScoredToken:
        spell = self._spelling.token_bytes
        top = tuple((spell(other), value) for other, value in token.top or ())
        return ScoredToken(spell(token.token), logprob, top, offset)


class Answer:
    """All choices of one request, with what is known when they have ended. Times are seconds of one clock."""

    def __init__(self, plan: AnswerPlan, spelling: TokenSpelling, *, submitted_s: float) -> None:
        self.plan = plan
        self.spelling = spelling if plan.decoding.skip_special_tokens else SpelledOut(spelling)
        if plan.calls is not None:
            self.spelling = MarksShown(self.spelling, plan.calls.format.marks)
        self.choices = tuple(
            Choice(index, request, self.spelling, plan.decoding, plan.calls)
            for index, request in enumerate(plan.engine_requests())
        )
        self.cached_tokens: int | None = None
        self.submitted_s = submitted_s
        self.admitted_s: float | None = None
        self.first_token_s: float | None = None
        self.finished_s: float | None = None
        self.expired: Literal["queue", "total"] | None = None
        """Which deadline ended a choice, if one did."""
        self._peak_blocks: dict[str, int] = {}
        self._drafted: dict[str, tuple[int, int]] = {}  # guessed for a choice, and right
        self._by_request: Mapping[str, Choice] = {c.request.request_id: c for c in self.choices}
        self._admitted: Done | None = None
        self._first: Done | None = None
        self._finished: Done | None = None
        """What the engine had done at those moments, where it says."""

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return self.finished_s is not None

    @property
    def completion_tokens(self) -> int:
        """Tokens generated, stop tokens included."""
        return sum(len(choice.token_ids) for choice in self.choices)

    @property
    def drafted_tokens(self) -> tuple[int, int]:
        """Tokens guessed ahead, and those of them that were right."""
        drafted = self._drafted.values()
        return sum(guessed for guessed, _ in drafted), sum(right for _, right in drafted)

    def admit(self, request_id: str, at_s: float, done: Done | None = None) -> bool:
        """The engine has begun to work on a choice; False if it had done so before (and was preempted).

        `done`: what the engine had run until then.
        """
        if self.admitted_s is None:
            self.admitted_s, self._admitted = at_s, done
        choice = self._by_request[request_id]
        news, choice.admitted = not choice.admitted, True
        return news

    def accept(self, token: EmittedToken, at_s: float, done: Done | None = None) -> Update | None:
        """Take one token of one choice; `done`: what the engine has run until then."""
        choice = self._by_request[token.request_id]
        if self.first_token_s is None:
            self.first_token_s, self._first = at_s, done
            self.cached_tokens = token.cached_tokens
        self._peak_blocks[token.request_id] = token.kv_blocks
        self._drafted[token.request_id] = (token.drafted_tokens, token.accepted_tokens)
        update = choice.accept(token)
        if not self.finished and all(c.finish_reason is not None for c in self.choices):
            self.finished_s, self._finished = at_s, done
        return update

    def expire(self, expired: Expired, at_s: float) -> Update | None:
        """The engine has dropped a choice because its time was over."""
        self.expired = expired.deadline
        update = self._by_request[expired.request_id].expire()
        if not self.finished and all(c.finish_reason is not None for c in self.choices):
            self.finished_s = at_s
        return update

    def unfinished_request_ids(self) -> list[str]:
        """Requests that the engine may still be working on."""
        return [c.request.request_id for c in self.choices if c.finish_reason is None]

    def outcome(self) -> FinishedAnswer:
        """The facts of a finished answer."""
        plan = self.plan
        admitted = self.submitted_s if self.admitted_s is None else self.admitted_s
        first = admitted if self.first_token_s is None else self.first_token_s
        finished = first if self.finished_s is None else self.finished_s
        return FinishedAnswer(
            identity=plan.identity,
            behaviour=plan.behaviour,
            deployment=plan.deployment,
            sampling=plan.sampling,
            seed=plan.seed,
            prompt_tokens=len(plan.prompt),
            cached_tokens=self.cached_tokens or 0,
            completion_tokens=self.completion_tokens,
            prompt_token_digest=digest_of_json(plan.prompt),
            structure_engine=None if plan.decoding.structure is None else ENGINE,
            choices=tuple(
                FinishedChoice(
                    index=c.index,
                    text=c.text,
                    token_ids=tuple(c.token_ids),
                    finish_reason=c.finish_reason or "stop",
                    stop_match=c.stop_match,
                )
                for c in self.choices
            ),
            queue_ms=(admitted - self.submitted_s) * 1e3,
            prefill_ms=(first - admitted) * 1e3,
            decode_ms=(finished - first) * 1e3,
            time_to_first_token_ms=None if self.first_token_s is None else (first - self.submitted_s) * 1e3,
            prefill_work=_between(self._admitted, self._first),
            decode_work=_between(self._first, self._finished),
            peak_kv_blocks=sum(self._peak_blocks.values()),
            drafted_tokens=self.drafted_tokens[0],
            accepted_tokens=self.drafted_tokens[1],
        )


def _between(begin: Done | None, end: Done | None) -> StepWork | None:
    if begin is None or end is None:
        return None
    return StepWork(
        steps=end.steps - begin.steps,
        prompt_tokens=end.prompt_tokens - begin.prompt_tokens,
        answer_tokens=end.answer_tokens - begin.answer_tokens,
        context_tokens=end.context_tokens - begin.context_tokens,
    )
