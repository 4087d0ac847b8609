"""The review queue over HTTP: for keys with the scope admin and for nobody else."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest
from arena_standin import serving
from starlette.applications import Starlette

from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.cli.reviewers import reviewers
from tiltyard.client import ModelClient
from tiltyard.events.log import EventLog
from tiltyard.events.schema import VoteCast, VoteReviewed
from tiltyard.gateway.keyring import KeyRing
from tiltyard.rating.ruleset import Ruleset
from tiltyard.web.app import create_web
from tiltyard.web.review import review_routes

DIGEST = "sha256:" + "a" * 64
REVIEW = "/api/arena/review"


@pytest.fixture
def app(log: EventLog) -> Starlette:
    cast = VoteCast(
        battle="bat_1",
        voter="voter_1",
        choice="a",
        identity_a="plum",
        identity_b="quince",
        behaviour_a=DIGEST,
        behaviour_b=DIGEST.replace("a", "b"),
        pair_probability=1.0,
        side_probability=0.5,
        turns=1,
        generations_a=("g",),
        generations_b=("h",),
        leaks=("a",),
    )
    log.append_blocking(cast, subject="bat_1", source="tests")
    routes = review_routes(RecordedVotes(log, Ruleset()), reviewers(log))
    return create_web(log=log, client=ModelClient("http://127.0.0.1:1"), contestants=[], routes=routes)


@pytest.fixture
def visitor(app: Starlette) -> Iterator[httpx2.Client]:
    with serving(app) as url, httpx2.Client(base_url=url, trust_env=False) as client:
        yield client


def test_a_key_with_the_scope_admin_decides_and_is_named(log: EventLog, visitor: httpx2.Client) -> None:
    made = KeyRing(log).issue("house", ["admin"])
    visitor.headers["authorization"] = f"Bearer {made.secret}"
    (case,) = visitor.get(REVIEW, params={"waiting": "true"}).json()["cases"]
    assert (case["name"], case["reason"], case["counts"]) == ("bat_1", "identity_leak", False)
    body = {"name": "bat_1", "decision": "keep", "reason": "a harmless sentence"}
    answer = visitor.post(REVIEW, json=body)
    assert answer.status_code == 201, answer.text
    (event,) = log.read(types=[VoteReviewed])
    assert isinstance(event.data, VoteReviewed)
    assert (event.id, event.data.by, event.data.decision) == (answer.json()["receipt"], made.row.key, "keep")
    assert visitor.get(REVIEW, params={"waiting": "true"}).json()["cases"] == []
    (case,) = visitor.get(REVIEW).json()["cases"]
    assert (case["decided"], case["counts"]) == ("keep", True)


def test_nobody_else_sees_or_decides_anything(log: EventLog, visitor: httpx2.Client) -> None:
    body = {"name": "bat_1", "decision": "keep", "reason": "mine"}
    assert visitor.get(REVIEW).status_code == 401
    assert visitor.post(REVIEW, json=body).status_code == 401
    weak = KeyRing(log).issue("house", ["inference"])
    headers = {"authorization": f"Bearer {weak.secret}"}
    refused = visitor.post(REVIEW, json=body, headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "missing_scope")
    ended = KeyRing(log).issue("house", ["admin"])
    KeyRing(log).revoke(ended.row.key)
    assert visitor.get(REVIEW, headers={"authorization": f"Bearer {ended.secret}"}).status_code == 401
    assert list(log.read(types=[VoteReviewed])) == []
