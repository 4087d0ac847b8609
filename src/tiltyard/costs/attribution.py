r"""Whose second was it? Each second in which a worker works is shared by the requests that it works on, in equal parts.

A request is worked on from the first chunk of its prompt to its first token (prefill: `prefill_ms` before the first token) and from there to
its last (decode: `decode_ms`); waiting in the queue costs nothing. Let `n(t)` be the number of requests that are worked on at `t`. A stretch
`[a, b]` of one of them is charged

    integral from a to b of dt / n(t)

so that all charges together are the time in which the worker worked, neither more nor less. It is the Shapley value (L. S. Shapley, 1953, "A
value for n-person games") of the game in which a set of requests costs the time in which at least one of them is worked on: at each moment all who
are there are alike, and who is not there adds nothing.

What it cannot know: within a step a prompt's chunk takes more of the machine than one token of an answer, so that an answer beside
a long prompt is charged some of the prompt's time. The log has times of requests, not of steps.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Seconds = npt.NDArray[np.float64]


def shared_seconds(starts: Seconds, ends: Seconds) -> Seconds:
    """Return what each stretch is charged; `starts` and `ends` have one entry each for every stretch of one worker.

    The first is alone for 2 s, then two share 2 s, then the second is alone for 1 s:

    >>> shared_seconds(np.array([0.0, 2.0]), np.array([4.0, 5.0])).tolist()
    [3.0, 2.0]
    """
    if not len(starts):
        return np.zeros(0)
    ends = np.maximum(starts, ends)
    moments = np.concatenate([starts, ends])
    changes = np.concatenate([np.ones(len(starts)), -np.ones(len(ends))])
    order = np.argsort(moments, kind="stable")
    moments, together = moments[order], np.cumsum(changes[order])
    lengths = np.diff(moments)
    shares = np.divide(lengths, together[:-1], out=np.zeros(len(lengths)), where=together[:-1] > 0)
    upto = np.concatenate([[0.0], np.cumsum(shares)])  # the integral of dt / n(t) up to each moment
    charged: Seconds = upto[np.searchsorted(moments, ends)] - upto[np.searchsorted(moments, starts)]
    return charged
