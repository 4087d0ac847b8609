"""Tenants before a real model: nobody learns from another's cache, and whoever leaves frees what was taken."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass

import httpx2
import pytest
from gateway_stage import served
from openai import OpenAI
from real_house import House, say

from tiltyard.client import Caller, Program, Retries, tool
from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished
from tiltyard.fleet.registry import Registry
from tiltyard.gateway.app import create_gateway
from tiltyard.gateway.keyring import KeyRing
from tiltyard.router.router import Router
from tiltyard.router.tenants import TenantTerms

SECRET_PROMPT = (
    "The merger will be announced on the ninth of May, and nobody outside of this room may know. " * 6
)
TERMS = TenantTerms(prompt_price=2.0, output_price=5.0, monthly_budget=100.0, concurrency=8)


@dataclass
class Tenancy:
    """A gateway with two tenants and an administrator before the house's worker."""

    house: House
    url: str
    log: EventLog
    keys: dict[str, str]

    def client(self, tenant: str) -> OpenAI:
        return OpenAI(base_url=self.url + "/v1", api_key=self.keys[tenant], max_retries=0)

    def cached_tokens(self, tenant: str, prompt: str) -> int:
        with self.client(tenant) as client:
            answer = client.chat.completions.create(
                model="chat", messages=say(prompt), max_tokens=1, temperature=0
            )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    def computed_tokens(self) -> float:
        """Prompt tokens that the engine has computed since its start: what an answer's first token waits for."""
        text = httpx2.get(self.house.worker_url + "/metrics").text
        found = re.search(r"^vllm:prompt_tokens_total\S* (\S+)$", text, re.MULTILINE)
        assert found is not None
        return float(found[1])

    def gauge(self, name: str) -> dict[str, float]:
        text = httpx2.get(self.url + "/metrics", headers={"x-api-key": self.keys["ops"]}).text
        found = re.findall(rf'^{name}{{tenant="(\w+)"(?:,window="day")?}} (\S+)$', text, re.MULTILINE)
        return {tenant: float(value) for tenant, value in found}


@pytest.fixture(scope="module")
def tenancy(house: House, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenancy]:
    directory = tmp_path_factory.mktemp("tenancy")
    with EventLog.open(directory / "log.db", keys=directory / "keys.db") as log:
        registry = Registry()

        async def announce() -> None:
            registry.announce("smollm2-0", house.worker_url, await registry.ask(house.worker_url))
            await registry.aclose()

        asyncio.run(announce())
        ring = KeyRing(log)
        keys = {tenant: ring.issue(tenant, ["inference"]).secret for tenant in ("acme", "rival")}
        keys["ops"] = ring.issue("ops", ["admin"]).secret
        app = create_gateway(
            router=Router(registry, {"chat": "smollm2"}), log=log, tenants={"default": TERMS}
        )
        with served(app) as url:
            yield Tenancy(house, url, log, keys)


def test_a_tenant_learns_nothing_from_anothers_prompt_by_time(tenancy: Tenancy) -> None:
    """vLLM RFC #16016, vLLM PR #39082: whoever times a first token learns what others have asked.

    What a first token waits for are the prompt tokens that are computed; they are counted instead of a clock.
    """
    assert tenancy.cached_tokens("acme", SECRET_PROMPT) == 0
    assert tenancy.cached_tokens("acme", SECRET_PROMPT) > 64
    before = tenancy.computed_tokens()
    assert tenancy.cached_tokens("rival", SECRET_PROMPT) == 0
    guessed = tenancy.computed_tokens() - before
    assert tenancy.cached_tokens("rival", SECRET_PROMPT.replace("May", "Mar")) < 64
    # The same question of the tenant's own is answered from its own cache.
    assert tenancy.cached_tokens("rival", SECRET_PROMPT) > 64
    assert guessed > 64


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_worker_slot_and_budget(tenancy: Tenancy, stream: bool) -> None:
    """LiteLLM #36168, LiteLLM #30223, LiteLLM #3341: an answer that nobody waits for any more went on upstream."""
    after = tenancy.log.last_sequence()
    body = {
        "model": "chat", "messages": say("Count."), "max_tokens": 1500, "ignore_eos": True, "stream": stream,
    }  # fmt: skip
    headers = {"authorization": f"Bearer {tenancy.keys['acme']}"}
    with httpx2.Client(base_url=tenancy.url, headers=headers) as http:
        if stream:
            with http.stream("POST", "/v1/chat/completions", json=body) as answer:
                next(answer.iter_bytes())
        else:
            with pytest.raises(httpx2.ReadTimeout):
                http.post("/v1/chat/completions", json=body, timeout=1.0)

    async def ended() -> GenerationFinished:
        async with asyncio.timeout(20):
            async for event in tenancy.log.follow(after):
                if isinstance(event.data, GenerationFinished):
                    return event.data
        raise AssertionError("the log ended")

    event = asyncio.run(ended())
    assert event.choices[0].finish_reason == "cancelled"
    assert 0 < event.completion_tokens < 1500
    status = httpx2.get(tenancy.house.worker_url + "/worker").json()
    while status["running"] or status["kv_blocks_used"]:
        status = httpx2.get(tenancy.house.worker_url + "/worker").json()
    assert set(tenancy.gauge("tiltyard_tenant_reserved").values()) == {0.0}
    assert set(tenancy.gauge("tiltyard_tenant_requests_in_flight").values()) == {0.0}
    spent = {"acme": 0, "rival": 0}
    for stored in tenancy.log.read(types=(GenerationFinished,)):
        assert isinstance(stored.data, GenerationFinished)
        spent[stored.tenant] += TERMS.cost_nano(stored.data.prompt_tokens, stored.data.completion_tokens)
    shown = tenancy.gauge("tiltyard_tenant_spent")
    assert {tenant: shown.get(tenant, 0.0) for tenant in spent} == pytest.approx(
        {tenant: cost / 1e9 for tenant, cost in spent.items()}
    )


@tool(side_effects=False)
async def ask_back(caller: Caller, question: str) -> str:
    """What a tool asks in its turn."""
    return await caller.new_prompt().user(question).gen("back", max_tokens=2)


async def test_a_program_and_its_tools_are_billed_to_the_key_that_runs_them(tenancy: Tenancy) -> None:
    after = tenancy.log.last_sequence()
    async with Program(tenancy.url, api_key=tenancy.keys["rival"], tools=[ask_back], user="ann") as p:
        s = p.prompt().user("Who are you?")
        await s.gen("who", max_tokens=2)
        await s.call("back", ask_back, "And who am I?")
        await s.user("Sure?").select("sure", ["yes", "no"])
    stored = list(tenancy.log.read(after=after, types=(GenerationFinished,)))
    assert {event.tenant for event in stored} == {"rival"}
    assert len(stored) == p.used.requests == 1 + 1 + 3


async def test_a_fork_beyond_the_tenants_concurrency_waits_its_turn(tenancy: Tenancy) -> None:
    """20 branches of a tenant that may have 8 answers at once: refused with 429, they come again."""
    async with Program(tenancy.url, api_key=tenancy.keys["rival"], retries=Retries(most=1)) as p:
        branches = p.prompt().user("Say a word.").fork(20)
        said = await branches.each(lambda b: b.gen("word", max_tokens=2))
    assert len(said) == 20
    assert set(tenancy.gauge("tiltyard_tenant_reserved").values()) == {0.0}
    assert set(tenancy.gauge("tiltyard_tenant_requests_in_flight").values()) == {0.0}
