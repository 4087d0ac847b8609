"""llama.cpp through llama-cpp-python's low-level interface, in process: its best case, without HTTP or Python servers.

Each request has its own KV stream; a wave of requests is prefilled one after another and then decoded together, which
is what continuous batching does at its best. Greedy, as for us.
"""

from __future__ import annotations

import ctypes
import time
from pathlib import Path

import llama_cpp as L  # noqa: N812
import numpy as np

from workloads import Figure, Workload, prompts


class LlamaCpp:
    """One model file, loaded once."""

    name = f"llama.cpp (llama-cpp-python {L.__version__})"

    def __init__(self, path: Path, threads: int) -> None:
        L.llama_log_set(_silent, ctypes.c_void_p(0))
        L.llama_backend_init()
        self.threads = threads
        self.model = L.llama_model_load_from_file(str(path).encode(), L.llama_model_default_params())
        self.vocabulary = L.llama_model_get_vocab(self.model)
        self.size = L.llama_vocab_n_tokens(self.vocabulary)

    def run(self, workload: Workload, seed: int) -> Figure:
        """Run one repetition of a workload."""
        asked = [self.tokens(prompt) for prompt in prompts(workload, seed)]
        wave = workload.concurrency or workload.requests
        longest = max(map(len, asked)) + workload.new_tokens
        context = self.context(slots=wave, positions=longest + 8)
        began = time.perf_counter()
        first_token, decode_s, prefill_s = 0.0, 0.0, 0.0
        held: list[list[int]] = [[] for _ in range(wave)]
        for start in range(0, len(asked), wave):
            group = asked[start : start + wave]
            next_tokens = []
            for slot, tokens in enumerate(group):
                at = time.perf_counter()
                kept = self.keep_prefix(context, slot, held[slot], tokens)
                rest = [(t, kept + i, slot, kept + i == len(tokens) - 1) for i, t in enumerate(tokens[kept:])]
                self.decode(context, rest)
                next_tokens.append(self.best(context, len(rest) - 1))
                held[slot] = tokens
                prefill_s += time.perf_counter() - at
                first_token = max(first_token, time.perf_counter() - began)
            at = time.perf_counter()
            for step in range(workload.new_tokens - 1):
                rows = [
                    (token, len(group[slot]) + step, slot, True) for slot, token in enumerate(next_tokens)
                ]
                self.decode(context, rows)
                next_tokens = [self.best(context, slot) for slot in range(len(rows))]
            decode_s += time.perf_counter() - at
        wall = time.perf_counter() - began
        L.llama_free(context)
        if workload.name == "decode":
            return Figure((workload.new_tokens - 1) / decode_s, first_token)
        if workload.name == "prefill":
            return Figure(len(asked[0]) / prefill_s, first_token)
        return Figure(workload.requests * workload.new_tokens / wall, first_token)

    def keep_prefix(self, context: ctypes.c_void_p, slot: int, held: list[int], tokens: list[int]) -> int:
        """Keep what a slot's last prompt has in common with this one, as llama-server does; returns its length."""
        common = next((i for i, (a, b) in enumerate(zip(held, tokens, strict=False)) if a != b), len(held))
        common = min(common, len(tokens) - 1)
        L.llama_memory_seq_rm(L.llama_get_memory(context), slot, common, -1)
        return common

    def context(self, *, slots: int, positions: int) -> ctypes.c_void_p:
        """Make a context with a KV stream of its own for each slot."""
        settings = L.llama_context_default_params()
        settings.n_ctx = slots * ((positions + 255) // 256 * 256)
        settings.n_batch = settings.n_ubatch = 1024
        settings.n_seq_max = slots
        settings.n_threads = settings.n_threads_batch = self.threads
        settings.kv_unified = False
        return L.llama_init_from_model(self.model, settings)

    def tokens(self, text: str) -> list[int]:
        """Tokenize as llama.cpp does."""
        raw = text.encode()
        buffer = (L.llama_token * (len(raw) + 8))()
        count = L.llama_tokenize(self.vocabulary, raw, len(raw), buffer, len(buffer), False, False)
        return list(buffer[:count])

    def decode(self, context: ctypes.c_void_p, rows: list[tuple[int, int, int, bool]]) -> None:
        """One step over rows of (token, position, slot, wants logits)."""
        batch = L.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for i, (token, position, slot, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, wanted
            batch.seq_id[i][0] = slot
        if L.llama_decode(context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        L.llama_synchronize(context)
        L.llama_batch_free(batch)

    def best(self, context: ctypes.c_void_p, row: int) -> int:
        """Greedy token of one row."""
        logits = L.llama_get_logits_ith(context, row)
        return int(np.ctypeslib.as_array(logits, shape=(self.size,)).argmax())


@L.llama_log_callback
def _silent(_level: int, _text: bytes, _data: ctypes.c_void_p) -> None:
    """Drop llama.cpp's load log."""
