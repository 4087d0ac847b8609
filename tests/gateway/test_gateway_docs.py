"""The documents keep up with the code: every error code, route, field and metric is described."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from tiltyard.errors import TiltyardError
from tiltyard.events.log import EventLog
from tiltyard.fleet.place import WorkerFailed
from tiltyard.fleet.registry import Registry
from tiltyard.gateway.app import create_gateway
from tiltyard.gateway.attempt import WorkerLost
from tiltyard.router.router import Router
from tiltyard.telemetry.arena_metrics import ArenaMetrics
from tiltyard.telemetry.metrics import GatewayMetrics
from tiltyard.telemetry.objective_metrics import ObjectiveMetrics
from tiltyard.wire.embeddings import EmbeddingsRequest
from tiltyard.wire.messages import MESSAGES_REFUSED, MessagesRequest
from tiltyard.wire.openai import (
    CHAT_REFUSED,
    COMPLETION_REFUSED,
    MESSAGE_REFUSED,
    ChatCompletionRequest,
    CompletionRequest,
)
from tiltyard.wire.responses import RESPONSES_REFUSED, ResponsesRequest
from tiltyard.wire.tokens import TokenizeRequest

ROOT = Path(__file__).parents[2]
ERRORS = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
API = (ROOT / "docs" / "http-api.md").read_text(encoding="utf-8")
PROTOCOLS = (ROOT / "docs" / "protocols.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `([a-z_]+)` \| ([0-9a-z ]+) \|", ERRORS, re.MULTILINE))


def written_codes() -> Iterator[str]:
    """Every `code="…"` argument and `default_code` in the sources."""
    for path in (ROOT / "src" / "tiltyard").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "code" and isinstance(node.value, ast.Constant):
                yield str(node.value.value)
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "default_code":
                yield ast.literal_eval(node.value)


def test_every_error_code_is_documented_and_every_documented_code_exists() -> None:
    assert set(written_codes()) == set(ROWS)


def subclasses(kind: type[TiltyardError]) -> Iterator[type[TiltyardError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from subclasses(child)


def test_the_documented_status_is_the_one_that_is_sent() -> None:
    kinds = set(subclasses(TiltyardError))
    assert {WorkerLost, WorkerFailed} <= kinds
    for kind in kinds:
        if kind.__module__.startswith("tiltyard."):
            assert ROWS[kind.default_code] == str(kind.status), kind


@pytest.mark.parametrize(
    "model", [ChatCompletionRequest, CompletionRequest, EmbeddingsRequest, TokenizeRequest]
)
def test_every_field_that_is_honoured_is_documented(model: type[BaseModel]) -> None:
    rows = "\n".join(re.findall(r"^\|.*\|$", API, re.MULTILINE))
    assert [name for name in model.model_fields if f"`{name}`" not in rows] == []


@pytest.mark.parametrize("table", [CHAT_REFUSED, COMPLETION_REFUSED])
def test_every_field_that_is_refused_is_documented(table: dict[str, object]) -> None:
    refused = API[API.index("Known and refused") : API.index("A body may have")]
    assert [name for name in table if f"`{name}`" not in refused] == []
    assert [
        n for n in MESSAGE_REFUSED if f"`{n}`" not in refused and n not in ("annotations", "refusal")
    ] == []


@pytest.mark.parametrize(
    ("model", "refused", "begin", "end"),
    [
        (ResponsesRequest, RESPONSES_REFUSED, "## `POST /v1/responses`", "## `POST /v1/messages`"),
        (MessagesRequest, MESSAGES_REFUSED, "## `POST /v1/messages`", None),
    ],
)
def test_every_field_of_another_protocol_is_documented(
    model: type[BaseModel], refused: dict[str, object], begin: str, end: str | None
) -> None:
    section = PROTOCOLS[PROTOCOLS.index(begin) : None if end is None else PROTOCOLS.index(end)]
    assert [name for name in (*model.model_fields, *refused) if f"`{name}`" not in section] == []


def test_every_route_is_documented(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        app = create_gateway(router=Router(Registry()), log=log)
    paths = set(app.openapi()["paths"])
    assert {"/v1/chat/completions", "/ready"} <= paths
    assert [path for path in {*paths, "/v1/chat/ws", "/openapi.json"} if f"{path}`" not in API] == []


def test_every_metric_is_documented() -> None:
    families = [
        family.name
        for family in [
            *GatewayMetrics().registry.collect(),
            *ArenaMetrics().collect(),
            *ObjectiveMetrics(lambda: ()).describe(),
        ]
    ]
    rows = re.findall(r"^\| ((?:`tiltyard_[a-z_]+`(?:, )?)+) \|", API, re.MULTILINE)
    documented = {name.removesuffix("_total") for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert set(families) == documented


def test_the_openapi_document_has_every_route_and_what_each_may_answer(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        app = create_gateway(router=Router(Registry()), log=log)
    paths = app.openapi()["paths"]
    sources = (ROOT / "src" / "tiltyard" / "gateway").glob("*.py")
    assert not any("include_in_schema" in source.read_text(encoding="utf-8") for source in sources)
    for methods in paths.values():
        for operation in methods.values():
            assert {"200", "401", "403", "500"} <= set(operation["responses"])
    # Any error of ours can end an answer; 405 belongs to no operation.
    said = {kind.status for kind in subclasses(TiltyardError) if kind.__module__.startswith("tiltyard.")}
    assert said - {405} <= {int(status) for status in paths["/v1/chat/completions"]["post"]["responses"]}
