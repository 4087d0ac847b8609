"""Seeded requests that something is wrong with, thrown at a real gateway before a real worker.

    PYTHONPATH=src:tests/gateway python tests/gateway/malformed.py --model FILE.gguf --count 10000 --seed 12

is what docs/clients.md reports.

Each is a valid request of some route with one to three mistakes: a value of another kind or size, a member that is
missing or unknown, half a body, bytes that are no JSON, a header that lies, a client that hangs up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

TEXT = "Say hi."
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TEXT}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "chat", "messages": MESSAGES, "max_tokens": 1, "temperature": 0.5, "top_p": 0.9, "seed": 1,
        "stop": ["x"], "n": 1, "logprobs": True, "top_logprobs": 1, "logit_bias": {"5": 1.0}, "stream": False,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}},
    },
    "/v1/completions": {
        "model": "chat", "prompt": TEXT, "max_tokens": 1, "logprobs": 1, "echo": True, "stream": True,
        "stream_options": {"include_usage": True}, "allowed_token_ids": [5, 6], "bad_words": ["x"],
    },
    "/v1/responses": {
        "model": "chat", "input": [{"role": "user", "content": [{"type": "input_text", "text": TEXT}]}],
        "max_output_tokens": 1, "instructions": "Be brief.", "metadata": {"a": "b"}, "tool_choice": "none",
        "text": {"format": {"type": "text"}}, "include": ["message.output_text.logprobs"],
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
    },
    "/v1/messages": {
        "model": "chat", "max_tokens": 1, "system": "Be brief.", "stop_sequences": ["x"], "stream": True,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": TEXT}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "1"}]},
        ],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "none"},
    },
    "/v1/messages/count_tokens": {"model": "chat", "messages": [{"role": "user", "content": TEXT}]},
    "/v1/embeddings": {"model": "chat", "input": [TEXT, [5, 6]], "encoding_format": "float"},
    "/tokenize": {"model": "chat", "messages": MESSAGES, "return_token_strs": True},
    "/detokenize": {"model": "chat", "tokens": [5, 6]},
    "/render": {"model": "chat", "messages": MESSAGES, "tools": [TOOL], "tool_choice": "none"},
}  # fmt: skip


def nested(depth: int, kind: str) -> Any:
    """Lists in lists, or objects in objects."""
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind == "list" else {"a": value}
    return value


STRANGE: list[Any] = [
    nested(100, "list"), nested(100, "object"), nested(300, "list"), nested(300, "object"), "\ud800", "\udc00x",
    None, True, False, 0, -1, 1.5, 2**31, 2**53, 2**63, 2**70, -(2**63) - 1, 1e308, -0.0, "", " ", "x", "x" * 5000,
    "\u0000", "😀" * 50, "\u202e", "<|im_end|>", "../../etc/passwd", "null", [], {}, [[]], [{}], [None], [""],
    {"": None}, {"type": "text"}, {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1"}},
    {"type": "json_schema"}, [1, "a", None], ["x"] * 300, {"$ref": "#/x"}, {"a": {"b": {"c": []}}},
]  # fmt: skip
NOT_JSON = [
    b"", b"{", b"[]", b"null", b'"x"', b"{]", b"\xff\xfe{}", b"\xef\xbb\xbf{}", b'{"a":NaN}', b'{"a":1e999}', b"{'a':1}",
    b'{"model":"\\ud800"}', b'{"model":"chat","model":"chat"}', b"\x00" * 64, b"[" * 3000, b'{"a":' * 600 + b"1" + b"}" * 600,
    b'{"a":' * 200 + b"1" + b"}" * 200, b"{}" * 10, b"x" * 100_000,
]  # fmt: skip
HEADERS: list[dict[str, str]] = [
    {"content-type": "text/plain"}, {"content-type": "multipart/form-data; boundary=x"}, {"host": "evil.example"},
    {"host": ""}, {"origin": "http://evil.example"}, {"x-tiltyard-class": "urgent"}, {"x-tiltyard-deadline-ms": "-1"},
    {"x-tiltyard-queue-deadline-ms": "1e3"}, {"x-tiltyard-speculation": "perhaps"}, {"idempotency-key": "a b"},
    {"last-event-id": "gen_0:0"}, {"last-event-id": "gen_" + "0" * 32 + ":3"}, {"x-tiltyard-resume-ms": "never"},
    {"x-tiltyard-unknown-fields": "drop"}, {"x-tiltyard-unknown-fields": "?"}, {"content-encoding": "gzip"},
    {"authorization": "Basic x"}, {"traceparent": "00-0-0-0"}, {"x-request-id": "y" * 4000}, {"accept": "image/png"},
    {"x-big": "z" * 20_000}, {"expect": "100-continue"},
]  # fmt: skip
PATHS = [
    "/", "/v1", "/v1/", "/v1/models/", "/v1/models/%00", "/v1/models/..%2f", "/v1/nowhere", "//v1/models", "/v1/chat/ws",
    "/v1/messages/x", "/v1/responses/resp_0", "/openapi.json/", "/metrics/x", "/v1/admin/keys", "/" + "a" * 3000,
]  # fmt: skip
METHODS = ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "POST"]


@dataclass(frozen=True)
class Malformed:
    """One request; `hang_up` after sending that share of the body, or before reading the answer."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    sent: float = 1.0
    """The share of the body that is sent before the client is gone."""
    heard: bool = True
    """Whether the client waits for the answer."""


