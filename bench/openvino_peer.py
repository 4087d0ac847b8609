"""OpenVINO GenAI's continuous batching pipeline, in process, on the same GGUF file.

Its GGUF reader changes the weights (the minimum of Q4_1 becomes an integer zero point), so its speed is that of a
slightly different, less accurate model; it is listed because users would compare it.
"""

from __future__ import annotations

import time
from pathlib import Path

import openvino_genai as genai

from workloads import Figure, Workload, prompts


class OpenVino:
    """One model file, loaded once."""

    name = f"OpenVINO GenAI {genai.__version__.split('-')[0]}"

    def __init__(self, path: Path, threads: int) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 1  # GB
        scheduler.enable_prefix_caching = True
        scheduler.dynamic_split_fuse = True
        self.pipeline = genai.ContinuousBatchingPipeline(
            str(path), scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads}
        )
        self.requests = 0

    def run(self, workload: Workload, seed: int) -> Figure:
        """Run one repetition of a workload."""
        settings = genai.GenerationConfig()
        settings.max_new_tokens = workload.new_tokens
        settings.ignore_eos = True
        settings.do_sample = False
        waiting = prompts(workload, seed)
        tokenizer = self.pipeline.get_tokenizer()
        prompt_tokens = tokenizer.encode(waiting[0]).input_ids.shape[1]
        limit = workload.concurrency or workload.requests
        began = time.perf_counter()
        running: dict[int, genai.GenerationHandle] = {}
        first: dict[int, float] = {}
        last = began
        made = 0
        while waiting or running:
            while waiting and len(running) < limit:
                self.requests += 1
                running[self.requests] = self.pipeline.add_request(self.requests, waiting.pop(0), settings)
            self.pipeline.step()
            for number, handle in list(running.items()):
                while handle.can_read():
                    made += sum(len(output.generated_ids) for output in handle.read().values())
                    last = time.perf_counter()
                    first.setdefault(number, last - began)
                if handle.get_status() != genai.GenerationStatus.RUNNING:
                    del running[number]
        wall = time.perf_counter() - began
        worst = max(first.values())
        if workload.name == "decode":
            return Figure((made - 1) / (last - began - worst), worst)
        if workload.name == "prefill":
            return Figure(prompt_tokens / worst, worst)
        return Figure(made / wall, worst)
