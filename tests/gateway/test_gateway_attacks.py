"""What a hostile or broken client sends, on a real socket served as `tiltyard up` serves."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx2
import orjson
import pytest
from gateway_stage import Stage, served_by, staged
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from websockets.asyncio.client import connect

from own_certificate import write_certificate
from tiltyard.cli.serving import server_config, trust_only
from tiltyard.cli.settings import load_settings
from tiltyard.errors import ConfigurationError
from tiltyard.events.log import EventLog
from tiltyard.fleet.registry import Registry
from tiltyard.gateway import body
from tiltyard.gateway.connection import MAX_HEAD_BYTES, CarefulConnection

CHAT = "/v1/chat/completions"


def address_of(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host, int(port)


def line_to(url: str) -> socket.socket:
    line = socket.create_connection(address_of(url), timeout=20)
    line.sendall(b"GET /health HTTP/1.1\r\n")
    return line


def all_of(line: socket.socket) -> bytes:
    """What the server still says until it hangs up."""
    heard = b""
    with contextlib.suppress(ConnectionResetError):
        while part := line.recv(65536):
            heard += part
    return heard


def test_a_head_that_never_ends_is_cut_off_by_time(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CarefulConnection, "head_within_s", 0.2)
    with line_to(stage.url) as line:
        line.sendall(b"x-slow: 1\r\n")
        assert all_of(line).startswith(b"HTTP/1.1 408 ")


def test_a_second_request_on_a_connection_has_no_more_time_than_the_first(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CarefulConnection, "head_within_s", 0.2)
    with line_to(stage.url) as line:
        line.sendall(b"host: 127.0.0.1\r\n\r\nGET /health HTTP/1.1\r\nx-slow: 1\r\n")
        heard = all_of(line)
        assert heard.startswith(b"HTTP/1.1 200 ")
        assert b"HTTP/1.1 408 " in heard


def test_a_head_that_never_ends_is_cut_off_by_size(stage: Stage) -> None:
    with line_to(stage.url) as line:
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 64 << 20:
                line.sendall(b"x: " + b"y" * 8000 + b"\r\n")
                sent += 8005
        assert sent < 16 << 20  # what the sockets' buffers take
        with contextlib.suppress(ConnectionError):
            assert all_of(line).startswith(b"HTTP/1.1 431 ")


def test_a_head_that_is_whole_and_too_large_is_refused_in_openais_shape(stage: Stage) -> None:
    answer = httpx2.get(stage.url + "/v1/models", headers={"x-long": "y" * 70_000})
    assert answer.status_code == 431
    assert answer.json()["error"]["code"] == "head_too_large"


def test_a_body_that_never_ends_is_cut_off_by_time(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BODY_WITHIN_S", 0.2)
    host = stage.url.removeprefix("http://")
    with socket.create_connection((host.split(":")[0], int(host.split(":")[1])), timeout=20) as line:
        line.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\n{")
        heard = line.recv(65536)
        while b"body_too_slow" not in heard:
            heard += line.recv(65536)
        assert heard.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    "head",
    [
        b"POST /nowhere HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\n{",
        b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\n{",
        b"POST /nowhere HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx-slow: ",
    ],
    ids=["refused", "answered", "trailers"],
)
def test_a_body_that_nobody_reads_does_not_keep_the_connection(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    """An answer without reading, and then a byte now and again, held a connection for ever."""
    monkeypatch.setattr(CarefulConnection, "message_within_s", 0.3)
    with socket.create_connection(address_of(stage.url), timeout=20) as line:
        line.sendall(head)
        heard = line.recv(65536)
        line.sendall(b" ")  # ends the time for which an idle connection is kept
        heard += all_of(line)
    assert heard.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 404 "))
    assert b"HTTP/1.1 408 " in heard


def test_trailers_that_never_end_are_cut_off_by_size(stage: Stage) -> None:
    with socket.create_connection(address_of(stage.url), timeout=20) as line:
        line.sendall(
            b"POST /nowhere HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
        )
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 64 << 20:
                line.sendall(b"x: " + b"y" * 8000 + b"\r\n")
                sent += 8005
    assert sent < 16 << 20  # what the sockets' buffers take


def test_a_body_in_the_smallest_chunks_is_read(stage: Stage) -> None:
    message = {"role": "user", "content": "x" * 50_000}
    text = orjson.dumps({"model": "chat", "messages": [message], "max_tokens": 1})
    chunks = b"".join(b"1\r\n" + text[place : place + 1] + b"\r\n" for place in range(len(text)))
    assert len(chunks) > 4 * MAX_HEAD_BYTES
    with socket.create_connection(address_of(stage.url), timeout=20) as line:
        line.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        line.sendall(chunks + b"0\r\n\r\n")
        assert all_of(line).startswith(b"HTTP/1.1 200 ")


async def test_a_socket_is_not_bound_by_the_time_of_a_body(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CarefulConnection, "message_within_s", 0.2)
    async with connect(stage.url.replace("http", "ws") + "/v1/chat/ws") as line:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(line.recv(), 0.5)  # were it bound, the connection would have been cut
        await line.send('{"type": "cancel"}')
        await (await line.ping())


@pytest.mark.parametrize("depth", [100, 1_000, 100_000, 1_000_000])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_nesting_is_no_way_to_the_stack(stage: Stage, depth: int, opening: str) -> None:
    close = "]" if opening == "[" else "}"
    nested = opening * depth + "1" + close * depth
    for text in (
        f'{{"model": "chat", "messages": {nested}}}',
        f'{{"model": "chat", "messages": [{{"role": "user", "content": "x"}}], "logit_bias": {nested}}}',
        f'{{"model": "chat", "messages": [{{"role": "user", "content": "x"}}], "response_format": {nested}}}',
        nested,
    ):
        answer = httpx2.post(stage.url + CHAT, content=text.encode())
        assert answer.status_code in (400, 413), answer.text


@pytest.mark.parametrize("name", ["host", "origin", "authorization", "x-api-key"])
def test_who_comes_in_by_a_header_sends_it_once(stage: Stage, name: str) -> None:
    """A proxy in front may have judged by the other one."""
    host = stage.url.removeprefix("http://")
    headers = [("host", host), (name, host), ("origin", stage.url), (name, stage.url)]
    with socket.create_connection(address_of(stage.url), timeout=20) as line:
        head = b"".join(f"{name}: {value}\r\n".encode() for name, value in headers)
        line.sendall(b"GET /v1/models HTTP/1.1\r\nconnection: close\r\n" + head + b"\r\n")
        heard = all_of(line)
    assert heard.startswith(b"HTTP/1.1 400 ")
    assert f"headers {name}; send one".encode() in heard


def test_no_other_site_may_read_or_ask(stage: Stage) -> None:
    """CORS is off: no answer allows another origin, and a preflight is no permission."""
    for headers in ({}, {"origin": "https://evil.example"}, {"origin": "null"}):
        for method, path in (("GET", "/v1/models"), ("OPTIONS", CHAT), ("POST", CHAT), ("GET", "/health")):
            answer = httpx2.request(method, stage.url + path, headers=headers)
            assert not [name for name in answer.headers if name.startswith("access-control-")]
            if headers and method == "POST":
                assert answer.json()["error"]["code"] == "origin_refused"
    asked = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    assert httpx2.options(stage.url + CHAT, headers=asked).status_code == 405


def test_what_a_client_forwards_is_not_believed(tmp_path: Path) -> None:
    assert client_seen(tmp_path, "") == ["127.0.0.1", "http"]
    assert client_seen(tmp_path, 'trusted_proxies = ["10.1.2.3"]') == ["127.0.0.1", "http"]
    assert client_seen(tmp_path, 'trusted_proxies = ["127.0.0.1"]') == ["192.0.2.7", "https"]


def client_seen(tmp_path: Path, setting: str) -> list[str]:
    async def show(request: Request) -> JSONResponse:
        return JSONResponse([request.client.host if request.client else "", request.url.scheme])

    with configured(tmp_path, setting, Starlette(routes=[Route("/", show)])) as url:
        headers = {"x-forwarded-for": "192.0.2.7", "x-forwarded-proto": "https"}
        seen: list[str] = httpx2.get(url, headers=headers).json()
        return seen


def test_a_certificate_makes_it_https(tmp_path: Path) -> None:
    certificate = write_certificate(tmp_path)

    async def show(request: Request) -> JSONResponse:
        return JSONResponse(request.url.scheme)

    with configured(
        tmp_path, 'tls_cert = "cert.pem"\ntls_key = "key.pem"', Starlette(routes=[Route("/", show)])
    ) as url:
        secure = url.replace("http:", "https:")
        assert httpx2.get(secure, verify=trust_only(certificate)).json() == "https"
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(secure)  # nobody else's authority vouches for it
        with pytest.raises(httpx2.RemoteProtocolError):
            httpx2.get(url)
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        assert httpx2.get(secure, verify=old).status_code == 200


@pytest.mark.timeout(25)  # TLS alone would wait half a minute for the client's goodbye
def test_an_idle_client_does_not_hold_up_the_end_of_the_server(tmp_path: Path) -> None:
    context = trust_only(write_certificate(tmp_path))

    async def show(request: Request) -> JSONResponse:
        return JSONResponse(1)

    app = Starlette(routes=[Route("/", show)])
    setting = 'tls_cert = "cert.pem"\ntls_key = "key.pem"'
    with contextlib.ExitStack() as after_the_server, configured(tmp_path, setting, app) as url:
        host, _, port = url.removeprefix("http://").rpartition(":")
        plain = after_the_server.enter_context(socket.create_connection((host, int(port)), timeout=20))
        line = after_the_server.enter_context(context.wrap_socket(plain, server_hostname=host))
        line.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert line.recv(100).startswith(b"HTTP/1.1 200 ")


@contextlib.contextmanager
def configured(tmp_path: Path, setting: str, app: Starlette) -> Iterator[str]:
    path = tmp_path / "tiltyard.toml"
    path.write_text(f"[server]\n{setting}\n[models]\n[identities]\n")
    with served_by(server_config(app, load_settings(path, data_dir=tmp_path))) as url:
        yield url


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest", "http://169.254.169.254", "http://evil.example:80", "file:///etc/passwd",
        "http://127.0.0.1@evil.example", "http://me:secret@127.0.0.1:9", "http://127.0.0.1:9/worker?x=1",
        "http://127.0.0.1:99999", "http://0.0.0.0:9", "gopher://127.0.0.1:70", "http://[::ffff:169.254.169.254]",
        "http://127.1:9", "",
    ],
)  # fmt: skip
def test_a_worker_cannot_make_us_ask_somewhere_else(url: str, stage: Stage) -> None:
    """Server-side request forgery: what announces itself as a worker names only a host where workers may be."""
    status = next(worker.status for worker in stage.registry.workers if worker.status is not None)
    with pytest.raises(ConfigurationError):
        Registry().announce("intruder", url, status)


def test_thousands_of_malformed_requests_leave_nothing_behind(tmp_path: Path) -> None:
    """No 5xx, nothing running, nothing held; the pieces are drawn by a counter, so that a failure repeats."""
    pieces: list[object] = [
        None, True, 0, -1, 1e308, "", "x" * 300, [], {}, [[]], {"a": None}, "chat", [{"role": "user"}],
        [{"role": "user", "content": 7}], {"type": "json_schema"}, "\ud83d", [None] * 50, 2**63, "!count 2",
    ]  # fmt: skip
    fields = [
        "model", "messages", "prompt", "stream", "n", "max_tokens", "temperature", "stop", "logit_bias", "seed",
        "response_format", "stream_options", "logprobs", "user", "unknown",
    ]  # fmt: skip
    with (
        EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log,
        staged(log, tmp_path) as stage,
        httpx2.Client(base_url=stage.url, timeout=30) as http,
    ):
        good = {"model": "chat", "messages": [{"role": "user", "content": "x"}]}
        statuses = {http.post(CHAT, json=good).status_code}
        for number in range(2_000):
            fill = number
            message: dict[str, object] = {"model": "chat", "max_tokens": 1}
            for place in range(1 + number % 4):
                fill = fill * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407 & (1 << 64) - 1
                message[fields[(fill >> 33) % len(fields)]] = pieces[(fill >> 40) % len(pieces)]
                if place == 3:
                    message["messages"] = [{"role": "user", "content": "x"}]
            data = (
                orjson.dumps(message, default=str)
                if "\ud83d" not in message.values()
                else b'{"model": "\\ud83d"}'
            )
            if number % 7 == 0:
                data = data[: len(data) * 2 // 3]
            path = (CHAT, "/v1/completions", "/v1/embeddings", "/v1/models/x", "/v1/admin/keys", "/nowhere")[
                number % 6
            ]
            statuses.add(http.request(("POST", "POST", "PUT")[number % 3], path, content=data).status_code)
        assert max(statuses) < 500, statuses
        assert stage.workers[0].running == 0
        text = http.get("/metrics").text
        assert 'tiltyard_tenant_reserved{tenant="default"} 0.0' in text
        assert 'tiltyard_tenant_requests_in_flight{tenant="default"} 0.0' in text
