"""A worker's model host over toy arithmetic: the real engine, service and doors, without a model file."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import uvicorn
from numpy.typing import NDArray

from tiltyard.engine.engine import EngineConfig
from tiltyard.engine.speculation import Speculation
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import Behaviour, DefaultSampling, Deployment, Weights
from tiltyard.kernels import NativeModel, choose_rows
from tiltyard.models.architecture import Architecture
from tiltyard.models.resolve import ResolvedIdentity
from tiltyard.models.template import ChatTemplate, PlainTemplate
from tiltyard.models.tokenizer import Tokenizer
from tiltyard.worker.app import WorkerDoors
from tiltyard.worker.host import ModelHost, ServedIdentity
from tiltyard.worker.process import QuietServer, address
from tiltyard.worker.service import WorkerService

END = 256
"""The stop token: beyond the 256 byte tokens."""


class ByteTokenizer:
    """Token `i` is byte `i`; token 256 ends an answer."""

    bos_id = None
    eos_id = None
    control_tokens: ClassVar[dict[str, int]] = {"<end>": END}
    add_bos = False
    add_eos = False
    stop_ids = frozenset({END})
    vocab_size = 257

    def encode(self, text: str, *, special: bool) -> list[int]:
        return list(text.encode())

    def least_tokens(self, text: str) -> int:
        return len(text.encode())

    def split_control(self, text: str) -> list[str | int]:
        return [END if part == "<end>" else part for part in re.split("(<end>)", text) if part]

    def encode_segments(self, segments: Sequence[str | int]) -> list[int]:
        return [token for part in segments for token in ([part] if isinstance(part, int) else part.encode())]

    def token_text(self, token_id: int) -> str:
        return chr(token_id) if token_id < END else "<end>"

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < END else b""


class ScriptedModel:
    """Says the script after any prompt whose last byte is `>`, byte by byte; each step waits for a permit.

    The token at position `p` of the script follows the `p`-th token after the last `>` in the sequence. Which
    tokens a sequence has is read back through its block table. `anchor` stands for `>` where a script has one.
    """

    def __init__(self, script: bytes, blocks: int, *, gated: bool, anchor: str = ">") -> None:
        self.anchor = ord(anchor)
        self.script = [*script, END]
        self.kv = np.full((blocks, 32), -1, np.int64)
        self.permits = threading.Semaphore(0)
        self.gated = gated
        self.steps = 0
        self.fail = False

    def open(self) -> None:
        """Let every step pass from now on."""
        self.gated = False
        self.permits.release()

    def copy_block(self, source: int, target: int) -> None:
        self.kv[target] = self.kv[source]

    def read_block(self, block: int) -> bytes:
        return self.kv[block].tobytes()

    def write_block(self, block: int, data: bytes) -> None:
        self.kv[block] = np.frombuffer(data, np.int64)

    choose_rows = staticmethod(choose_rows)

    def forward(  # noqa: PLR0917
        self,
        tokens: NDArray[np.int32],
        positions: NDArray[np.int32],
        sequences: NDArray[np.int32],
        tables: NDArray[np.int32],
        output_rows: NDArray[np.int32],
        logits: NDArray[np.float32],
        *,
        adapters: NDArray[np.int32] | None = None,
    ) -> None:
        if self.gated:
            self.permits.acquire()
        if self.fail:
            raise RuntimeError("the toy has been told to fail")
        self.steps += 1
        self.kv[tables[sequences, positions // 32], positions % 32] = tokens
        logits[:] = 0.0
        for row, index in enumerate(output_rows.tolist()):
            p = np.arange(positions[index] + 1)
            seen = self.kv[tables[sequences[index], p // 32], p % 32].tolist()
            said = seen[::-1].index(self.anchor)
            logits[row, self.script[said % len(self.script)]] = 10.0


def toy_host(
    model: ScriptedModel,
    *,
    blocks: int,
    max_sequences: int,
    speculation: Speculation | None = None,
    template: str | None = None,
    tool_format: str | None = None,
) -> ModelHost:
    tokenizer = ByteTokenizer()
    config = EngineConfig(
        kv_blocks=blocks,
        max_batch_tokens=64,
        max_sequences=max_sequences,
        vocab_size=tokenizer.vocab_size,
        max_context=512,
        speculation=speculation,
    )
    declaration = IdentityDeclaration(model="toy", chat_template="off", organization="toys")
    behaviour = Behaviour(
        weights=Weights(digest="sha256:" + "0" * 64, size_bytes=0, stored_as=("F32",)),
        architecture={"family": "toy"},
        tokenizer="sha256:" + "1" * 64,
        chat_template=None,
        tool_format=tool_format,
        default_sampling=DefaultSampling(temperature=0.0),
    )
    deployment = Deployment(
        behaviour=behaviour.digest,
        engine_build="toy",
        isa="toy",
        threads=1,
        block_tokens=32,
        kv_blocks=blocks,
        max_batch_tokens=64,
        hardware="toy",
    )
    shown = PlainTemplate() if template is None else ChatTemplate(template)
    resolved = ResolvedIdentity(behaviour, shown, None, cast(Architecture, None))
    identity = ServedIdentity("toy", declaration, resolved, deployment)
    return ModelHost(
        native=cast(NativeModel, model),
        tokenizer=cast(Tokenizer, tokenizer),
        identities={"toy": identity},
        config=config,
    )


@dataclass
class ToyWorker:
    """A worker that listens on a real socket in this process."""

    url: str
    port: int
    model: ScriptedModel
    service: WorkerService
    doors: WorkerDoors


@asynccontextmanager
async def toy_worker(
    script: str = "Hello.",
    *,
    gated: bool = False,
    blocks: int = 32,
    max_sequences: int = 8,
    max_queue: int = 64,
    speculation: Speculation | None = None,
    template: str | None = None,
    tool_format: str | None = None,
    anchor: str = ">",
) -> AsyncIterator[ToyWorker]:
    model = ScriptedModel(script.encode(), blocks, gated=gated, anchor=anchor)
    service = WorkerService(
        "toy-0",
        toy_host(
            model,
            blocks=blocks,
            max_sequences=max_sequences,
            speculation=speculation,
            template=template,
            tool_format=tool_format,
        ),
        max_queue=max_queue,
    )
    doors = WorkerDoors("toy-0")
    async with listening(doors) as (url, port):
        service.start()
        service.warmed = True
        doors.service = service
        try:
            yield ToyWorker(url, port, model, service, doors)
        finally:
            model.open()
            service.stop()


@asynccontextmanager
async def listening(doors: WorkerDoors) -> AsyncIterator[tuple[str, int]]:
    import socket

    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    server = QuietServer(
        uvicorn.Config(
            doors.app(), log_level="error", access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield address(listener), listener.getsockname()[1]
    finally:
        server.should_exit = True
        await serving


async def until(condition: Callable[[], object]) -> None:
    """Let the event loop run until something holds; fails after ten seconds."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


def texts(frames: Sequence[dict[str, object]], index: int = 0) -> str:
    """The text of one choice of a stream."""
    parts = []
    for frame in frames:
        for choice in cast(list[dict[str, object]], frame["choices"]):
            if choice["index"] == index:
                delta = cast(dict[str, str], choice.get("delta", {}))
                parts.append(delta.get("content", "") + cast(str, choice.get("text", "")))
    return "".join(parts)
