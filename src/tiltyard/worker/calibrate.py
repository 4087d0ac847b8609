"""Measures what a forward pass costs by its number of rows: speculation must know what a guess costs here."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from tiltyard.engine.batch import ForwardModel
from tiltyard.engine.speculation import StepCosts

ROWS = (1, 2, 3, 4, 6, 8, 16)
ROUNDS = 2


def measure_step_costs(
    model: ForwardModel, vocab_size: int, clock: Callable[[], float] = time.perf_counter
) -> StepCosts:
    """Run passes of growing size over the first KV block; call it before the engine uses the model.

    The quickest of a few rounds counts, and a larger pass never costs less than a smaller one.
    """
    best = [float("inf")] * len(ROWS)
    for _ in range(ROUNDS):
        for index, rows in enumerate(ROWS):
            tokens = np.arange(rows, dtype=np.int32) % vocab_size
            positions = np.arange(rows, dtype=np.int32)
            owners, table = np.zeros(rows, np.int32), np.zeros((1, 1), np.int32)
            logits = np.empty((rows, vocab_size), np.float32)
            began = clock()
            model.forward(tokens, positions, owners, table, positions, logits)
            best[index] = min(best[index], clock() - began)
    costs = np.maximum.accumulate(best) / best[0]
    return StepCosts(ROWS, tuple(costs.tolist()), first_s=best[0])
