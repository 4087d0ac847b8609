"""An answer's phases as spans; times are the worker's own, on its clock."""

from __future__ import annotations

from typing import NamedTuple

from test_worker_answer import Spelling, plan, token

from tiltyard.telemetry.trace_context import TraceParent
from tiltyard.telemetry.tracing import Attributes, Kind, Span, Untraced
from tiltyard.worker.answer import Answer
from tiltyard.worker.phases import tell_phases

PARENT = TraceParent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")


class Told(NamedTuple):
    name: str
    ms: int
    error: str | None


class Listener:
    """Tracing that keeps what it is told."""

    recording = True
    content = False

    def __init__(self) -> None:
        self.told: list[Told] = []
        self.parents: set[TraceParent | None] = set()

    def begin(
        self,
        name: str,
        *,
        parent: TraceParent | None,
        kind: Kind = "internal",
        attributes: Attributes | None = None,
        at_ns: int | None = None,
    ) -> Span:
        self.parents.add(parent)
        told = self.told

        class Kept(Untraced):
            def end(
                self, *, error: str | None = None, at_ns: int | None = None, began: int = at_ns or 0
            ) -> None:
                told.append(Told(name, round(((at_ns or 0) - began) / 1e6), error))

        return Kept(parent)

    def close(self) -> None:
        pass


def phases_of(answer: Answer, error: str | None = None) -> list[Told]:
    listener = Listener()
    tell_phases(listener, PARENT, answer, arrived_s=9.0, error=error)
    assert listener.parents == {PARENT}
    return listener.told


def test_a_whole_answer_has_four_phases_without_gaps() -> None:
    answer = Answer(plan(), Spelling(), submitted_s=10.0)
    answer.admit("gen_1/0", 10.5)
    answer.accept(token(1), 12.0)
    answer.accept(token(2, "length"), 12.25)
    assert phases_of(answer) == [
        Told("render prompt", 1000, None),
        Told("queue", 500, None),
        Told("prefill", 1500, None),
        Told("decode", 250, None),
    ]


def test_an_answer_that_ended_early_says_in_which_phase_and_why() -> None:
    waiting = Answer(plan(), Spelling(), submitted_s=10.0)
    assert [(told.name, told.error) for told in phases_of(waiting, "deadline_exceeded")] == [
        ("render prompt", None),
        ("queue", "deadline_exceeded"),
    ]
    begun = Answer(plan(), Spelling(), submitted_s=10.0)
    begun.admit("gen_1/0", 10.5)
    begun.accept(token(1), 12.0)
    assert [(told.name, told.error) for told in phases_of(begun)][2:] == [
        ("prefill", None),
        ("decode", "cancelled"),
    ]
