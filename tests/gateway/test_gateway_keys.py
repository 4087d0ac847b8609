"""API keys at the door: who gets in, who does not, and what is never told."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
import websockets
from gateway_stage import Stage, staged
from websockets.sync.client import connect

from tiltyard.errors import Conflict, InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished
from tiltyard.gateway.keyring import TRUSTED_S, KeyRing
from tiltyard.telemetry.metrics import MAX_TENANTS, GatewayMetrics

HELLO = {"model": "chat", "messages": [{"role": "user", "content": "Hello"}]}


@dataclass
class House:
    """A gateway, and a key ring on its log as another process would have one."""

    stage: Stage
    ring: KeyRing

    def ask(self, key: str | None, path: str = "/v1/models", **more: object) -> httpx2.Response:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return httpx2.request("GET", self.stage.url + path, headers=headers | more.pop("headers", {}), **more)  # type: ignore[arg-type,operator]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log, staged(log, tmp_path) as stage:
        yield House(stage, KeyRing(log))


def pass_time() -> None:
    """A gateway may trust what it knows of the keys for so long: there is no event to wait for."""
    time.sleep(2 * TRUSTED_S)


def code(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_the_first_key_closes_the_door_for_good(house: House) -> None:
    assert house.ask(None).status_code == 200
    assert house.ask("anything").status_code == 200
    made = house.ring.issue("acme", ["inference"])
    pass_time()
    assert code(house.ask(None)) == (401, "invalid_api_key")
    assert house.ask(None).headers["www-authenticate"] == "Bearer"
    assert house.ask(made.secret).status_code == 200
    assert [house.ask(None, path).status_code for path in ("/health", "/ready", "/openapi.json")] == [200] * 3
    house.ring.revoke(made.row.key)
    pass_time()
    assert code(house.ask(made.secret)) == (401, "invalid_api_key")
    assert code(house.ask(None)) == (401, "invalid_api_key")


def test_a_key_that_is_one_character_off_is_none_of_ours(house: House) -> None:
    secret = house.ring.issue("acme", ["inference"]).secret
    wrong = secret[:-1] + ("A" if secret[-1] != "A" else "B")
    for shown in (wrong, secret[:-1], secret + "A", secret.upper(), "sk-ty-p", "é" * 70):
        answer = httpx2.get(
            house.stage.url + "/v1/models", headers={"authorization": f"Bearer {shown}".encode()}
        )
        assert code(answer) == (401, "invalid_api_key")
        assert shown not in answer.text
    assert httpx2.get(house.stage.url + "/v1/models", headers={"x-api-key": secret}).status_code == 200


def test_a_scope_that_is_missing_is_named(house: House) -> None:
    plain = house.ring.issue("acme", ["inference"]).secret
    admin = house.ring.issue("ops", ["admin"]).secret
    for key, path, scope in (
        (plain, "/metrics", "admin"),
        (plain, "/v1/admin/keys", "admin"),
        (plain, "/v1/admin", "admin"),
        (admin, "/v1/models", "inference"),
    ):
        answer = house.ask(key, path)
        assert code(answer) == (403, "missing_scope")
        assert f"needs the scope {scope}" in answer.json()["error"]["message"]
    answer = house.ask(plain, headers={"x-tiltyard-blind": "1"})
    assert code(answer) == (403, "missing_scope")
    assert house.ask(admin, "/metrics").status_code == 200


def test_administration_is_closed_while_there_is_no_key(house: House) -> None:
    assert code(house.ask(None, "/v1/admin/keys")) == (401, "invalid_api_key")
    assert "tiltyard keys create" in house.ask("x", "/v1/admin/tenants").json()["error"]["message"]


def test_research_and_production_are_apart(house: House) -> None:
    with pytest.raises(InvalidRequest, match="a research key cannot have the scope release"):
        house.ring.issue("lab", ["inference", "release"], credential="research")
    with pytest.raises(InvalidRequest, match="a production key cannot have the scope vote"):
        house.ring.issue("acme", ["vote"])
    made = house.ring.issue("lab", ["vote", "inference", "vote"], credential="research")
    assert made.secret.startswith("sk-ty-r-")
    assert made.row.scopes == ("inference", "vote")


def test_a_rotated_key_goes_on_for_the_overlap_and_its_successor_has_its_rights(tmp_path: Path) -> None:
    now = 1_000_000_000_000_000
    clock = {"clock_ns": lambda: now * 1000}
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db", **clock) as log:
        ring = KeyRing(log, now_us=lambda: now)
        old = ring.issue("acme", ["inference", "admin"], label="the app", lifetime_s=100)
        new = ring.rotate(old.row.key, overlap_s=10)
        assert (new.row.tenant, new.row.scopes, new.row.label) == ("acme", old.row.scopes, "the app")
        assert new.row.replaces == old.row.key
        assert new.row.expires_us == now + 100_000_000
        assert ring.get(old.row.key).expires_us == now + 10_000_000
        assert asyncio.run(ring.find(old.secret)) == ring.get(old.row.key)
        assert ring.is_alive(ring.get(old.row.key))
        with pytest.raises(Conflict, match=f"rotate its successor {new.row.key}"):
            ring.rotate(old.row.key, overlap_s=10)
        now += 10_000_000
        assert not ring.is_alive(ring.get(old.row.key))
        assert ring.is_alive(ring.get(new.row.key))
        with pytest.raises(Conflict):
            ring.rotate(old.row.key, overlap_s=10)
        log.rebuild()
        assert ring.get(old.row.key).expires_us == now


def test_an_expired_key_is_refused_and_says_so_to_its_holder_only(house: House) -> None:
    made = house.ring.issue("acme", ["inference"], lifetime_s=0.001)
    pass_time()
    answer = house.ask(made.secret)
    assert code(answer) == (401, "invalid_api_key")
    assert f"{made.row.key} has expired" in answer.json()["error"]["message"]
    assert "expired" not in house.ask(made.secret[:-1]).text


def test_a_key_revoked_elsewhere_is_refused_by_every_gateway(tmp_path: Path) -> None:
    """Two gateways on one log, each with a view of its own, and a third process that revokes."""
    paths = {"url": tmp_path / "log.db", "keys": tmp_path / "keys.db"}
    with (
        EventLog.open(**paths) as one,
        EventLog.open(**paths) as two,
        EventLog.open(**paths) as third,
        staged(one, tmp_path) as first,
        staged(two, tmp_path) as second,
    ):
        ring = KeyRing(third)
        made = ring.issue("acme", ["inference"])
        headers = {"authorization": f"Bearer {made.secret}"}
        urls = [f"{stage.url}/v1/models" for stage in (first, second)]
        assert [httpx2.get(url, headers=headers).status_code for url in urls] == [200, 200]
        ring.revoke(made.row.key)
        pass_time()
        assert [httpx2.get(url, headers=headers).status_code for url in urls] == [401, 401]


def test_an_open_socket_is_asked_for_its_key_at_each_turn(house: House) -> None:
    made = house.ring.issue("acme", ["inference"])
    url = house.stage.url.replace("http", "ws") + "/v1/chat/ws"
    with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
        connect(url)
    assert refused.value.response.status_code == 401
    with connect(url, additional_headers={"authorization": f"Bearer {made.secret}"}) as socket:
        turn = '{"type": "turn", "model": "chat", "content": "Hi"}'
        socket.send(turn)
        while "done" not in (frame := socket.recv()):
            assert "delta" in frame
        house.ring.revoke(made.row.key)
        pass_time()
        socket.send(turn)
        assert "invalid_api_key" in socket.recv()


def test_neither_keys_nor_words_are_logged(house: House, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    made = house.ring.issue("acme", ["inference"])
    words = "a very private question"
    body = {**HELLO, "messages": [{"role": "user", "content": words}]}
    for key in (made.secret, made.secret[:-2] + "xx"):
        for more in ({}, {"stream": True}, {"temperature": 99}):
            httpx2.post(
                house.stage.url + "/v1/chat/completions",
                headers={"authorization": f"Bearer {key}"},
                json=body | more,
            )
    body = {
        **HELLO,
        "messages": [{"role": "system", "content": words}, {"role": "user", "content": "!cut 1"}],
    }
    httpx2.post(house.stage.url + "/v1/chat/completions", json=body, headers={"x-api-key": made.secret})
    assert caplog.records  # what is logged at all: the streams of the loop and the client
    assert made.secret[20:] not in caplog.text
    assert words not in caplog.text
    stored = (house.stage.log._database.path).read_bytes()  # type: ignore[attr-defined]
    assert made.secret[20:].encode() not in stored
    assert words.encode() not in stored


def test_the_event_names_tenant_and_key(house: House) -> None:
    made = house.ring.issue("acme", ["inference"])
    answer = httpx2.post(
        house.stage.url + "/v1/chat/completions", json=HELLO, headers={"x-api-key": made.secret}
    )
    event = house.stage.log.find(GenerationFinished, subject=answer.json()["id"])
    assert event is not None
    assert event.tenant == "acme"
    assert house.stage.log.generation(answer.json()["id"]).api_key == made.row.key


def test_last_use_is_noted_when_the_gateway_ends(tmp_path: Path) -> None:
    """LiteLLM #18708: authentication that writes to the database at each request runs out of connections."""
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        ring = KeyRing(log)
        made = ring.issue("acme", ["inference"])
        with staged(log, tmp_path) as stage:
            for _ in range(3):
                httpx2.get(stage.url + "/v1/models", headers={"x-api-key": made.secret})
            assert ring.get(made.row.key).last_used_us is None
        assert ring.get(made.row.key).last_used_us is not None


