"""A leaderboard over real sockets, and votes for it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import httpx2
from arena_standin import entrant, serving

from tiltyard.arena.boards import Boards
from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.client import ModelClient
from tiltyard.events.log import EventLog
from tiltyard.events.schema import Choice, IdentityRegistered, LeaderboardPublished, VoteCast
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import Deployment
from tiltyard.rating.ruleset import Ruleset
from tiltyard.web.app import create_web
from tiltyard.web.leaderboard import leaderboard_routes

MODELS = [entrant("quillon"), entrant("vamplate"), entrant("<b>bold</b>")]
EVERY_VOTE = Ruleset(
    name="every-vote",
    exclude_leaks=False,
    least_seconds=0,
    votes_per_voter_day=0,
    votes_per_network_day=0,
    prompt_repeats=0,
    voter_alpha=0,
)
Start = Callable[..., httpx2.Client]


def register(log: EventLog) -> None:
    for model in MODELS:
        deployment = Deployment(
            behaviour=model.behaviour,
            engine_build="test",
            isa="scalar",
            threads=1,
            block_tokens=32,
            kv_blocks=8,
            max_batch_tokens=64,
            hardware="test",
        )
        assert model.manifest is not None
        event = IdentityRegistered(
            name=model.name,
            behaviour=model.behaviour,
            deployment=deployment.digest,
            behaviour_manifest=model.manifest,
            deployment_manifest=deployment,
            declaration=IdentityDeclaration(
                model="file", organization="Test bench", license="Apache-2.0", description="a stand-in"
            ),
        )
        log.append_blocking(event, subject=model.name, source="tests")


def vote(log: EventLog, number: int, left: int, right: int, choice: Choice, *, turns: int = 1) -> None:
    event = VoteCast(
        battle=f"bat_{number}",
        voter="someone",
        choice=choice,
        identity_a=MODELS[left].name,
        identity_b=MODELS[right].name,
        behaviour_a=MODELS[left].behaviour,
        behaviour_b=MODELS[right].behaviour,
        pair_probability=1 / 3,
        side_probability=0.5,
        turns=turns,
        generations_a=("gen_1",),
        generations_b=("gen_2",),
    )
    log.append_blocking(event, subject=f"bat_{number}", source="tests")


def redefine(log: EventLog) -> None:
    """Give quillon's name to another behaviour; the votes of the earlier one stay."""
    earlier = next(e for e in log.identities() if e.name == "quillon")
    newer = entrant("another system prompt")
    assert newer.manifest is not None
    event = earlier.model_copy(update={"behaviour": newer.behaviour, "behaviour_manifest": newer.manifest})
    log.append_blocking(event, subject="quillon", source="tests")


def cast(log: EventLog, votes: int = 40) -> None:
    """Quillon beats vamplate three times in four; the third model meets vamplate four times."""
    choices: list[Choice] = ["a", "a", "b", "tie", "a", "both_bad", "a", "b"]
    for number in range(votes):
        vote(log, number, 0, 1, choices[number % len(choices)])
    for number, choice in enumerate(choices[:4]):
        vote(log, 1000 + number, 1, 2, choice)


@contextmanager
def starting(log: EventLog) -> Iterator[Start]:
    """Start the pages over the log; gives a client of them."""
    with ExitStack() as stack:

        def started(
            *,
            clock_us: Callable[[], int] | None = None,
            publish: object = "log",
            log: EventLog = log,
        ) -> httpx2.Client:
            async def append(data: LeaderboardPublished) -> object:
                return await log.append(data, subject=data.digest, source="tests")

            routes = leaderboard_routes(
                boards=Boards(RecordedVotes(log, EVERY_VOTE), minimum_votes=10),
                publish=append if publish == "log" else publish,  # type: ignore[arg-type]
                **({"clock_us": clock_us} if clock_us else {}),
            )
            web = create_web(
                log=log,
                client=ModelClient("http://127.0.0.1:9"),  # nothing listens there: no battle is fought here
                contestants=lambda: MODELS,
                routes=routes,
                rng=random.Random(1),
            )
            url = stack.enter_context(serving(web))
            return stack.enter_context(httpx2.Client(base_url=url, trust_env=False, timeout=20))

        yield started
