"""Where the beginnings of prompts are, as far as was sent."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_router import status

from tiltyard.fleet.registry import Registry
from tiltyard.router.prefixes import BLOCK_CHARACTERS, BLOCK_TOKENS, Beginning, Prefixes
from tiltyard.router.router import GATE_TOKENS, Router

SCOPE = ("plain", "acme")


def text(words: str, blocks: int) -> str:
    size = blocks * BLOCK_CHARACTERS
    return (words * size)[:size]


def beginning(*parts: str, scope: tuple[str, str] = SCOPE) -> Beginning:
    return Beginning.of(scope, parts, sum(map(len, parts)) // 4)


@pytest.fixture
def router() -> Router:
    registry = Registry(hosts={"one", "two"})
    for name in ("one", "two"):
        registry.announce(name, f"http://{name}", status(name, "plain", kv_blocks_total=4096))
    return Router(registry)


@given(st.text(max_size=1500), st.text(max_size=900), st.integers(0, 1500))
def test_what_begins_alike_has_as_many_keys_in_common_as_it_has_whole_blocks(
    begin: str, end: str, cut: int
) -> None:
    whole, other = beginning(begin, end), beginning(begin + end[: cut % (len(end) + 1)])
    assert whole.keys == beginning(begin + end).keys  # however it is cut into parts
    common = next((i for i, (a, b) in enumerate(zip(whole.keys, other.keys, strict=False)) if a != b), None)
    assert common is None
    assert len(other.keys) <= len(whole.keys)
    strange = beginning("\x00" + begin, end)
    assert not set(strange.keys) & set(whole.keys)


def test_a_tenant_or_an_identity_shares_no_key_with_another() -> None:
    keys = [
        set(beginning(text("a", 3), scope=scope).keys)
        for scope in (SCOPE, ("plain", "umbra"), ("warm", "acme"))
    ]
    assert all(not a & b for i, a in enumerate(keys) for b in keys[i + 1 :])


def test_what_a_worker_holds_is_bounded_by_its_cache_and_the_longest_unused_goes_first() -> None:
    prefixes = Prefixes()
    old, new = beginning(text("old", 3)), beginning(text("new", 3))
    prefixes.sent("one", old, 4 * BLOCK_TOKENS)
    prefixes.sent("one", new, 4 * BLOCK_TOKENS)
    assert prefixes.cached_tokens("one", new) == 3 * BLOCK_TOKENS - 1  # the last token is always computed
    assert prefixes.cached_tokens("one", old) == BLOCK_TOKENS  # its beginning outlives its end
    assert prefixes.cached_tokens("two", old) == 0
    prefixes.forget("one")
    assert prefixes.cached_tokens("one", new) == 0


def test_a_prompt_of_token_ids_is_known_again() -> None:
    prefixes = Prefixes()
    ids = list(range(200))
    prefixes.sent("one", Beginning.of_ids(SCOPE, ids), 0)
    assert prefixes.cached_tokens("one", Beginning.of_ids(SCOPE, [*ids[:130], 7])) == 2 * BLOCK_TOKENS


def test_the_next_turn_goes_to_the_worker_that_holds_the_conversation(router: Router) -> None:
    first, answer = text("question ", 8), text("answer ", 4)
    route = router.choose("plain", prompt=beginning(first))
    with router.sending(route, beginning(first), 10):
        pass
    router.ended(route, beginning(first, answer), [10])
    for _ in range(3):  # equals would take turns
        again = router.choose("plain", prompt=beginning(first, answer, "and then?"))
        assert again.worker.name == route.worker.name
        assert again.cached_tokens == 12 * BLOCK_TOKENS
    # Its worker gone, any other must compute all of it.
    router.registry.withdraw(route.worker.name, "killed")
    other = router.choose("plain", prompt=beginning(first, answer, "and then?"))
    assert (other.worker.name != route.worker.name, other.cached_tokens) == (True, 0)


def test_a_worker_that_was_started_again_is_taken_to_know_nothing(router: Router) -> None:
    prompt = beginning(text("question ", 8))
    route = router.choose("plain", prompt=prompt)
    with router.sending(route, prompt):
        pass
    name = route.worker.name
    router.registry.announce(name, f"http://{name}", status(name, "plain", kv_blocks_total=4096))
    assert router.choose("plain", prompt=prompt).cached_tokens == 0


def test_a_session_whose_worker_is_gone_goes_where_most_of_it_is_cached(router: Router) -> None:
    registry = router.registry
    registry._hosts |= {"three"}
    registry.announce("three", "http://three", status("three", "plain", kv_blocks_total=4096))
    conversation = beginning(text("long ", 40))
    short = beginning(text("long ", 30))
    holds_all = router.choose("plain", session="s", tenant="acme", prompt=conversation)
    router.prefixes.sent(holds_all.worker.name, conversation, 0)
    other = next(w for w in ("three", "two", "one") if w != holds_all.worker.name)
    router.prefixes.sent(other, short, 0)
    assert router.choose("plain", session="s", tenant="acme", prompt=conversation).worker == holds_all.worker
    registry.withdraw(holds_all.worker.name, "killed")
    assert router.choose("plain", session="s", tenant="acme", prompt=conversation).worker.name == other


def test_load_overrules_the_cache_beyond_the_gate(router: Router) -> None:
    """AIBrix #842, AIBrix PR #2365: a popular prefix made one worker everybody's, and its requests timed out."""
    prompt = beginning(text("popular ", 400))
    route = router.choose("plain", prompt=prompt)
    with router.sending(route, prompt):
        pass
    name = route.worker.name
    with router.loads.entry(name, GATE_TOKENS):
        assert router.choose("plain", prompt=prompt).worker.name == name
        with router.loads.entry(name, 1):
            assert router.choose("plain", prompt=prompt).worker.name != name


def test_a_burst_is_spread_by_what_was_sent_not_by_what_was_scraped(router: Router) -> None:
    """AIBrix #646, AIBrix #2569: within one scrape, every request of a burst went to the pod that looked idle."""
    names = []
    with ExitStack() as stack:
        for number in range(20):
            prompt = beginning(f"{number} " + text("burst ", 4))
            route = router.choose("plain", prompt=prompt)
            stack.enter_context(router.sending(route, prompt, 100))
            names.append(route.worker.name)
    assert names.count("one") == names.count("two") == 10


def test_sticky_sessions_stay_whatever_the_load_while_their_worker_takes_work(router: Router) -> None:
    sticky = Router(router.registry, sticky=True)
    first = sticky.choose("plain", tenant="acme", session="s").worker.name
    with sticky.loads.entry(first, 10 * GATE_TOKENS):
        assert sticky.choose("plain", tenant="acme", session="s").worker.name == first
        assert sticky.choose("plain", tenant="umbra", session="s").worker.name != first  # another tenant's
        router.registry.failed(first, "gone", gone=True)
        assert sticky.choose("plain", tenant="acme", session="s").worker.name != first
