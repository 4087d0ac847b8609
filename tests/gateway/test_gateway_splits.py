"""An alias that the log splits: obeyed by every gateway, sticky, frozen, with copies that nobody sees."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gateway_stage import Stage, staged
from openai import AsyncOpenAI, OpenAI, OpenAIError

from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    GenerationFinished,
    ShadowCopies,
    TrafficArm,
    TrafficRule,
    TrafficSplit,
)
from tiltyard.gateway.caller import Caller, current_caller
from tiltyard.gateway.shadow import MAX_COPIES, TERMS, Shadows
from tiltyard.router.tenants import TenantTerms
from tiltyard.telemetry.metrics import GatewayMetrics

SAID = [{"role": "user", "content": "!count 2"}]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        yield log


@pytest.fixture
def stage(log: EventLog, tmp_path: Path) -> Iterator[Stage]:
    with staged(log, tmp_path) as stage:
        yield stage


def split_on(
    stage: Stage,
    candidate: float,
    *rules: TrafficRule,
    share: float = 0.0,
    step: int = 1,
    behaviour: str | None = None,
) -> TrafficSplit:
    status = stage.workers[0].identities
    new, old = behaviour or status["warm"].behaviour, status["plain"].behaviour
    return TrafficSplit(
        alias="chat",
        arms=(
            TrafficArm(arm="candidate", identity="warm", behaviour=new, weight=candidate),
            TrafficArm(arm="production", identity="plain", behaviour=old, weight=1 - candidate),
        ),
        rules=rules,
        shadow=ShadowCopies(identity="warm", behaviour=new, share=share) if share else None,
        release="rel_1",
        step=step,
        by="tests",
        why="",
    )


def append(stage: Stage, split: TrafficSplit) -> None:
    """Append as another process would, and wait until the gateway has seen it."""
    stage.log.append_blocking(split, subject="chat", source="tiltyard/tests")
    splits = stage.app.state.splits
    until(lambda: splits.read >= stage.log.last_sequence(), within_s=1.0)


def until(holds: Callable[[], bool], within_s: float = 10.0) -> None:
    last = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < last
        time.sleep(0.01)


def ask(url: str, **more: object) -> GenerationFinished | str:
    with OpenAI(base_url=url + "/v1", api_key="any", max_retries=0) as client:
        return client.chat.completions.create(model="chat", messages=SAID, **more).id  # type: ignore[call-overload, no-any-return]


def test_a_split_takes_effect_on_every_gateway_within_a_second(stage: Stage, tmp_path: Path) -> None:
    other_log = EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db")
    with other_log, staged(other_log, tmp_path) as other:
        before = [stage.log.generation(str(ask(one.url))) for one in (stage, other)]
        assert [(event.identity, event.arm) for event in before] == [("plain", None)] * 2
        append(stage, split_on(stage, 1.0))
        until(lambda: other.app.state.splits.read >= stage.app.state.splits.read, within_s=1.0)
        after = [stage.log.generation(str(ask(one.url))) for one in (stage, other)]
    assert [(e.identity, e.arm, e.release, e.alias) for e in after] == [
        ("warm", "candidate", "rel_1", "chat")
    ] * 2


def test_a_gateway_that_starts_obeys_from_its_first_request(stage: Stage, tmp_path: Path) -> None:
    append(stage, split_on(stage, 1.0))
    with staged(stage.log, tmp_path) as later:
        assert stage.log.generation(str(ask(later.url))).identity == "warm"


async def test_a_request_in_flight_finishes_where_it_began(stage: Stage) -> None:
    async with AsyncOpenAI(base_url=stage.url + "/v1", api_key="any", max_retries=0) as client:
        held = asyncio.create_task(
            client.chat.completions.create(model="chat", messages=[{"role": "user", "content": "!hold 1"}])
        )
        while not stage.workers[0].running:  # noqa: ASYNC110 - the worker is in another thread
            await asyncio.sleep(0.005)
        await asyncio.to_thread(append, stage, split_on(stage, 1.0))
        now = await client.chat.completions.create(model="chat", messages=SAID)  # type: ignore[arg-type]
        stage.workers[0].let_go.set()
        began_before = await held
    assert stage.log.generation(now.id).identity == "warm"
    assert stage.log.generation(began_before.id).identity == "plain"


def test_sessions_users_and_channels_decide(stage: Stage) -> None:
    append(stage, split_on(stage, 0.5, TrafficRule(arm="candidate", channel="beta")))

    def arms(times: int, **more: object) -> set[str | None]:
        return {stage.log.generation(str(ask(stage.url, **more))).arm for _ in range(times)}

    assert len(arms(4, user="ann")) == 1
    assert len(arms(4, extra_headers={"x-tiltyard-session": "s-7"})) == 1
    assert arms(3, extra_headers={"x-tiltyard-channel": "beta"}) == {"candidate"}
    assert arms(12) == {"candidate", "production"}  # 2 in 4 096 draws of twelve would all be of one arm


def test_what_is_not_what_was_released_gets_nothing_and_production_answers(stage: Stage) -> None:
    """MLflow #3175: bytes behind a registered version can be changed, and are served under its name."""
    append(stage, split_on(stage, 1.0, behaviour="sha256:" + "f" * 64))
    event = stage.log.generation(str(ask(stage.url)))
    assert (event.identity, event.arm, event.diverted_from) == ("plain", "production", "candidate")
    changed = split_on(stage, 0.0, step=2)
    arm = changed.arms[1].model_copy(update={"behaviour": "sha256:" + "f" * 64})
    append(stage, changed.model_copy(update={"arms": (arm,)}))
    with pytest.raises(OpenAIError, match="is not what was released under that name"):
        ask(stage.url)


