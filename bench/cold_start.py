"""How soon a worker serves, and whether its first answer is as fast as its tenth.

    python bench/cold_start.py [model.gguf] [--threads 2] [--quantization as-stored] [--starts 8]

Starts the worker process again and again. For each start: seconds from the creation of the process to its ready
file, what the worker itself measured, the CPU time until then, and the time to the first token of ten requests one after the other. Each
prompt begins with other words, so that none finds a prefix in the cache. The first start packs the weights; the
others find them packed where the cache is on.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

sys.path.insert(0, str(Path(__file__).parent))

from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.models.progress import SilentProgress
from tiltyard.models.sources import DEFAULT_MODEL_SHA256, DEFAULT_MODEL_SOURCE, default_cache, parse_source
from tiltyard.wire.worker import WorkerSpec
from workloads import WORDS

REQUESTS = 10
PROMPT_WORDS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quantization", default="as-stored")
    parser.add_argument("--no-packed-cache", dest="packed", action="store_false")
    parser.add_argument("--starts", type=int, default=8)
    arguments = parser.parse_args()
    model = arguments.model or parse_source(DEFAULT_MODEL_SOURCE).fetch(
        default_cache(), DEFAULT_MODEL_SHA256, SilentProgress()
    )
    with tempfile.TemporaryDirectory() as folder:
        first: list[float] = []
        later: list[float] = []
        warm: list[float] = []
        for start in range(arguments.starts):
            spec = WorkerSpec(
                worker="cold",
                port=0,
                ready_file=str(Path(folder) / "ready.json"),
                model_path=str(model),
                identities={"cold": IdentityDeclaration(model="cold", quantization=arguments.quantization)},
                threads=arguments.threads,
                kv_memory_bytes=512 << 20,
                identity_store=str(Path(folder) / "identities"),
                packed_cache=str(Path(folder) / "packed") if arguments.packed else None,
                packed_cache_bytes=4 << 30,
            )
            with running(spec, Path(folder)) as (url, seconds, load_s, cpu_s):
                times = [first_token_ms(url, start * REQUESTS + i) for i in range(REQUESTS)]
            first.append(times[0])
            later.append(times[-1])
            shown = " ".join(f"{ms:.1f}" for ms in times)
            print(
                f"start {start}: ready {seconds:.2f} s after the process, {load_s:.2f} s after its imports, "
                f"{cpu_s:.2f} s of CPU"
            )
            print(f"  time to first token, ms: {shown}")
            if start:
                warm.append(seconds)
        if warm and arguments.packed:
            print(
                f"with packed weights on disk: ready {statistics.median(warm):.2f} s after the process (median), "
                f"{min(warm):.2f} s at best"
            )
        print(f"median first {statistics.median(first):.1f} ms, tenth {statistics.median(later):.1f} ms")


@contextmanager
def running(spec: WorkerSpec, folder: Path) -> Iterator[tuple[str, float, float, float]]:
    path = folder / "spec.json"
    path.write_text(spec.model_dump_json())
    ready = Path(spec.ready_file)
    ready.unlink(missing_ok=True)
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "tiltyard.worker", str(path)], stderr=subprocess.PIPE)
    try:
        while not ready.exists():
            if process.poll() is not None:
                raise SystemExit((process.stderr or sys.stdin).read())
            time.sleep(0.002)
        seconds = time.perf_counter() - began
        value = json.loads(ready.read_bytes())
        ticks = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        cpu_s = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        yield value["url"], seconds, value["load_ms"] / 1e3, cpu_s
    finally:
        process.terminate()
        process.wait()


def first_token_ms(url: str, number: int) -> float:
    """Milliseconds from sending a streamed chat request to its first piece of text, over a fresh connection."""
    words = " ".join(WORDS[(number * 7 + i * (number + 3)) % len(WORDS)] for i in range(PROMPT_WORDS))
    body = {
        "model": "cold",
        "messages": [
            {"role": "system", "content": f"{number} {words}"},
            {"role": "user", "content": "Go on."},
        ],
        "max_tokens": 4,
        "seed": number,
        "stream": True,
    }
    with httpx2.Client(trust_env=False) as http:
        http.get(url + "/health")  # the connection, and the client's own first use, are not the worker's
        began = time.perf_counter()
        with http.stream("POST", url + "/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            ended = 0.0
            for line in response.iter_lines():
                if (
                    not ended
                    and line.startswith("data: ")
                    and '"content":"' in line
                    and '"content":""' not in line
                ):
                    ended = time.perf_counter()
    if not ended:
        raise SystemExit("no token came")
    return (ended - began) * 1e3


if __name__ == "__main__":
    main()
