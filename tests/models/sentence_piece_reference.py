"""SentencePiece's merging as llama.cpp does it, obviously right and slow: the best score first, then the leftmost."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

SPACE = "\u2581"


def merge_by_score(text: str, scores: Mapping[str, float], ids: Mapping[str, int]) -> list[int]:
    """Encode text that holds no special token; `scores` are the tokens that merging may make."""
    symbols = list(text)
    while True:
        best: tuple[float, int] | None = None
        for index, (left, right) in enumerate(pairwise(symbols)):
            score = scores.get(left + right)
            if score is not None and (best is None or score > best[0]):
                best = (score, index)
        if best is None:
            break
        symbols[best[1] : best[1] + 2] = ["".join(symbols[best[1] : best[1] + 2])]
    result: list[int] = []
    for symbol in symbols:
        known = [ids[symbol]] if symbol in ids else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
        result += known
    return result
