"""What a tenant may use: refused early, counted exactly, given back whatever happens."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from gateway_stage import ALIASES, Stage, staged
from openai import OpenAI, RateLimitError
from starlette.types import Message

from tiltyard.events.envelope import StoredEvent
from tiltyard.events.ids import new_id
from tiltyard.events.log import EventLog
from tiltyard.events.schema import EventData, GenerationFinished
from tiltyard.gateway.app import create_gateway
from tiltyard.gateway.keyring import KeyRing
from tiltyard.router.ledger import Account, Ledger, MemoryLedger
from tiltyard.router.redis_ledger import RedisLedger
from tiltyard.router.router import Router
from tiltyard.router.tenants import TenantTerms


@pytest.fixture(params=["memory", "redis"])
def ledger(request: pytest.FixtureRequest) -> Ledger:
    """The accounts: in memory, and in a real Redis."""
    if request.param == "memory":
        return MemoryLedger()
    return RedisLedger(request.getfixturevalue("redis_url"), prefix=new_id())


@contextmanager
def tenancy(
    tmp_path: Path, ledger: Ledger | None = None, **terms: Any
) -> Iterator[tuple[Stage, httpx2.Client]]:
    """A gateway where everybody is the tenant `default` with these terms."""
    with (
        EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log,
        staged(log, tmp_path, tenants={"default": TenantTerms(**terms)}, ledger=ledger) as stage,
        httpx2.Client(base_url=stage.url, timeout=30) as http,
    ):
        yield stage, http


def chat(http: httpx2.Client, text: str = "Hello", **fields: object) -> httpx2.Response:
    body = {"model": "chat", "messages": [{"role": "user", "content": text}], **fields}
    return http.post("/v1/chat/completions", json=body)


def gauge(http: httpx2.Client, name: str, **labels: str) -> float:
    wanted = ",".join(f'{k}="{v}"' for k, v in sorted(labels.items()))
    found = re.search(rf"^{name}\{{{wanted}\}} (\S+)$", http.get("/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def events_of(stage: Stage) -> list[GenerationFinished]:
    found = [event.data for event in stage.log.read(types=(GenerationFinished,))]
    return [data for data in found if isinstance(data, GenerationFinished)]


def billed(stage: Stage, terms: TenantTerms) -> float:
    return sum(terms.cost_nano(e.prompt_tokens, e.completion_tokens) for e in events_of(stage)) / 1e9


def settled(http: httpx2.Client) -> None:
    """Wait until nothing is in flight."""
    while gauge(http, "tiltyard_tenant_requests_in_flight", tenant="default"):
        pass


def test_the_headers_are_those_that_openais_clients_read(tmp_path: Path) -> None:
    with tenancy(tmp_path, requests_per_minute=3, tokens_per_minute=1000) as (stage, http):
        headers = chat(http, max_tokens=100).headers
        assert headers["x-ratelimit-limit-requests"] == "3"
        assert headers["x-ratelimit-remaining-requests"] == "2"
        assert headers["x-ratelimit-reset-requests"] == "20s"
        assert headers["x-ratelimit-limit-tokens"] == "1000"
        assert headers["x-ratelimit-remaining-tokens"] == "899"  # "Hello" is taken for one token
        assert headers["x-ratelimit-reset-tokens"] == "6.06s"
        chat(http)
        with httpx2.Client(base_url=stage.url) as streaming:
            body = {"model": "chat", "messages": [{"role": "user", "content": "x"}], "stream": True}
            with streaming.stream("POST", "/v1/chat/completions", json=body) as answer:
                assert answer.headers["x-ratelimit-remaining-requests"] == "0"
        refused = chat(http)
        assert refused.status_code == 429
        assert refused.json()["error"] | {"message": ""} == {
            "message": "", "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded",
        }  # fmt: skip
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert refused.headers["x-should-retry"] == "true"
        assert 1 <= int(refused.headers["retry-after"]) <= 20
        assert 0 < int(refused.headers["retry-after-ms"]) <= 20_000
        assert len(stage.workers[0].served) == 3


def test_a_budget_that_is_spent_tells_clients_not_to_try_again(tmp_path: Path) -> None:
    with tenancy(tmp_path, daily_budget=0.000_100) as (stage, _http), OpenAI(
        base_url=stage.url + "/v1", api_key="any", max_retries=5
    ) as client:  # fmt: skip
        with pytest.raises(RateLimitError) as refused:
            client.chat.completions.create(model="chat", messages=[{"role": "user", "content": "Hello"}])
        assert refused.value.code == "insufficient_quota"
        assert refused.value.response.headers["x-should-retry"] == "false"
        assert "x-stainless-retry-count" not in refused.value.response.headers
        assert "max_tokens" in refused.value.message
        assert stage.workers[0].served == []


def test_a_budget_holds_against_a_hundred_requests_at_once(tmp_path: Path, ledger: Ledger) -> None:
    """LiteLLM #34732, LiteLLM #40095, LiteLLM #27381: budgets that are checked first and spent later do not hold."""
    # A request may cost up to about 1,200 tokens and costs 7 + 5 = 12.
    with tenancy(tmp_path, ledger, daily_budget=0.006) as (stage, http):
        with ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(lambda _: chat(http, "!count 5", max_tokens=5), range(100)))
        settled(http)
        granted = sum(answer.status_code == 200 for answer in answers)
        assert {answer.status_code for answer in answers} <= {200, 429}
        assert granted >= 4
        assert gauge(http, "tiltyard_tenant_spent", tenant="default", window="day") == pytest.approx(
            granted * 12e-6
        )
        assert gauge(http, "tiltyard_tenant_reserved", tenant="default") == 0
        assert len(events_of(stage)) == granted


