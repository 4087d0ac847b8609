"""Judgments as a log would give them, without asking anybody: for judges whose faults are known."""

from __future__ import annotations

from collections.abc import Sequence

from tiltyard.events.schema import Choice, ContentRef, JudgedSide, JudgmentMade
from tiltyard.judge.judgments import Judgments, Line, Recorded

NOWHERE = ContentRef(id="c", subject="s", digest="hmac-sha256:0", size_bytes=0)
JUDGE, RUBRIC = "sha256:" + "1" * 64, "sha256:" + "2" * 64
DAY_US = 86_400_000_000


def line(judge: str = JUDGE) -> Line:
    return Line(judge, "m", RUBRIC, "m")


def made(
    item: str,
    order: str,
    verdict: Choice | None = None,
    *,
    score: float | None = None,
    words: tuple[int, int] = (10, 10),
    markup: tuple[int, int] = (0, 0),
    names: tuple[str, str] = ("plum", "quince"),
    judge: str = JUDGE,
    question: str = "",
    sample: int = 0,
    slices: dict[str, str] | None = None,
    day: int = 0,
) -> Recorded:
    """One judgment."""
    sides = ("a",) if order == "single" else ("a", "b")
    unscored = "no_verdict" if verdict is None and score is None else None
    data = JudgmentMade(
        judgment=f"jdg_{item}{order}{sample}",
        judge=judge,
        judge_name="m",
        answered_as="m",
        rubric=RUBRIC,
        mode="single" if order == "single" else "pairwise",
        item=item,
        item_id=item,
        question=question or item,
        collection="sha256:" + "3" * 64,
        sides=tuple(
            JudgedSide(side=side, identity=names[place], words=words[place], markup=markup[place])  # type: ignore[arg-type]
            for place, side in enumerate(sides)
        ),
        slices=slices or {},
        order=order,  # type: ignore[arg-type]
        asked="first",
        seed=0,
        sample=sample,
        verdict=verdict,
        score=score,
        unscored=unscored,
        held="text",
        prompt=NOWHERE,
        raw=NOWHERE,
        prompt_tokens=1,
        completion_tokens=1,
        total_ms=1.0,
    )
    return Recorded(data, 1, day * DAY_US)


def both(item: str, ab: Choice | None, ba: Choice | None, **more: object) -> list[Recorded]:
    """Both orders of a pair."""
    return [made(item, "ab", ab, **more), made(item, "ba", ba, **more)]  # type: ignore[arg-type]


def together(judgments: Sequence[Recorded], judge: str = JUDGE) -> Judgments:
    """As one line."""
    return Judgments(line(judge), tuple(judgments))
