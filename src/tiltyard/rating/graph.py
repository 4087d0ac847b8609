"""Which models can be compared at all: connected parts of the graph that votes draw between models.

Ratings of models that no chain of votes connects say nothing about each other. Within a connected part
the maximum-likelihood ratings are finite exactly when the directed graph "i took a win or a tie from j"
is strongly connected (L. R. Ford, "Solution of a ranking problem from binary comparisons", 1957).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def strong_parts(edges: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Label each node with its strongly connected part; parts are numbered by their lowest node.

    `edges[i, j]` says that an edge leads from i to j; shape `(nodes, nodes)`. For a symmetric matrix the
    parts are the connected components.

    >>> strong_parts(np.array([[0, 1, 0], [1, 0, 1], [0, 0, 0]], dtype=bool)).tolist()
    [0, 0, 1]
    """
    labels = np.full(len(edges), -1, dtype=np.intp)
    part = 0
    for node in range(len(edges)):
        if labels[node] < 0:
            # Parts labelled earlier cannot join: they would have taken this node in.
            labels[_reached(edges, node) & _reached(edges.T, node)] = part
            part += 1
    return labels


def _reached(edges: NDArray[np.bool_], start: int) -> NDArray[np.bool_]:
    seen = np.zeros(len(edges), dtype=np.bool_)
    seen[start] = True
    frontier = seen
    while frontier.any():
        frontier = edges[frontier].any(axis=0) & ~seen
        seen = seen | frontier
    return seen