def test_without_the_accounts_nothing_is_granted_and_the_client_is_told_when_to_come_back(
    tmp_path: Path,
) -> None:
    with tenancy(tmp_path, RedisLedger("redis://127.0.0.1:1")) as (stage, http):
        answer = chat(http)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "limits_unavailable")
        assert int(answer.headers["retry-after"]) >= 1
        assert stage.workers[0].served == []
        metrics = http.get("/metrics")
        assert metrics.status_code == 200
        assert 'tiltyard_errors_total{code="limits_unavailable"} 2.0' in metrics.text


def test_after_clients_are_killed_in_mid_stream_the_books_are_in_order(
    tmp_path: Path, ledger: Ledger
) -> None:
    """LiteLLM #14457, LiteLLM #37140, Ray #61551: usage that is lost, work that goes on, counters that leak."""
    terms = TenantTerms(prompt_price=2.0, output_price=3.0, daily_budget=9.0, concurrency=1000)
    with tenancy(tmp_path, ledger, **terms.model_dump(exclude_defaults=True)) as (stage, http):
        place = stage.url.removeprefix("http://").split(":")

        def leave(number: int) -> None:
            """Ask, streamed or not, and hang up after the given number of bytes have come."""
            body = orjson.dumps(
                {
                    "model": "chat",
                    "messages": [{"role": "user", "content": "!count 300"}],
                    "stream": number % 3 > 0,
                }
            )
            with socket.create_connection((place[0], int(place[1]))) as line:
                head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {place[0]}\r\n"
                line.sendall(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
                if number % 3 == 1:
                    line.recv(1 + number * 40)

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(leave, range(60)))
            whole = chat(http, "!count 4")
        settled(http)
        assert whole.json()["usage"]["completion_tokens"] == 4
        assert gauge(http, "tiltyard_tenant_reserved", tenant="default") == 0
        assert gauge(http, "tiltyard_generations_in_flight", identity="plain") == 0
        spent = gauge(http, "tiltyard_tenant_spent", tenant="default", window="day")
        assert spent == pytest.approx(billed(stage, terms))
        assert spent > 0
        assert stage.workers[0].running == 0