def test_an_administrator_makes_rotates_lists_and_revokes_over_http(house: House) -> None:
    admin = house.ring.issue("ops", ["admin"]).secret
    with httpx2.Client(base_url=house.stage.url, headers={"authorization": f"Bearer {admin}"}) as http:
        made = http.post("/v1/admin/keys", json={"tenant": "acme", "expires_in_s": 3600.0})
        assert made.status_code == 201
        assert made.headers["cache-control"] == "no-store"
        key, secret = made.json()["key"], made.json()["secret"]
        assert house.ask(secret).status_code == 200
        successor = http.post(f"/v1/admin/keys/{key}/rotate", json={"overlap_s": 0}).json()
        assert successor["replaces"] == key
        assert house.ask(secret).status_code == 401
        assert http.delete(f"/v1/admin/keys/{successor['key']}").json()["state"] == "revoked"
        assert house.ask(successor["secret"]).status_code == 401
        listed = http.get("/v1/admin/keys")
        assert [(k["tenant"], k["state"]) for k in listed.json()["data"]] == [
            ("ops", "active"), ("acme", "expired"), ("acme", "revoked"),
        ]  # fmt: skip
        assert secret not in listed.text
        assert code(http.post("/v1/admin/keys", json={"tenant": "../x"})) == (400, "invalid_value")
        assert code(http.post("/v1/admin/keys", json={"tennant": "x"})) == (400, "unknown_parameter")
        assert code(http.delete("/v1/admin/keys/key_nope")) == (404, "not_found")
        tenants = {t["tenant"]: t for t in http.get("/v1/admin/tenants").json()["data"]}
        assert set(tenants) == {"ops", "acme"}
        assert tenants["acme"]["in_flight"] == 0


