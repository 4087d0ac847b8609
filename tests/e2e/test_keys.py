"""A server that strangers can reach: a certificate, API keys, and an arena that still works."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path

import httpx2
import orjson
from running_tiltyard import Tiltyard
from test_loop import battle_over

from own_certificate import write_certificate
from tiltyard.cli.serving import trust_only

SETTINGS = """
[server]
hosts = ["models.example"]
tls_cert = "cert.pem"
tls_key = "key.pem"

[tenants.acme]
requests_per_minute = 100
monthly_budget = 5.0
models = ["chat"]

[models.smollm2-135m]
source = "{source}"

[identities.cool]
model = "smollm2-135m"
sampling = {{ temperature = 0.2, max_tokens = 16 }}

[identities.hot]
model = "smollm2-135m"
sampling = {{ temperature = 0.9, max_tokens = 16 }}

[aliases]
chat = "cool"

[arena]
contestants = ["cool", "hot"]

[workers]
kv_memory_mb = 64
"""


PLAN = """
alias: chat
candidate: hot
stages:
  - stage: canary
    traffic: 10%
    rules: [{arm: candidate, channel: try}]
    gates: [{metric: error_rate, worse_by: 5%}]
  - stage: promote
"""


def released_and_rolled_back(yard: Tiltyard, http: httpx2.Client, bearer: dict[str, str]) -> None:
    """An operator starts a canary over the API, sees its traffic on the page, and rolls it back; nothing is restarted."""

    def answered_by(behaviour: str) -> bool:
        body = {"model": "chat", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
        answer = http.post("/v1/chat/completions", json=body, headers={**bearer, "x-tiltyard-channel": "try"})
        assert answer.status_code == 200, answer.text
        return answer.headers["x-tiltyard-identity"] == behaviour

    assert http.get("/api/releases", headers=bearer).status_code == 403  # the app's key has another scope
    made = yard.run("keys", "create", "--tenant", "ops", "--scope", "release", "--label", "ann")
    secret = made.stdout.split()[-1]
    assert http.post("/releases/sign-in", data={"key": secret}).status_code == 303
    operator = {"authorization": f"Bearer {secret}"}
    begun = http.post("/api/releases", json={"plan": PLAN, "why": "warmer"}, headers=operator)
    assert begun.status_code == 201, begun.text
    release = begun.json()
    path, old, new = (
        f"/releases/{release['release']}",
        release["production_behaviour"],
        release["candidate_behaviour"],
    )
    assert any(answered_by(new) for _ in range(40))
    page = http.get(path).text  # by the session's cookie alone
    assert "<strong>10.0%</strong> candidate" in page
    told = {"order": "rollback", "why": "enough", "stage": "0"}
    assert http.post(path, data=told).status_code == 303
    assert any(answered_by(old) for _ in range(20))
    deadline = time.monotonic() + 60  # the reconciler looks once a second
    while (state := http.get(f"/api{path}", headers=operator).json())["outcome"] is None:
        assert time.monotonic() < deadline
        answered_by(old)
    assert (state["outcome"], state["arms"]["candidate"]["requests"] > 0) == ("rolled_back", True)
    assert "by hand: enough" in state["outcome_why"]
    assert state["by"].startswith("ann (key_")


def test_strangers_are_served_with_a_key_and_a_certificate_only(tmp_path: Path, model_path: Path) -> None:
    certificate = write_certificate(tmp_path)
    config = tmp_path / "tiltyard.toml"
    config.write_text(SETTINGS.format(source=f"file:{model_path}"))
    words = ("up", "--port", "0", "--host", "0.0.0.0", "--config", str(config))
    made = Tiltyard(tmp_path, "keys", "create", "--tenant", "acme", "--label", "the app")
    assert made.ended() == 0
    (secret,) = (line for line in made.lines if re.fullmatch(r"sk-ty-p-[0-9a-f]{12}-[\w-]{43}", line))
    assert "from now on the API answers nobody without one" in made.lines[-1]
    key = "key_" + secret.split("-")[3]
    yard = Tiltyard(tmp_path, *words)
    try:
        yard.wait_for("ready;")
        (line,) = (line for line in yard.lines if "OpenAI" in line)
        assert line.endswith('(model "chat", a key of `tiltyard keys create`)')
        found = re.search(r"(https://127\.0\.0\.1:\d+)/v1", line)
        assert found is not None
        url = found[1]
        with httpx2.Client(base_url=url, verify=trust_only(certificate), timeout=60) as http:
            body = {"model": "chat", "messages": [{"role": "user", "content": "Hello"}]}
            assert http.post("/v1/chat/completions", json=body).status_code == 401
            bearer = {"authorization": f"Bearer {secret}"}
            answer = http.post("/v1/chat/completions", json=body, headers=bearer)
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-ratelimit-remaining-requests"] == "99"
            assert [m["id"] for m in http.get("/v1/models", headers=bearer).json()["data"]] == ["chat"]
            # Under another name than ours even a key does not help; under ours the arena plays, over its own way in.
            wrong = {**bearer, "host": "other.example"}
            assert http.get("/v1/models", headers=wrong).json()["error"]["code"] == "host_refused"
            assert http.get("/", headers={"host": "models.example"}).status_code == 200
            reveal = battle_over(http)
            assert len({reveal[side]["identity"] for side in "ab"}) == 2
            released_and_rolled_back(yard, http, bearer)
            assert all(cookie.secure for cookie in http.cookies.jar)
            revoked = yard.run("keys", "revoke", key)
            assert revoked.returncode == 0, revoked.stderr
            assert http.get("/v1/models", headers=bearer).status_code == 401
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=10) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert b"200 OK" not in plain.recv(1000)
    finally:
        assert yard.interrupt() == 0
    listed = orjson.loads(yard.run("keys", "list", "--json").stdout.splitlines()[0])
    assert (listed["key"], listed["state"], listed["label"]) == (key, "revoked", "the app")
    assert listed["last_used_us"] > listed["issued_us"]
    assert secret not in "\n".join(yard.lines)
