"""Hostile words on every page, found by the routes: questions, answers and names stay words."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from arena_yard import Yard, listen, open_battle, page_routes
from starlette.routing import Route

from hostile import CORPUS, foreign_elements
from tiltyard.arena.reveal import REPLAY
from tiltyard.web.arena_pages import ArenaPages

sys.path.insert(0, str(Path(__file__).parents[1] / "governance"))
from dataset_yard import allow, imported, released, row

EVERYTHING = "\n\n".join(
    words for words in CORPUS if (len(words) < 1000 and words.isascii()) or "\u202e" in words
)
NAMES = [words for words in CORPUS if words.strip() and words.isprintable() and len(words) < 190]


def no_controls(text: str) -> str:
    """What a visitor can send: the door refuses NUL and its like."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "", text)


@pytest.fixture
def hostile(yard: Yard, tmp_path: Path) -> dict[str, str]:
    """A battle, shared, with its vote; an imported source and a release: everything hostile. Returns what fills routes."""
    for name in yard.models.answers | {one.name: None for one in yard.contestants}:
        yard.models.answers[name] = lambda _messages: [EVERYTHING]
    rows = [
        row(n, f"p{n}", model_a=f"{NAMES[n % len(NAMES)]}!", question_id=NAMES[n % len(NAMES)])
        for n in range(len(NAMES))
    ]
    imported(yard.log, tmp_path / "in.jsonl", rows)
    allow(yard.log, "others", "publish")
    done = released(yard.log, tmp_path / "out", sources=["import/others"], card={"title": "<b>![x](y)"})
    return {"release": done.release, "digest": "sha256:none", "secret": "none"}


def test_no_page_lets_words_of_others_become_more_than_words(yard: Yard, hostile: dict[str, str]) -> None:
    with yard.visitor() as visitor:
        battle, token = open_battle(visitor, no_controls(EVERYTHING)[:7000])
        listen(visitor, battle)
        hostile["battle"] = battle
        before = visitor.get(f"/battles/{battle}")
        assert not foreign_elements(before.text)
        voted = visitor.post(f"/api/arena/battles/{battle}/vote", json={"vote_token": token, "choice": "a"})
        assert voted.status_code == 200, voted.text
        shared = visitor.post(f"/api/arena/battles/{battle}/share").json()
        hostile["secret"] = next(str(value) for value in shared.values()).rpartition("/")[2]
        routes = [*ArenaPages(yard.arena, replay=REPLAY).routes(), *page_routes(yard.log)]
        seen = 0
        for one in routes:
            if not isinstance(one, Route) or "GET" not in (one.methods or set()):
                continue
            path = re.sub(r"{(\w+)(?::\w+)?}", lambda match: hostile.get(match[1], "x"), one.path)
            for query in ("", f"?about={'%3Cscript%3E'}alert(1)&language=%3Cb%3E&source=others"):
                page = visitor.get(path + query, follow_redirects=True)
                kind = page.headers.get("content-type", "")
                assert page.status_code < 500, (path, page.text[:300])
                if kind.startswith("text/html"):
                    seen += 1
                    assert not foreign_elements(page.text), path
                    assert "script-src 'self'" in page.headers["content-security-policy"]
                elif "svg" in kind:
                    assert not foreign_elements(page.text), path
                    assert "<script" not in page.text
                else:
                    assert page.headers["x-content-type-options"] == "nosniff"
        assert seen >= 12