async def test_requests_that_come_together_share_one_look_however_slow_it_is(tmp_path: Path) -> None:
    """LiteLLM #18708: a database in the way of every request."""
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        looks = 0
        now = 0.0
        version = log.access_version

        def slow() -> int:
            nonlocal looks, now
            looks += 1
            now += 100.0  # far longer than what is known may be trusted
            return version()

        log.access_version = slow  # type: ignore[method-assign]
        ring = KeyRing(log, monotonic=lambda: now)
        made = ring.issue("acme", ["inference"])
        found = await asyncio.gather(*(ring.find(made.secret) for _ in range(50)))
        assert {row.key for row in found if row is not None} == {made.row.key}
        assert looks == 1
        await asyncio.gather(*(ring.find(made.secret) for _ in range(50)))
        assert looks == 2


def test_what_one_tenant_has_asked_does_not_exist_for_another(house: House) -> None:
    keys = [house.ring.issue(tenant, ["inference"]).secret for tenant in ("acme", "rival")]
    headers = [{"authorization": f"Bearer {key}"} for key in keys]
    with httpx2.Client(base_url=house.stage.url) as http:
        made = http.post("/v1/responses", json={"model": "chat", "input": "Mine."}, headers=headers[0])
        assert made.status_code == 200, made.text
        further = {"model": "chat", "input": "And?", "previous_response_id": made.json()["id"]}
        answers = [http.post("/v1/responses", json=further, headers=one) for one in headers]
        assert [answer.status_code for answer in answers] == [200, 404]
        assert "Mine." not in answers[1].text
        # One idempotency key of two tenants names two answers.
        same = [
            http.post("/v1/chat/completions", json=HELLO, headers={**one, "idempotency-key": "k"}).json()[
                "id"
            ]
            for one in (*headers, headers[0])
        ]
        assert same[0] == same[2] != same[1]


def test_anthropics_clients_are_refused_in_their_own_shape(house: House) -> None:
    house.ring.issue("acme", ["inference"])
    body = {"model": "chat", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    answer = httpx2.post(house.stage.url + "/v1/messages", json=body, headers={"x-api-key": "sk-ant-wrong"})
    assert answer.status_code == 401
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "authentication_error"


def test_tenants_cannot_make_the_metrics_grow_without_end() -> None:
    metrics = GatewayMetrics()
    labels = [metrics.tenant_label(f"tenant-{number}") for number in range(MAX_TENANTS + 2)]
    assert labels[MAX_TENANTS - 1 :] == [f"tenant-{MAX_TENANTS - 1}", "other", "other"]
    assert metrics.tenant_label("tenant-0") == "tenant-0"
    assert len(metrics.tenants) == MAX_TENANTS
