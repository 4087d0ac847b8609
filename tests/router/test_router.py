from __future__ import annotations

import pytest

from tiltyard.errors import ConfigurationError, NotFound, Unavailable
from tiltyard.fleet.registry import STUCK_AFTER_MS, Registry
from tiltyard.identity.canonical import digest_of
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import Behaviour, Deployment, Weights
from tiltyard.router.load import Queue
from tiltyard.router.router import GATE_TOKENS, MAX_GROUPS, Router
from tiltyard.wire.worker import IdentityStatus, WorkerStatus


def identity(name: str) -> IdentityStatus:
    behaviour = Behaviour(
        weights=Weights(digest=digest_of(b"w"), size_bytes=1, stored_as=("F32",)),
        architecture={},
        tokenizer=digest_of(b"t"),
        chat_template=None,
    )
    deployment = Deployment(
        behaviour=behaviour.digest, engine_build="x", isa="x", threads=1, block_tokens=32, kv_blocks=1,
        max_batch_tokens=1, hardware="x",
    )  # fmt: skip
    return IdentityStatus(
        name=name,
        behaviour=behaviour.digest,
        deployment=deployment.digest,
        behaviour_manifest=behaviour,
        deployment_manifest=deployment,
        declaration=IdentityDeclaration(model="m"),
        max_context_tokens=128,
    )


def status(worker: str, *names: str, unfinished: int = 0, **changes: object) -> WorkerStatus:
    values: dict[str, object] = {
        "worker": worker, "state": "ready", "identities": tuple(identity(n) for n in names),
        "unfinished_tokens": unfinished, "running": 0, "waiting": 0, "kv_blocks_used": 0,
        "kv_blocks_cached": 0, "kv_blocks_total": 8, "last_step_age_ms": None,
    }  # fmt: skip
    return WorkerStatus.model_validate(values | changes)


@pytest.fixture
def registry() -> Registry:
    registry = Registry(hosts={"one", "two"})
    registry.announce("one", "http://one", status("one", "plain", "warm"))
    registry.announce("two", "http://two/", status("two", "plain"))
    return registry


def test_an_alias_and_an_identity_name_mean_the_same_identity(registry: Registry) -> None:
    router = Router(registry, {"chat": "plain"})
    assert router.resolve("chat") == router.resolve("plain") == "plain"
    assert router.model_names == ("chat", "plain", "warm")


def test_an_unknown_model_is_refused_with_the_names_there_are(registry: Registry) -> None:
    with pytest.raises(NotFound, match="model 'gpt' does not exist; available: chat, plain, warm") as caught:
        Router(registry, {"chat": "plain"}).resolve("gpt")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


def test_an_alias_that_names_itself_is_a_configuration_error(registry: Registry) -> None:
    with pytest.raises(ConfigurationError, match="'chat' names itself"):
        Router(registry, {"chat": "chat"})


def test_the_worker_with_the_fewest_unfinished_tokens_is_chosen(registry: Registry) -> None:
    router = Router(registry)
    with router.loads.entry("one", 60, 40) as entry:
        assert router.choose("plain").worker.name == "two"
        with router.loads.entry("two", 50):
            assert router.choose("plain").worker.name == "two"
            entry.begun()
            assert router.loads.unfinished("one") == 40
            assert router.choose("plain").worker.name == "one"
    assert router.loads.unfinished("one") == router.loads.unfinished("two") == router.loads.requests == 0


def test_the_workers_own_count_settles_ties(registry: Registry) -> None:
    registry.announce("one", "http://one", status("one", "plain", unfinished=9))
    assert Router(registry).choose("plain").worker.name == "two"


def test_a_route_has_no_slash_at_the_end_of_its_address(registry: Registry) -> None:
    assert Router(registry).choose("plain", without={"one"}).url == "http://two"


def test_a_known_identity_without_a_living_worker_is_unavailable_and_says_why(registry: Registry) -> None:
    router = Router(registry)
    registry.withdraw("one", "killed by SIGKILL")
    with pytest.raises(Unavailable, match=r"no worker serves warm now \(one: killed by SIGKILL\)"):
        router.choose("warm")
    registry.expect("three", ["cold"])
    with pytest.raises(Unavailable, match=r"\(three: starting\)"):
        router.choose(router.resolve("cold"))


