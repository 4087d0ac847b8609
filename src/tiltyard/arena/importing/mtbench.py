"""MT-Bench judgments (`fastchat/llm_judge`): verdicts of a judge model on pairs, and scores of single answers.

Pairwise: `model_1`, `model_2`, `g1_winner` (with model 1 shown first), `g2_winner` (with model 2 first, already in terms of
`model_1` and `model_2`), each `model_1`, `model_2`, `tie` or `error`. Single: `model` and `score`, -1 where the judge's answer
could not be read. `judge` is `[model, prompt]`. None of them is a vote; what could not be read stays, without a verdict.
"""

from __future__ import annotations

from typing import Final

from tiltyard.arena.importing.fields import Fault, key_of, moment, name, text_of, whole
from tiltyard.arena.importing.items import Reader, Taken
from tiltyard.arena.importing.records import Fields, Record
from tiltyard.arena.importing.terms import Terms
from tiltyard.events.schema import Choice, ImportedJudgment
from tiltyard.identity.canonical import Json

_VERDICTS: Final[dict[str, Choice | None]] = {
    "model_1": "a",
    "model_2": "b",
    "tie": "tie",
    "error": None,
}
_WORDS: Final = ("user_prompt", "judgment", "g1_user_prompt", "g1_judgment", "g2_user_prompt", "g2_judgment")


def mtbench_reader(terms: Terms) -> Reader:
    """Read lines of a file of judgments."""

    def read(record: Record) -> Taken:
        fields = record.fields
        judge, template = _judge(fields, terms)
        question = (
            None if fields.get("question_id") is None else text_of(fields["question_id"], "question_id")
        )
        turn = whole(fields.get("turn"), "turn")
        time_us = moment(fields.get("tstamp"), "tstamp")
        pairwise = "model_1" in fields
        a = name(fields, "model_1" if pairwise else "model")
        b = name(fields, "model_2") if pairwise else None
        if a == b:
            raise Fault("same_model", "model_2", f"both models are {a!r}; such a verdict compares nothing.")
        words: dict[str, Json] = {}
        for part in _WORDS:
            if isinstance(said := fields.get(part), str):
                words[part] = said
        known = question is not None or time_us is not None
        return Taken(
            ImportedJudgment(
                line=record.line,
                judge=judge,
                template=template,
                question=question,
                turn=turn,
                a=a,
                b=b,
                verdict=_verdict(fields, "g1_winner") if pairwise else None,
                verdict_swapped=_verdict(fields, "g2_winner") if pairwise and "g2_winner" in fields else None,
                both_orders=pairwise and "g2_winner" in fields,
                score=None if pairwise else _score(fields),
                time_us=time_us,
                key=key_of(question, a, b, judge, template, turn, time_us) if known else None,
            ),
            words if terms.text and words else None,
        )

    return read


def _judge(fields: Fields, terms: Terms) -> tuple[str, str | None]:
    given = fields.get("judge")
    parts = given if isinstance(given, list | tuple) else [given]
    if terms.judge is not None:
        return terms.judge, None if len(parts) < 2 else text_of(parts[1], "judge")
    if not parts or not isinstance(parts[0], str) or not parts[0]:
        raise Fault("no_judge", "judge", "judge names no model; say which one it was with --judge.")
    return text_of(parts[0], "judge"), None if len(parts) < 2 else text_of(parts[1], "judge")


def _verdict(fields: Fields, field: str) -> Choice | None:
    said = fields.get(field)
    if not isinstance(said, str) or said not in _VERDICTS:
        raise Fault(
            "unknown_outcome",
            field,
            f"{field} is {said!r}; it may be {', '.join(_VERDICTS)}. It is not taken for a tie.",
        )
    return _VERDICTS[said]


def _score(fields: Fields) -> float | None:
    said = fields.get("score")
    if isinstance(said, bool) or not isinstance(said, int | float):
        raise Fault(
            "bad_number",
            "score",
            f"score is {said!r}; it must be 1 to 10, or -1 for an answer nobody could read.",
        )
    if said == -1:
        return None
    if not 0 <= said <= 10:
        raise Fault("bad_number", "score", f"score is {said}; it must be 1 to 10, or -1.")
    return float(said)
