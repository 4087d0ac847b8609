"""The engine's thread forgets a tenant: at once while idle, and as soon as its answers have ended."""

from __future__ import annotations

import threading
from dataclasses import replace

from tiltyard.worker.loop import EngineLoop, StepReport
from toy_model import request, toy_engine

WAIT_S = 20.0


def test_a_tenant_is_forgotten_when_its_last_answer_has_ended_or_was_cancelled() -> None:
    engine = toy_engine(max_context=1024)
    ended, begun = threading.Event(), threading.Event()

    def deliver(_report: StepReport) -> None:
        begun.set()
        if not engine.has_work:
            ended.set()

    loop = EngineLoop(engine, deliver=deliver, failed=ended.set)
    one = replace(request("one", range(70), 4), namespace="behaviour/acme", tenant="acme")
    long = replace(request("long", range(70), 900), namespace="behaviour/acme", tenant="acme")
    loop.start()
    try:
        loop.submit([one])
        assert ended.wait(WAIT_S)
        assert loop.forget("acme").result(WAIT_S) == 2
        assert loop.forget("acme").result(WAIT_S) == 0
        begun.clear()
        loop.submit([long])
        assert begun.wait(WAIT_S)
        waiting = loop.forget("acme")
        loop.cancel(["long"])
        assert waiting.result(WAIT_S) >= 2
    finally:
        loop.stop()
    assert engine.blocks_cached == 0