def malformed(seed: int, count: int) -> Iterator[Malformed]:
    """The same ones for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        yield _one(rng)


def _one(rng: random.Random) -> Malformed:
    path = rng.choice(list(VALID))
    headers: dict[str, str] = {"content-type": "application/json"}
    kind = rng.random()
    if kind < 0.06:
        method = rng.choice(METHODS)
        return Malformed(
            method, rng.choice([*PATHS, *VALID]), headers, b"" if method in ("GET", "HEAD") else b"{}"
        )
    if kind < 0.16:
        return Malformed("POST", path, headers, rng.choice(NOT_JSON))
    body = deepcopy(VALID[path])
    for _ in range(rng.randint(1, 3)):
        _spoil(rng, body)
    data = json.dumps(body).encode()
    if kind < 0.30:
        headers |= rng.choice(HEADERS)
    elif kind < 0.36:  # cut or damaged on the way
        place = rng.randrange(len(data))
        data = (
            data[:place]
            if rng.random() < 0.5
            else data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]
        )
    elif kind < 0.40:
        return Malformed("POST", path, headers, data, sent=rng.random())
    elif kind < 0.44:  # a valid, long, streamed answer that nobody waits for
        long: dict[str, Any] = {"model": "chat", "prompt": TEXT, "max_tokens": 100, "ignore_eos": True}
        long["stream"] = rng.random() < 0.5
        return Malformed("POST", "/v1/completions", headers, json.dumps(long).encode(), heard=False)
    return Malformed("POST", path, headers, data)


def _spoil(rng: random.Random, body: dict[str, Any]) -> None:
    """Make one mistake somewhere in a body."""
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], (dict, list)):
                walk(node[key])

    walk(body)
    if not places:
        return
    node, key = rng.choice(places)
    what = rng.random()
    if what < 0.65:
        node[key] = deepcopy(rng.choice(STRANGE))
    elif what < 0.8:
        del node[key]
    elif isinstance(node, dict):
        node[rng.choice(["foo", "", "Model", "__proto__", "guided_json", "best_of", str(key).upper()])] = (
            deepcopy(rng.choice(STRANGE))
        )
    else:
        node.append(deepcopy(rng.choice(STRANGE)))


async def throw(url: str, requests: Iterator[Malformed], *, at_once: int = 16) -> Counter[int]:
    """Send them all and count the statuses; 0 stands for no answer (the client hung up, or the server did)."""
    statuses: Counter[int] = Counter()
    host, _, port = url.removeprefix("http://").partition(":")

    async def send_all() -> None:
        for request in requests:
            statuses[await _send(host, int(port), request)] += 1

    await asyncio.gather(*(send_all() for _ in range(at_once)))
    return statuses


async def _send(host: str, port: int, request: Malformed) -> int:
    """By a bare socket: a client library would correct half of the mistakes."""
    headers = {
        "host": f"{host}:{port}",
        "content-length": str(len(request.body)),
        "connection": "close",
        **request.headers,
    }
    head = f"{request.method} {request.path} HTTP/1.1\r\n" + "".join(
        f"{k}: {v}\r\n" for k, v in headers.items()
    )
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(head.encode() + b"\r\n" + request.body[: int(len(request.body) * request.sent)])
        await writer.drain()
        if request.sent < 1:
            return 0
        if not request.heard:
            await reader.read(1)  # it has begun
            return 0
        answer = await asyncio.wait_for(reader.read(), 120)
        answer = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
        return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/") else 0
    except (ConnectionError, asyncio.IncompleteReadError):
        return 0
    finally:
        writer.close()


async def settled(worker_url: str) -> dict[str, Any]:
    """The worker's state once nothing runs or waits in it; raises `TimeoutError` if that never comes."""
    async with asyncio.timeout(30), httpx2.AsyncClient() as http:
        while True:
            status: dict[str, Any] = (await http.get(worker_url + "/worker")).json()
            if not (status["running"] or status["waiting"] or status["kv_blocks_used"]):
                return status
            await asyncio.sleep(0.02)


def main() -> None:
    """Throw them at a gateway and worker of our own, and say what came back."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file")
    arguments = parser.parse_args()
    from real_house import real_house

    with tempfile.TemporaryDirectory() as directory, real_house(arguments.model, Path(directory)) as house:
        began = time.monotonic()
        statuses = asyncio.run(throw(house.url, malformed(arguments.seed, arguments.count)))
        status = asyncio.run(settled(house.worker_url))
        seconds = time.monotonic() - began
        metrics = httpx2.get(house.url + "/metrics").text
    in_flight = [line for line in metrics.splitlines() if line.startswith("tiltyard_generations_in_flight{")]
    print(f"{sum(statuses.values()):,} requests in {seconds:.0f} s; statuses (0: no answer):")
    print(", ".join(f"{code}: {count:,}" for code, count in sorted(statuses.items())))
    print(f"running {status['running']}, waiting {status['waiting']}, blocks held {status['kv_blocks_used']}")
    print("; ".join(in_flight))
    sys.exit(any(code >= 500 for code in statuses))


if __name__ == "__main__":
    main()