@pytest.mark.parametrize(
    "changes", [{"state": "draining"}, {"running": 1, "last_step_age_ms": STUCK_AFTER_MS + 1}]
)
def test_draining_and_hung_workers_take_no_new_work(registry: Registry, changes: dict[str, object]) -> None:
    registry.announce("one", "http://one", status("one", "plain", **changes))
    assert [worker.name for worker in registry.serving("plain")] == ["two"]


def test_an_idle_worker_is_not_hung(registry: Registry) -> None:
    registry.announce("one", "http://one", status("one", "plain", last_step_age_ms=STUCK_AFTER_MS * 10))
    assert [worker.name for worker in registry.serving("plain")] == ["one", "two"]


ACME = Queue("acme", "interactive")


def test_the_wait_is_what_ones_own_queue_has_before_one_at_the_workers_pace(registry: Registry) -> None:
    """vLLM #16391, vLLM #58192: requests that could not make it any more were queued and run all the same."""
    now = 0.0
    router = Router(registry, clock=lambda: now)
    registry.announce("one", "http://one", status("one", "plain", "warm", waiting=3))
    worker = registry.serving("warm")[0]
    with router.loads.entry("one", 1000, queue=Queue("other", "interactive")) as entry:
        assert router.expected_wait_s(worker, ACME, 100) == 0.0  # nothing is known of its pace
        now = 10.0
        entry.begun()
        with (
            router.loads.entry("one", 50, queue=ACME),
            router.loads.entry("one", 1, 80, queue=ACME) as begun,
            router.loads.entry("one", 100, queue=ACME),
            router.loads.entry("one", 500, queue=ACME),
            router.loads.entry("one", 90, queue=Queue("acme", "batch")),
        ):
            begun.begun()
            # 1,001 tokens in 10 busy seconds, the earlier of them half forgotten: faster than 100 a second.
            wait = router.expected_wait_s(worker, ACME, 100)
            assert wait == pytest.approx(150 * (20 * (1 - 2.718281828**-0.5)) / 1001)
            assert router.expected_wait_s(worker, ACME, 10) == 0.0
            registry.announce("one", "http://one", status("one", "plain", "warm", waiting=0))
            assert router.expected_wait_s(registry.serving("warm")[0], ACME, 100) == 0.0


def test_a_worker_that_stood_idle_is_as_fast_as_it_was(registry: Registry) -> None:
    now = 0.0
    router = Router(registry, clock=lambda: now)
    registry.announce("one", "http://one", status("one", "plain", "warm", waiting=1))
    worker = registry.serving("warm")[0]
    with router.loads.entry("one", 400):
        now = 4.0
    waits = []
    for then in (4.0, 1000.0):
        now = then
        with router.loads.entry("one", 100, queue=ACME):
            waits.append(router.expected_wait_s(worker, ACME, 100))
    assert waits[0] == pytest.approx(waits[1], rel=0.5)
    assert 0.5 < waits[0] < 1.5


def test_a_group_stays_with_its_worker_until_that_is_much_busier(registry: Registry) -> None:
    router = Router(registry)
    router.choose("plain", tenant="t", group="g")
    first = router.choose("plain", tenant="t", group="g").worker.name
    other = "two" if first == "one" else "one"
    with router.loads.entry(first, GATE_TOKENS):
        assert router.choose("plain").worker.name == other
        assert router.choose("plain", tenant="t", group="g").worker.name == first
        # Another tenant's group of the same name is another group.
        assert router.choose("plain", tenant="u", group="g").worker.name == other
        with router.loads.entry(first, 1):
            assert router.choose("plain", tenant="t", group="g").worker.name == other
    assert router.choose("plain", tenant="t", group="g").worker.name == other  # where its prefix is by now


def test_a_group_moves_on_when_its_worker_is_left_out_or_gone(registry: Registry) -> None:
    router = Router(registry)
    first = router.choose("plain", tenant="t", group="g").worker.name
    second = router.choose("plain", tenant="t", group="g", without={first}).worker.name
    assert {first, second} == {"one", "two"}
    assert router.choose("plain", tenant="t", group="g").worker.name == second


def test_the_groups_that_are_remembered_are_bounded(registry: Registry) -> None:
    router = Router(registry)
    for number in range(MAX_GROUPS + 10):
        router.choose("plain", tenant="t", group=str(number))
    assert len(router._groups) == MAX_GROUPS
