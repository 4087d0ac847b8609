"""Small files in the forms that others write."""

from __future__ import annotations

import json
from pathlib import Path


def write_lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")
    return path


def battle(number: int, winner: str = "model_a", **more: object) -> dict[str, object]:
    """A row of lmsys/chatbot_arena_conversations."""
    return {
        "question_id": f"q{number}",
        "model_a": "plum",
        "model_b": "quince",
        "winner": winner,
        "judge": f"arena_user_{number % 3}",
        "conversation_a": [
            {"content": f"ask {number}", "role": "user"},
            {"content": "# Plum\n\nsays **so**", "role": "assistant"},
        ],
        "conversation_b": [
            {"content": f"ask {number}", "role": "user"},
            {"content": "Quince says\n\n- no", "role": "assistant"},
        ],
        "turn": 1,
        "anony": True,
        "language": "English",
        "tstamp": 1_682_351_591.1322 + number,
        **more,
    }


def logged(number: int, kind: str = "leftvote", ip: str = "203.0.113.7", **more: object) -> dict[str, object]:
    """A line of FastChat's log, as `vote_last_response` writes it in the anonymous arena."""
    return {
        "tstamp": round(1_690_000_000.5 + number, 4),
        "type": kind,
        "models": ["", ""],
        "states": [
            {
                "template_name": "one_shot",
                "system_message": "",
                "roles": ["USER", "ASSISTANT"],
                "messages": [
                    ["USER", "an example"],
                    ["ASSISTANT", "of the template"],
                    ["USER", f"ask {number}"],
                    ["ASSISTANT", f"answer of {model}"],
                ],
                "offset": 2,
                "conv_id": f"conv{number}{model}",
                "model_name": model,
            }
            for model in ("plum", "quince")
        ],
        "ip": ip,
        **more,
    }


def pairwise(question: int, first: str, second: str) -> dict[str, object]:
    """A row of MT-Bench's gpt-4_pair.jsonl."""
    return {
        "question_id": question,
        "model_1": "plum",
        "model_2": "quince",
        "g1_winner": first,
        "g2_winner": second,
        "judge": ["gpt-4", "pair-v2"],
        "g1_user_prompt": "which?",
        "g1_judgment": "[[A]]",
        "g2_user_prompt": "which?",
        "g2_judgment": "[[B]]",
        "turn": 1,
        "tstamp": 1_687_000_000.25,
    }
