"""The pages of releases over a log with two identities, a key that may order, and a reconciler that moves when it is told to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
from arena_standin import serving
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount

from tiltyard.cli.operators import KeyOperators
from tiltyard.errors import TiltyardError
from tiltyard.events.log import EventLog
from tiltyard.gateway.keyring import KeyRing
from tiltyard.governance.redaction import Redactor
from tiltyard.release.state import ReleaseState
from tiltyard.web.app import STATIC, VersionedStaticFiles
from tiltyard.web.failures import on_tiltyard_error
from tiltyard.web.language_page import language_routes
from tiltyard.web.languages import Languages
from tiltyard.web.release_feedback import feedback_routes
from tiltyard.web.release_room import ReleaseRoom
from tiltyard.web.releases import ReleasePages
from tiltyard.web.security import Guard

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "release"))

from release_stage import ALIASES, Scene, allow_evaluation, both_bad_battle

PLAN = """alias: chat
candidate: new
why: warmer answers
stages:
  - stage: canary
    traffic: 10%
    minimum: 100
    maximum: 30m
    approval: true
    gates:
      - {metric: error_rate, worse_by: 5%}
      - {metric: time_to_first_token_p50, worse_by: 30%}
  - stage: preference
    maximum: 7d
    gates:
      - {metric: human_win_rate, worse_by: 5%}
  - stage: promote
    approval: true
"""


class ReleaseYard:
    """A scene, its pages and who may order."""

    def __init__(self, scene: Scene, *, keys: bool) -> None:
        self.scene = scene
        self.ring = KeyRing(scene.log, now_us=scene.clock)
        self.key = self.other_key = ""
        if keys:
            self.key = self.ring.issue("ops", ["release"], label="ann").secret
            self.other_key = self.ring.issue("lab", ["inference"]).secret
        self.url = ""
        self.clients = ExitStack()
        self.operators = KeyOperators(scene.log, keys_required=False)
        self.room = ReleaseRoom(scene.log, ALIASES)

    def app(self) -> Starlette:
        inner = Starlette(
            routes=[
                *feedback_routes(self.scene.log, self.operators, Redactor),
                *ReleasePages(self.room, self.operators).routes(),
                *language_routes(),
                Mount("/static", VersionedStaticFiles(directory=STATIC), name="static"),
            ],
            middleware=[Middleware(Languages), Middleware(Guard)],
            exception_handlers={TiltyardError: on_tiltyard_error},
        )
        return Starlette(routes=[Mount("/", inner)])

    def stranger(self) -> httpx2.Client:
        """Somebody without a key."""
        return self.clients.enter_context(httpx2.Client(base_url=self.url))

    def signed_in(self) -> httpx2.Client:
        """An operator's browser."""
        client = self.stranger()
        assert client.post("/releases/sign-in", data={"key": self.key}).status_code == 303
        return client

    def settled(self) -> ReleaseState:
        """What a reconciler that starts now makes of the log; the newest release."""
        reconciler = self.scene.reconciler()
        reconciler.settle()
        return reconciler.state(self.room.states()[0].id)

    def both_bad(self, question: str, *, battle: str = "bat_1") -> None:
        """A battle in which somebody asked this, and found both answers bad."""
        allow_evaluation(self.scene.log)
        both_bad_battle(self.scene, question, battle)

    def traffic(self, minutes: int, *, failing: int = 0, slow_ms: float = 50.0) -> None:
        """So many minutes of requests, `failing` of every 20 of the candidate's in vain; the reconciler looks each minute."""
        for minute in range(minutes):
            self.scene.now_us += 60_000_000
            self.scene.serve("baseline", 20, ttft_ms=50.0 + minute % 3)
            if failing:
                self.scene.serve("candidate", failing, finish="failed")
            self.scene.serve("candidate", 20 - failing, ttft_ms=slow_ms + minute % 3)
            self.settled()


@contextmanager
def release_yard(folder: Path, *, keys: bool = True) -> Iterator[ReleaseYard]:
    """Pages on a port of their own."""
    made: list[Scene] = []

    def clock_ns() -> int:
        return made[0].now_us * 1000 if made else 0

    with EventLog.open(folder / "log.db", keys=folder / "keys.db", clock_ns=clock_ns) as log:
        made.append(Scene(log))
        yard = ReleaseYard(made[0], keys=keys)
        with serving(yard.app()) as url, ExitStack() as clients:
            yard.url, yard.clients = url, clients
            yield yard
