from __future__ import annotations

import re
from html import unescape

import httpx2
import pytest
from arena_standin import Gate
from arena_yard import CONTESTANTS, REPLAY, Yard, listen
from starlette.types import Message

from tiltyard.arena.consent import CONSENT_VERSION, CONSENT_WORDS
from tiltyard.events.schema import VoteCast
from tiltyard.web.app import create_web

NAMES = [one.name for one in CONTESTANTS]


FORM = {"content": "Why?", "consent": CONSENT_VERSION}


def open_by_form(visitor: httpx2.Client, content: str = "Why?") -> str:
    """Post the form of the first page as a browser without scripts does; returns the battle's path."""
    reply = visitor.post("/battles", data={**FORM, "content": content})
    assert reply.status_code == 303, reply.text
    return reply.headers["location"]


def token_in(page: str) -> str:
    found = re.search(r'name="vote_token" value="([0-9a-f]{64})"', page)
    assert found is not None
    return found[1]


def settle(visitor: httpx2.Client, path: str) -> None:
    listen(visitor, path.removeprefix("/battles/"))


def test_a_battle_needs_no_script(yard: Yard) -> None:
    gate = Gate()
    for name in NAMES:
        yard.models.answers[name] = lambda _messages: ["so far ", gate, "**done**"]
    with yard.visitor() as visitor:
        path = open_by_form(visitor)
        assert gate.reached.wait(10)
        running = visitor.get(path).text
        assert '<noscript><meta http-equiv="refresh" content="2"></noscript>' in running
        assert "writing…" in running
        assert "<fieldset data-early>" in running  # both have spoken: nobody has to wait for the end
        gate.open()
        settle(visitor, path)
        page = visitor.get(path).text
        assert "http-equiv" not in page
        assert "<strong>done</strong>" in page
        reply = visitor.post(f"{path}/vote", data={"vote_token": token_in(page), "choice": "tie"})
        assert (reply.status_code, reply.headers["location"]) == (303, path)
        revealed = visitor.get(path).text
    assert "You called it a tie" in revealed
    assert sum(name in revealed for name in NAMES) == 2
    (vote,) = list(yard.log.read(types=[VoteCast]))
    assert vote.id in revealed  # the receipt
    assert f"{REPLAY} {vote.subject}" in unescape(revealed)


def test_whoever_votes_again_by_form_is_shown_the_first_vote(yard: Yard) -> None:
    with yard.visitor() as visitor:
        path = open_by_form(visitor)
        settle(visitor, path)
        token = token_in(visitor.get(path).text)
        for choice in ("a", "b"):
            reply = visitor.post(f"{path}/vote", data={"vote_token": token, "choice": choice})
            assert reply.status_code == 303
        assert "You chose side A" in visitor.get(path).text
    assert len(list(yard.log.read(types=[VoteCast]))) == 1


def test_stop_turn_and_regenerate_work_by_form(yard: Yard) -> None:
    gate = Gate()
    for name in NAMES:
        yard.models.answers[name] = lambda _messages: ["so far ", gate]
    with yard.visitor() as visitor:
        path = open_by_form(visitor)
        listen(visitor, path.removeprefix("/battles/"), until=lambda heard: all(heard.text.values()))
        assert visitor.post(f"{path}/stop").headers["location"] == path
        assert "stopped" in visitor.get(path).text
        gate.open()
        yard.models.answers.clear()
        assert visitor.post(f"{path}/regenerate").headers["location"] == path
        settle(visitor, path)
        assert visitor.post(f"{path}/turns", data={"content": "And now?"}).headers["location"] == path
        settle(visitor, path)
        page = visitor.get(path).text
    assert page.count('<article class="turn"') == 2
    assert "“And now?” (message 2)" in page


def test_a_refused_form_keeps_what_was_written(yard: Yard) -> None:
    with yard.visitor() as visitor:
        long = "<b>" + "x" * 8000
        reply = visitor.post("/battles", data={"content": long})
        assert reply.status_code == 400
        assert "The message has 8,003 characters; the arena takes 8,000. Shorten it." in reply.text
        assert "&lt;b&gt;" + "x" * 8000 in reply.text
        path = open_by_form(visitor)
        settle(visitor, path)
        refused = visitor.post(f"{path}/turns", data={"content": long})
        assert refused.status_code == 400
        assert "&lt;b&gt;" + "x" * 8000 in refused.text
        assert "Which side answered better?" in refused.text


def test_a_script_that_asks_gets_the_refusal_as_json(yard: Yard) -> None:
    with yard.visitor(accept="application/json") as visitor:
        reply = visitor.post("/battles", data={"content": ""})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "content"


def test_the_address_of_a_form_leads_back_to_its_page(yard: Yard) -> None:
    with yard.visitor() as visitor:
        path = open_by_form(visitor)
        assert visitor.get("/battles").headers["location"] == "/"
        assert visitor.get(f"{path}/turns").headers["location"] == path


def test_the_first_page_offers_to_go_back_to_an_unfinished_battle(yard: Yard) -> None:
    with yard.visitor() as visitor, yard.visitor() as stranger:
        path = open_by_form(visitor)
        assert f'href="{path}"' in visitor.get("/").text
        assert path not in stranger.get("/").text
        settle(visitor, path)
        token = token_in(visitor.get(path).text)
        visitor.post(f"{path}/vote", data={"vote_token": token, "choice": "a"})
        assert path not in visitor.get("/").text