def test_a_copy_is_recorded_beside_its_original_and_reaches_nobody(stage: Stage) -> None:
    append(stage, split_on(stage, 0.0, share=1.0))
    seen = str(ask(stage.url, user="ann"))

    def copies() -> list[GenerationFinished]:
        found = stage.log.read(types=(GenerationFinished,))
        return [e.data for e in found if isinstance(e.data, GenerationFinished) and e.data.shadow_of]

    until(lambda: len(copies()) == 1)
    (copy,), original = copies(), stage.log.generation(seen)
    assert (original.identity, original.arm) == ("plain", "production")
    assert (copy.identity, copy.arm, copy.shadow_of, copy.release) == ("warm", "shadow", seen, "rel_1")
    assert (copy.seed, copy.service_class) == (original.seed, "batch")
    assert copy.prompt is not None
    assert original.prompt is not None
    assert copy.prompt.subject == original.prompt.subject == "ann"  # erased with the person's other words
    (event,) = [e for e in stage.log.read(types=(GenerationFinished,)) if e.subject == copy.generation]
    assert event.tenant == "shadow"  # on nobody's bill


async def test_copies_beyond_a_few_are_dropped_and_wait_behind_every_other_class() -> None:
    metrics, shadows, go = GatewayMetrics(), Shadows(), asyncio.Event()
    askers: list[Caller] = []

    async def run() -> None:
        askers.append(current_caller())
        await go.wait()

    for _ in range(MAX_COPIES + 3):
        shadows.begin(Caller("acme", TenantTerms(keep_content=False)), "ann", metrics, run)
    go.set()
    while len(askers) < MAX_COPIES:  # noqa: ASYNC110 - a turn of the loop for each copy
        await asyncio.sleep(0)
    await shadows.aclose()
    text = metrics.exposition().decode()
    assert 'tiltyard_shadow_copies_total{outcome="dropped"} 3.0' in text
    assert len(askers) == MAX_COPIES
    assert {(a.tenant, a.subject("ann"), a.terms.keep_content) for a in askers} == {
        ("shadow", "acme:ann", False)
    }
    assert TERMS.service_class == "batch"
