"""A running arena for tests, and how a visitor without a browser follows a battle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import httpx2
import orjson
from arena_standin import Gate, StandIn, entrant
from starlette.routing import Route

from tiltyard.arena.battle import Arena
from tiltyard.arena.boards import Boards, Question
from tiltyard.arena.consent import CONSENT_VERSION
from tiltyard.arena.health import Health
from tiltyard.arena.measurements import Measurements
from tiltyard.arena.pairing import Entrant
from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.events.log import EventLog
from tiltyard.events.schema import VoteCast
from tiltyard.rating.ruleset import Ruleset
from tiltyard.web.data import data_routes
from tiltyard.web.health import health_routes
from tiltyard.web.leaderboard import leaderboard_routes
from tiltyard.web.sensors import sensor_routes

CONTESTANTS = [
    entrant("quillon-cold", temperature=0.0),
    entrant("quillon-warm"),
    entrant("vamplate-raw", template=False),
]
NAMES = [one.name for one in CONTESTANTS]
DIGESTS = [one.behaviour for one in CONTESTANTS]

REPLAY = "bin/tiltyard replay --data '/some data'"


@dataclass
class Yard:
    """A running arena: its address, its models and its log."""

    url: str
    log: EventLog
    models: StandIn
    arena: Arena
    contestants: list[Entrant] = field(default_factory=list)

    def visitor(self, **headers: str) -> httpx2.Client:
        """A client that keeps its cookies, as a browser does."""
        return httpx2.Client(base_url=self.url, headers=headers, trust_env=False, timeout=20)


@dataclass
class Heard:
    """What one event stream said."""

    text: dict[str, str] = field(default_factory=lambda: {"a": "", "b": ""})
    done: dict[str, dict[str, object]] = field(default_factory=dict)
    settled: dict[str, object] | None = None
    raw: str = ""
    events: list[str] = field(default_factory=list)


def listen(visitor: httpx2.Client, battle: str, *, until: Callable[[Heard], bool] | None = None) -> Heard:
    """Read a battle's events until they end, or until `until` says so."""
    heard = Heard()
    with visitor.stream("GET", f"/api/arena/battles/{battle}/events") as response:
        assert response.status_code == 200, response.read()
        heard.raw += str(response.headers)
        event = ""
        for line in response.iter_lines():
            heard.raw += line + "\n"
            if line.startswith("event: "):
                event = line.removeprefix("event: ")
            elif line.startswith("data: "):
                data = orjson.loads(line.removeprefix("data: "))
                heard.events.append(event)
                if event == "delta":
                    heard.text[data["side"]] += data["text"]
                elif event == "done":
                    heard.done[data["side"]] = data
                elif event == "settled":
                    heard.settled = data
                if until is not None and until(heard):
                    break
    return heard


def opening(content: str = "Why is the sky blue?", **fields: str) -> dict[str, object]:
    """The body that opens a battle, with the consent that the first one needs."""
    return {"messages": [{"role": "user", "content": content}], "consent": CONSENT_VERSION, **fields}


def open_battle(visitor: httpx2.Client, content: str = "Why is the sky blue?") -> tuple[str, str]:
    """Open a battle through the API; returns its id and its vote token."""
    response = visitor.post("/api/arena/battles", json=opening(content))
    assert response.status_code == 201, response.text
    opened = response.json()
    return opened["battle"], opened["vote_token"]


def page_routes(log: EventLog) -> list[Route]:
    """The pages beside the arena, as `tiltyard up` hands them in; no vote is too fast here, and nothing is held back."""
    boards = Boards(RecordedVotes(log, Ruleset(least_seconds=0)), minimum_votes=1)
    return [
        *sensor_routes(
            board=lambda now_us: boards.ask(Question(minimum_votes=1), now_us=now_us).leaderboard,
            measurements=Measurements(log),
        ),
        *leaderboard_routes(boards=boards),
        *health_routes(Health(log)),
        *data_routes(log),
    ]


def vote(visitor: httpx2.Client, battle: str, token: str, choice: str = "a") -> httpx2.Response:
    return visitor.post(f"/api/arena/battles/{battle}/vote", json={"vote_token": token, "choice": choice})


def held(models: StandIn, gate: Gate, *, after: str = "first half, ") -> None:
    """Make every model say something, wait at the gate, and then say its own name."""
    for name in models.identities:
        models.answers[name] = lambda _messages, name=name: [after, gate, f"then {name[::-1]}."]


def votes(log: EventLog) -> list[VoteCast]:
    return [event.data for event in log.read(types=[VoteCast]) if isinstance(event.data, VoteCast)]