def test_an_answer_that_is_cancelled_twice_is_billed_as_it_is_recorded(tmp_path: Path) -> None:
    """Who came back to a stream and left again while its end was being written had it for nothing."""
    terms, ledger = TenantTerms(), MemoryLedger()
    body = b'{"model": "chat", "messages": [{"role": "user", "content": "!count 100000"}], "stream": true}'
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "query_string": b""}
    scope |= {"headers": [(b"host", b"localhost")]}

    async def ask_and_leave_twice(stage: Stage) -> Account:
        recording, go_on, told = asyncio.Event(), asyncio.Event(), asyncio.Event()
        received: asyncio.Queue[Message] = asyncio.Queue()
        received.put_nowait({"type": "http.request", "body": body})
        append = stage.log.append

        async def slow(data: EventData, **of: Any) -> StoredEvent:
            recording.set()
            await go_on.wait()
            return await append(data, **of)

        async def send(message: Message) -> None:
            if message.get("body"):
                told.set()

        app = create_gateway(router=Router(stage.registry, ALIASES), log=stage.log, ledger=ledger)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stage.log, "append", slow)
            async with app.router.lifespan_context(app), asyncio.timeout(20):
                asking = asyncio.create_task(app(scope, received.get, send))
                await told.wait()
                asking.cancel()
                await recording.wait()
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
                assert (await ledger.account("default")).in_flight == 1
                go_on.set()
                while (await ledger.account("default")).in_flight:  # noqa: ASYNC110 - other rooms' work
                    await asyncio.sleep(0)
        return await ledger.account("default")

    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log, staged(log, tmp_path) as stage:
        account = asyncio.run(ask_and_leave_twice(stage))
        (event,) = events_of(stage)
    assert event.choices[0].finish_reason == "cancelled"
    assert event.completion_tokens > 0
    assert account.reserved_nano == 0
    assert account.day_nano == terms.cost_nano(event.prompt_tokens, event.completion_tokens)


def test_what_a_worker_refuses_or_breaks_is_not_held(tmp_path: Path) -> None:
    with tenancy(tmp_path, daily_budget=1.0, concurrency=1) as (stage, http):
        for script, status in (("!refuse", 400), ("!error 2", 502), ("!late", 504), ("!cut 3", 502)):
            assert chat(http, script).status_code == status
            assert gauge(http, "tiltyard_tenant_reserved", tenant="default") == 0
            assert gauge(http, "tiltyard_tenant_requests_in_flight", tenant="default") == 0
        spent = gauge(http, "tiltyard_tenant_spent", tenant="default", window="day")
        assert spent == pytest.approx(billed(stage, TenantTerms()))


def test_a_slot_is_free_as_soon_as_the_client_knows_of_the_end(tmp_path: Path) -> None:
    with tenancy(tmp_path, concurrency=1) as (_stage, http):
        for _ in range(20):
            assert chat(http).status_code == 200
            assert "[DONE]" in chat(http, stream=True).text


def test_one_more_than_the_concurrency_is_refused_while_the_others_run(tmp_path: Path) -> None:
    with tenancy(tmp_path, concurrency=2) as (stage, http):
        body = {"model": "chat", "messages": [{"role": "user", "content": "!wait"}]}

        def wait() -> None:
            with pytest.raises(httpx2.ReadTimeout):
                httpx2.post(stage.url + "/v1/chat/completions", json=body, timeout=1.5)

        threads = [threading.Thread(target=wait) for _ in range(2)]
        for thread in threads:
            thread.start()
        while stage.workers[0].running < 2:
            pass
        refused = chat(http)
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert gauge(http, "tiltyard_refused_total", tenant="default", reason="concurrency") == 1
        for thread in threads:
            thread.join()
        settled(http)
        assert chat(http).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "Hello"}),
        ("/detokenize", {"tokens": [1]}),
        ("/render", {"messages": [{"role": "user", "content": "Hello"}]}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "Hello"}]}),
    ],
)
def test_what_costs_no_tokens_is_a_request_all_the_same(
    tmp_path: Path, path: str, body: dict[str, object]
) -> None:
    """One key read long texts without end: 4 MiB keep a core busy for seconds."""
    with tenancy(tmp_path, requests_per_minute=2, tokens_per_minute=100, daily_budget=1e-9) as (_stage, http):
        answers = [http.post(path, json={"model": "chat", **body}) for _ in range(3)]
        assert answers[-1].status_code == 429
        assert "2 requests a minute" in answers[-1].json()["error"]["message"]
        assert [answer.status_code for answer in answers[:2]] != [429, 429]
        assert gauge(http, "tiltyard_tenant_requests_in_flight", tenant="default") == 0
        assert gauge(http, "tiltyard_tenant_reserved", tenant="default") == 0


