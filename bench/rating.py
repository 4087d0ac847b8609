"""Time the Bradley-Terry fit with intervals: 1.67 million votes from counts and from rows, against arena-rank.

    TILTYARD_DATA=../shared/data python bench/rating.py [votes.json]

The file has `models`, `X` (pairs) and `Y` ([win_i, loss_i, tie, both_bad]), as PyPI's `leaderbot` 0.4.3 ships it.
Rows are the same votes written out, shuffled, one string triple each. Ratios are printed only when arena-rank is
installed; it runs with its own defaults, compiled once before it is timed. One process, one after another.
"""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tiltyard.rating.bootstrap import bootstrap
from tiltyard.rating.bradley_terry import Ratings, fit
from tiltyard.rating.counts import PairCounts

try:
    import pandas
    from arena_rank.models.bradley_terry import BradleyTerry
    from arena_rank.utils.data_utils import PairDataset
except ImportError as missing:
    PEER_MISSING: str | None = missing.name
else:
    PEER_MISSING = None

LABELS = ("model_a", "model_b", "tie", "tie (bothbad)")
REPEATS = 5
Rows = tuple[list[str], list[str], list[str]]


def main() -> None:
    default = Path(os.environ.get("TILTYARD_DATA", "../shared/data")) / "eval/votes"
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else default / "chatbotarena_20240814_pair_counts.json"
    data = json.loads(path.read_text())
    rows = written_out(data["models"], data["X"], data["Y"])
    print(
        f"{len(rows[0]):,} votes, {len(data['models'])} models, {len(data['X']):,} pairs, numpy {np.__version__}"
    )

    counts = PairCounts.from_pairs(data["models"], data["X"], data["Y"])
    seconds = {
        "fit and sandwich from pair counts": timed(lambda: fit(counts)),
        "pair counts from rows": timed(lambda: PairCounts.from_votes(*rows)),
        "all from rows": timed(lambda: fit(PairCounts.from_votes(*rows))),
        "bootstrap, 100 resamples": timed(lambda: bootstrap(counts, seed=1, resamples=100), repeats=1),
    }
    for what, best in seconds.items():
        print(f"  tiltyard    {what:36} {best * 1000:9.1f} ms")
    print(f"  tiltyard    memory above the rows, at most {traced_mib(rows):22.0f} MiB")
    print(f"  peak memory with the rows as Python strings {peak_mib():,.0f} MiB")
    if PEER_MISSING is not None:
        print(f"no ratios: {PEER_MISSING} is not installed (pip install arena-rank==0.1.1)")
        return
    against_peer(rows, fit(counts), seconds["all from rows"], seconds["fit and sandwich from pair counts"])


def written_out(models: list[str], pairs: list[list[int]], counts: list[list[int]]) -> Rows:
    """Write each vote out as a row, in random order, half of them with the sides swapped."""
    flipped = (1, 0, 2, 3)
    rng = random.Random(20240814)  # an order of rows, not a secret
    votes = [
        (models[j], models[i], LABELS[flipped[outcome]])
        if number % 2
        else (models[i], models[j], LABELS[outcome])
        for (i, j), row in zip(pairs, counts, strict=True)
        for outcome, count in enumerate(row)
        for number in range(count)
    ]
    rng.shuffle(votes)
    a, b, winner = zip(*votes, strict=True)
    return list(a), list(b), list(winner)


def against_peer(rows: Rows, ours: Ratings, ours_from_rows: float, ours_fit: float) -> None:
    """Time arena-rank on the same rows and compare the ratings."""
    frame = pandas.DataFrame({"model_a": rows[0], "model_b": rows[1], "winner": rows[2]})

    def prepare() -> PairDataset:
        return PairDataset.from_pandas(frame)  # it reads "tie (bothbad)" as 0.5, as it does any unknown label

    dataset = prepare()

    def fit_peer() -> dict[str, object]:
        return BradleyTerry(n_competitors=len(ours.models)).compute_ratings_and_cis(dataset)

    theirs = fit_peer()  # its compiler's first run is not counted
    ratings = dict(zip(theirs["competitors"], np.asarray(theirs["ratings"]), strict=True))
    furthest = max(
        abs(ratings[model] - rating) for model, rating in zip(ours.models, ours.ratings, strict=True)
    )
    prepare_s, fit_s = timed(prepare, repeats=2), timed(fit_peer, repeats=2)
    print(f"  arena-rank  preprocessing from rows              {prepare_s * 1000:9.1f} ms")
    print(f"  arena-rank  fit and sandwich                     {fit_s * 1000:9.1f} ms")
    print(f"  largest difference of a rating, with its default tolerance: {furthest:.2f} points")
    print(f"ratio, all from rows: {(prepare_s + fit_s) / ours_from_rows:.1f}x")
    print(f"ratio, fit and sandwich alone: {fit_s / ours_fit:.1f}x")


def timed(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the best of some runs, in seconds."""
    best = float("inf")
    for _ in range(repeats):
        gc.collect()
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def traced_mib(rows: Rows) -> float:
    """Return the most that rating the rows held beside them; NumPy reports its arrays to tracemalloc."""
    tracemalloc.start()
    fit(PairCounts.from_votes(*rows))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def peak_mib() -> float:
    """Largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
