"""The settings' policy about personal data, as the gateway and the arena get it; and what a replay says of it."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest
from gateway_stage import staged

from tiltyard.cli.screening import screening, screens
from tiltyard.cli.settings import Settings, load_settings
from tiltyard.errors import ConfigurationError, InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished
from tiltyard.gateway.keyring import KeyRing
from tiltyard.ops.replay import kept_words
from tiltyard.router.tenants import TenantTerms

SAID = [
    {"role": "user", "content": "I am ann@example.com."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "mail", "arguments": '{"to": "ANN@example.com"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "sent; bob@example.com is in copy"},
    {"role": "user", "content": "Thanks"},
]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(None, data_dir=tmp_path)


def test_the_shipped_arena_redacts_and_can_be_told_otherwise(settings: Settings) -> None:
    shipped = screening(settings)
    assert shipped.policy == "redact"
    one = shipped.new()
    assert one("ann@example.com").text == one("Ann@Example.com").text == "[EMAIL_1]"
    assert shipped.new()("bob@example.com").text == "[EMAIL_1]"  # of another battle
    arena = settings.file.arena.model_copy(update={"personal_data": "keep"})
    file = settings.file.model_copy(update={"arena": arena})
    kept = screening(Settings(file, None, settings.base_dir, settings.data_dir, settings.cache_dir))
    assert kept.new()("ann@example.com").text == "ann@example.com"


def test_the_three_policies_of_a_tenant_and_what_a_replay_says(settings: Settings, tmp_path: Path) -> None:
    tenants = {
        "redacting": TenantTerms(personal_data="redact"),
        "exact": TenantTerms(),
        "silent": TenantTerms(keep_content=False),
        "refusing": TenantTerms(personal_data="refuse"),
    }
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        keys = {name: KeyRing(log).issue(name, ["inference"]).secret for name in tenants}
        with staged(log, tmp_path, tenants=tenants, screens=screens(settings)) as stage:

            def ask(name: str, **more: object) -> httpx2.Response:
                body = {"model": "chat", "messages": SAID, **more}
                return httpx2.post(
                    f"{stage.url}/v1/chat/completions", json=body, headers={"x-api-key": keys[name]}
                )

            assert [ask(name).status_code for name in ("redacting", "exact", "silent")] == [200] * 3
            refused = ask("refusing")
            assert (refused.status_code, "ann@" in refused.text) == (400, False)
            ids = {"model": "chat", "prompt": [1, 2, 3]}
            unseen = httpx2.post(
                f"{stage.url}/v1/completions", json=ids, headers={"x-api-key": keys["redacting"]}
            )
            assert (unseen.status_code, unseen.json()["error"]["param"]) == (400, "prompt")
            sent, exact = stage.workers[0].bodies[:2]
        events = [
            e.data for e in log.read(types=(GenerationFinished,)) if isinstance(e.data, GenerationFinished)
        ]
        assert "@" not in str(sent["messages"])
        assert sent["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"to": "[EMAIL_1]"}'
        assert sent["messages"][2]["content"] == "sent; [EMAIL_2] is in copy"
        assert exact["messages"][0]["content"] == SAID[0]["content"]
        assert [(one.policy, one.found) for one in events] == [
            ("redact", {"EMAIL": 3}),
            ("keep", {}),
            ("keep", {}),
        ]
        assert [kept_words(one) for one in events] == [
            "as served, after 3 email was replaced",
            "as they came",
            "the tenant's terms keep no words",
        ]
        assert events[0].prompt is not None
        assert b"@" not in log.own_words("test").read(events[0].prompt)


def test_a_names_model_that_is_not_there_stops_the_start(settings: Settings) -> None:
    data = settings.file.data.model_copy(update={"names_model": "no_such_model"})
    file = settings.file.model_copy(update={"data": data})
    with pytest.raises(ConfigurationError, match="no_such_model"):
        screens(Settings(file, None, settings.base_dir, settings.data_dir, settings.cache_dir))


def test_refusing_names_the_kind_and_never_the_words(settings: Settings) -> None:
    with pytest.raises(InvalidRequest) as refused:
        screens(settings)("refuse")("I am ann@example.com")
    assert "email" in refused.value.message
    assert "ann" not in refused.value.message