def test_what_is_recorded_is_said_beside_the_question(yard: Yard) -> None:
    with yard.visitor() as visitor:
        assert CONSENT_WORDS["en"] in visitor.get("/").text
        open_by_form(visitor)
        again = visitor.get("/").text
    assert CONSENT_WORDS["en"] not in again
    assert "Your prompts and votes are stored on this machine" in again


def test_the_voter_cookie_is_out_of_reach_of_scripts_and_other_sites(yard: Yard) -> None:
    with yard.visitor() as visitor:
        assert "set-cookie" not in visitor.get("/").headers  # looking leaves no trace
        reply = visitor.post("/battles", data=FORM)
        cookie = reply.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert "Path=/" in cookie


def test_every_answer_carries_the_policy_that_keeps_scripts_out(yard: Yard) -> None:
    with yard.visitor() as visitor:
        for path in ("/", "/battles/none", "/static/arena.css", "/api/arena/battles/x/events", "/nowhere"):
            headers = visitor.get(path).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "script-src 'self'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "same-origin"


def test_no_page_has_inline_script_or_style(yard: Yard) -> None:
    with yard.visitor() as visitor:
        path = open_by_form(visitor)
        settle(visitor, path)
        for page in (visitor.get("/").text, visitor.get(path).text, visitor.get("/nowhere").text):
            assert not re.search(r"<script(?![^>]*\bsrc=)", page)
            assert not re.search(r"<style|\sstyle=|\son[a-z]+=", page)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://["},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_a_post_from_another_site_is_refused(yard: Yard, headers: dict[str, str]) -> None:
    with yard.visitor() as visitor:
        form = visitor.post("/battles", data=FORM, headers=headers)
        api = visitor.post(
            "/api/arena/battles", json={"messages": [{"role": "user", "content": "Why?"}]}, headers=headers
        )
    assert form.status_code == api.status_code == 400
    assert api.json()["error"]["code"] == "cross_site_request"
    assert yard.models.asked == []


def test_a_post_from_our_own_page_passes(yard: Yard) -> None:
    with yard.visitor() as visitor:
        headers = {"origin": yard.url, "sec-fetch-site": "same-origin"}
        assert visitor.post("/battles", data=FORM, headers=headers).status_code == 303


def test_a_foreign_host_name_is_not_ours(yard: Yard) -> None:
    with yard.visitor() as visitor:
        assert visitor.get("/", headers={"host": "rebound.example:8000"}).status_code == 400
        assert visitor.get("/", headers={"host": "localhost:8000"}).status_code == 200
        assert visitor.get("/", headers={"host": "[::1]:8000"}).status_code == 200


@pytest.mark.parametrize("host", ["", "[::1", "[", "[::1]x", "a@localhost", "localhost/evil", "localhost#"])
def test_a_host_header_that_is_no_host_is_refused_and_not_an_error_of_ours(yard: Yard, host: str) -> None:
    with yard.visitor() as visitor:
        assert visitor.get("/", headers={"host": host}).status_code == 400


async def test_a_browser_that_leaves_while_it_sends_is_no_unexpected_error(yard: Yard) -> None:
    app = create_web(log=yard.log, client=yard.arena.client, contestants=[])
    heard = iter([{"type": "http.request", "body": b"c", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Message:
        return next(heard)

    async def send(_message: Message) -> None:
        """Nobody is there."""

    scope = {
        "type": "http", "method": "POST", "path": "/battles", "query_string": b"",
        "headers": [(b"host", b"localhost")],
    }  # fmt: skip
    await app(scope, receive, send)  # raised ClientDisconnect, which the server logs with a traceback


def test_static_files_named_by_content_are_kept_for_ever(yard: Yard) -> None:
    with yard.visitor() as visitor:
        home = visitor.get("/").text
        addresses = re.findall(r'(?:href|src)="(/static/[^"]+)"', home)
        assert len(addresses) >= 4
        for address in addresses:
            reply = visitor.get(address)
            assert reply.status_code == 200
            assert "immutable" in reply.headers["cache-control"]
        assert visitor.get("/static/arena.css").headers["cache-control"] == "no-cache"
        assert visitor.get("/static/../app.py").status_code == 404


def test_pages_are_kept_by_no_cache(yard: Yard) -> None:
    with yard.visitor() as visitor:
        path = open_by_form(visitor)
        for address in ("/", path):
            assert visitor.get(address).headers["cache-control"] == "no-store"


def test_a_missing_page_is_a_page_for_people_and_json_for_programs(yard: Yard) -> None:
    with yard.visitor() as visitor:
        page = visitor.get("/nowhere")
        assert page.status_code == 404
        assert "<h1>Nothing here</h1>" in page.text
        assert visitor.get("/api/nowhere").json()["error"]["code"] == "not_found"
        wrong = visitor.delete("/api/arena/battles")
        assert wrong.status_code == 405
        assert wrong.json()["error"]["code"] == "method_not_allowed"


def test_a_page_escapes_what_the_voter_wrote(yard: Yard) -> None:
    with yard.visitor() as visitor:
        path = open_by_form(visitor, '<script>alert("1")</script>')
        settle(visitor, path)
        page = visitor.get(path).text
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
