"""Compiles what requests demand of their answers' form, so that no demand can hold up anybody else.

A demand that was compiled before is ready at once. Another one is tried in a process of its own, under limits of time
and memory, and compiled here only after it passed; both in threads that do nothing else.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import Counter, OrderedDict
from concurrent.futures import ThreadPoolExecutor
from queue import LifoQueue

from tiltyard.errors import InvalidRequest, Overloaded
from tiltyard.identity.canonical import Digest
from tiltyard.models.grammar import CompiledGrammar, Vocabulary
from tiltyard.models.grammar_check import GrammarTooComplex, GrammarTrial
from tiltyard.models.grammar_text import NotExpressible
from tiltyard.models.tokenizer import Tokenizer
from tiltyard.wire.structured import Structure

COMPILE_S = 4.0
"""Most time that a demand may take; common ones take milliseconds."""
AT_ONCE = 2
MAX_WAITING = 4
"""Demands of one tenant that may wait for the compiler."""
MAX_KEPT = 128


class Grammars:
    """The compiled demands of one model."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, *, compile_s: float = COMPILE_S) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._compile_s = compile_s
        self._lock = threading.Lock()
        self._kept: OrderedDict[Digest, CompiledGrammar | InvalidRequest] = OrderedDict()
        self._vocabulary: Vocabulary | None = None
        self._trials: LifoQueue[GrammarTrial] = LifoQueue()
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="grammar")
        self._waiting: Counter[str] = Counter()
        self._made: list[GrammarTrial] = []
        self._compiling: dict[Digest, asyncio.Future[CompiledGrammar]] = {}
        """By digest, what is being compiled for somebody; the event loop's alone."""
        weakref.finalize(self, _close, self._threads, self._made)

    async def compile(self, structure: Structure, tenant: str) -> CompiledGrammar:
        """Compile, or find, a demand's grammar.

        Raises `InvalidRequest` that names the part which is not understood, or says that it takes too long;
        `Overloaded` when the tenant has several demands waiting already.
        """
        if (kept := self._find(structure)) is not None:
            return _unless_refused(kept, structure)
        # Many requests with one new form, as a batch brings them: one compiles it, the others wait for that one.
        while (ahead := self._compiling.get(structure.digest)) is not None and not ahead.done():
            await asyncio.wait([ahead])
            if (kept := self._find(structure)) is not None:
                return _unless_refused(kept, structure)
        if self._waiting[tenant] >= MAX_WAITING:
            raise Overloaded(
                f"{MAX_WAITING} schemas or grammars of yours are being compiled; try again shortly",
                retry_after_s=self._compile_s,
                param=structure.param,
            )
        self._waiting[tenant] += 1
        made = asyncio.get_running_loop().run_in_executor(self._threads, self.compile_now, structure)
        self._compiling[structure.digest] = made
        try:
            return await made
        finally:
            if self._compiling.get(structure.digest) is made:
                del self._compiling[structure.digest]
            self._waiting[tenant] -= 1
            if not self._waiting[tenant]:
                del self._waiting[tenant]

    def compile_now(self, structure: Structure) -> CompiledGrammar:
        """The same, waiting for it; raises `InvalidRequest`."""
        if (kept := self._find(structure)) is None:
            kept = self._make(structure)
            with self._lock:
                self._kept[structure.digest] = kept
                while len(self._kept) > MAX_KEPT:
                    self._kept.popitem(last=False)
        return _unless_refused(kept, structure)

    def close(self) -> None:
        """End the threads and processes."""
        _close(self._threads, self._made)

    def _find(self, structure: Structure) -> CompiledGrammar | InvalidRequest | None:
        with self._lock:
            if (kept := self._kept.get(structure.digest)) is not None:
                self._kept.move_to_end(structure.digest)
            return kept

    def _make(self, structure: Structure) -> CompiledGrammar | InvalidRequest:
        trial = self._take_trial()
        try:
            text = trial.text(structure, self._compile_s)
        except NotExpressible as refused:
            place = f"{structure.param} at {refused.path}" if refused.path else structure.param
            return InvalidRequest(
                f"{place}: {refused.reason}. Change it: nothing is constrained in part.",
                param=structure.param,
                code="grammar_refused",
            )
        except GrammarTooComplex:
            return InvalidRequest(
                f"{structure.param} needs more than {self._compile_s:g} s or too much memory to compile; "
                "simplify it",
                param=structure.param,
                code="grammar_too_complex",
            )
        finally:
            self._trials.put(trial)
        return self._own_vocabulary().compile(text)

    def _take_trial(self) -> GrammarTrial:
        if not self._trials.empty() or len(self._made) >= AT_ONCE:
            return self._trials.get()
        trial = GrammarTrial(*_parts(self._tokenizer, self._vocab_size))
        self._made.append(trial)
        return trial

    def _own_vocabulary(self) -> Vocabulary:
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = Vocabulary(*_parts(self._tokenizer, self._vocab_size))
            return self._vocabulary


def _parts(tokenizer: Tokenizer, vocab_size: int) -> tuple[list[bytes], list[int], list[int], int]:
    """Tokens as an answer shows them; control tokens, which add nothing to a text, by their names."""
    tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    for name, token in tokenizer.control_tokens.items():
        tokens[token] = name.encode()
    return tokens, sorted(tokenizer.control_tokens.values()), sorted(tokenizer.stop_ids), vocab_size


def _unless_refused(kept: CompiledGrammar | InvalidRequest, structure: Structure) -> CompiledGrammar:
    if isinstance(kept, InvalidRequest):
        # The same demand may stand elsewhere in this request.
        message = kept.message.replace(kept.param or "", structure.param, 1)
        raise InvalidRequest(message, param=structure.param, code=kept.code)
    return kept


def _close(threads: ThreadPoolExecutor, trials: list[GrammarTrial]) -> None:
    threads.shutdown(wait=False, cancel_futures=True)
    for trial in trials:
        trial.close()
