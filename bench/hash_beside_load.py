"""What it costs that weights are hashed anew at each load: beside the rest of the load, before it, and not at all.

    python bench/hash_beside_load.py [model.gguf] [--threads 2] [--rounds 15]

Loads a model again and again in one process, the three ways in turn, with packed weights on disk. "Not at all" is what no
worker does: bytes that were changed behind a registered name would be served.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

from tiltyard.identity.canonical import Digest
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.models.cache import Rehashing, digest_of_model, hash_model
from tiltyard.models.progress import SilentProgress
from tiltyard.models.sources import DEFAULT_MODEL_SHA256, DEFAULT_MODEL_SOURCE, default_cache, parse_source
from tiltyard.worker import host
from tiltyard.worker.host import HostSettings, load_host
from tiltyard.worker.packed_cache import PackedCache


class Believing:
    """Takes the sidecar's word."""

    def __init__(self, path: Path, _aside: Executor) -> None:
        self.digest: Digest = digest_of_model(path)

    def verify(self) -> None:
        """Nothing."""


class Before(Believing):
    """Hashes, and begins then."""

    def __init__(self, path: Path, _aside: Executor) -> None:
        self.digest = hash_model(path, SilentProgress())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    model = arguments.model or parse_source(DEFAULT_MODEL_SOURCE).fetch(
        default_cache(), DEFAULT_MODEL_SHA256, SilentProgress()
    )
    ways: dict[str, type[Rehashing] | type[Believing]] = {
        "beside": Rehashing,
        "before": Before,
        "not at all": Believing,
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        settings = HostSettings(
            threads=arguments.threads,
            kv_memory_bytes=64 << 20,
            packed_cache=PackedCache(Path(folder), 8 << 30),
        )

        def load() -> None:
            load_host(model, {"cold": IdentityDeclaration(model="cold")}, settings)

        load()  # packs
        for _ in range(arguments.rounds):
            for name, way in ways.items():
                host.Rehashing = way  # type: ignore[assignment,misc]
                times[name].append(seconds(load))
    alone = statistics.median(seconds(lambda: hash_model(model, SilentProgress())) for _ in range(5))
    print(f"{model.stat().st_size / 1e6:,.0f} MB; hashing alone takes {alone * 1000:.0f} ms")
    none = statistics.median(times["not at all"])
    for name, taken in times.items():
        median = statistics.median(taken)
        print(
            f"{name:>10}: {median * 1000:.0f} ms a load (median), {median / none:.2f} of one that does not hash; {min(taken) * 1000:.0f} ms at best"
        )


def seconds(what: Callable[[], object]) -> float:
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