def test_models_that_a_tenant_may_not_ask_for_do_not_exist_for_it(tmp_path: Path) -> None:
    with tenancy(tmp_path, models=("chat",)) as (_stage, http):
        assert [entry["id"] for entry in http.get("/v1/models").json()["data"]] == ["chat"]
        assert http.get("/v1/models/chat").status_code == 200
        assert http.get("/v1/models/warm").status_code == 404
        body = {"model": "warm", "messages": [{"role": "user", "content": "x"}]}
        answer = http.post("/v1/chat/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
        assert http.post("/v1/embeddings", json={"model": "warm", "input": "x"}).status_code == 404


def test_a_tenants_default_class_is_that_of_requests_that_name_none(tmp_path: Path) -> None:
    with tenancy(tmp_path, classes=("agent", "batch"), default_class="batch") as (stage, http):
        chat(http)
        assert stage.workers[0].terms[-1]["x-tiltyard-class"] == "batch"
        body = {"model": "chat", "messages": [{"role": "user", "content": "x"}]}
        ask = [http.post("/v1/chat/completions", json=body, headers={"x-tiltyard-class": c})
               for c in ("agent", "interactive")]  # fmt: skip
        assert stage.workers[0].terms[-1]["x-tiltyard-class"] == "agent"
        assert [answer.status_code for answer in ask] == [200, 400]
        assert ask[1].json()["error"]["code"] == "class_not_allowed"


def test_a_tenant_that_keeps_no_content_has_numbers_in_the_log_and_no_words(tmp_path: Path) -> None:
    with tenancy(tmp_path, keep_content=False) as (stage, http):
        assert chat(http, "a secret").json()["choices"][0]["message"]["content"] == "a secret"
        (event,) = events_of(stage)
        assert (event.prompt, event.response) == (None, None)
        assert event.completion_tokens == 3


def test_two_tenants_users_of_one_name_are_two_people(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        ring = KeyRing(log)
        keys = [ring.issue(tenant, ["inference"]).secret for tenant in ("acme", "other")]
        with staged(log, tmp_path) as stage:
            body = {"model": "chat", "messages": [{"role": "user", "content": "x"}], "user": "bob"}
            for key in keys:
                httpx2.post(
                    stage.url + "/v1/chat/completions", json=body, headers={"x-api-key": key}
                ).raise_for_status()
            subjects = [event.prompt.subject for event in events_of(stage) if event.prompt is not None]
            assert subjects == ["acme:bob", "other:bob"]
            assert log.erase_subject("acme:bob").keys == 1
            assert [event.tenant for event in log.read(types=(GenerationFinished,))] == ["acme", "other"]


def test_no_users_name_makes_it_another_tenants_user(tmp_path: Path) -> None:
    """The words of one tenant must not be erased, or found, with those of another."""
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        ring = KeyRing(log)
        keys = {tenant: ring.issue(tenant, ["inference"]).secret for tenant in ("acme", "default")}
        asked = [("acme", "bob"), ("acme", None), ("default", "acme:bob"), ("default", "acme")]
        with staged(log, tmp_path) as stage, httpx2.Client(base_url=stage.url) as http:
            for tenant, user in asked:
                http.headers["x-api-key"] = keys[tenant]
                chat(http, user=user).raise_for_status()
            subjects = [event.prompt.subject for event in events_of(stage) if event.prompt is not None]
    assert subjects == ["acme:bob", "acme", "default:acme:bob", "default:acme"]


def test_a_request_that_cannot_make_its_deadline_is_shed_before_it_costs_anything(tmp_path: Path) -> None:
    """vLLM #58192: the work was done before the refusal. vLLM #18826: nothing told a client when to come back."""
    with tenancy(tmp_path, daily_budget=9.0) as (stage, http):
        worker = stage.registry.workers[0]
        chat(http, "!count 600", max_tokens=600)  # the gateway learns the worker's pace
        assert worker.status is not None
        worker.status = worker.status.model_copy(update={"waiting": 40})
        held = threading.Thread(target=lambda: chat(http, "!hold", max_tokens=2000))
        held.start()
        while not stage.workers[0].running:
            pass
        hurried = {"x-tiltyard-queue-deadline-ms": "1"}
        body = {"model": "chat", "messages": [{"role": "user", "content": "x" * 40}], "max_tokens": 2000}
        answer = http.post("/v1/chat/completions", json=body, headers=hurried)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "shed")
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.headers["x-should-retry"] == "true"
        patient = {"x-tiltyard-queue-deadline-ms": "600000"}
        assert http.post("/v1/chat/completions", json=body, headers=patient).status_code == 200
        stage.workers[0].let_go.set()
        held.join()
        assert len(stage.workers[0].served) == 3
