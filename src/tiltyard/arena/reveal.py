"""Who was who, told once the vote is cast: names, identities, settings, and what differs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tiltyard.arena.pairing import Entrant
from tiltyard.arena.transcript import Battle
from tiltyard.errors import Conflict, NotFound, StorageFailed
from tiltyard.events.log import EventLog
from tiltyard.events.schema import Choice, IdentityRegistered, Side, SidesRevealed
from tiltyard.identity.canonical import Digest, Json
from tiltyard.identity.difference import behaviour_differences
from tiltyard.identity.manifest import Behaviour

LEADERBOARD = "/leaderboard"
SOURCE = "tiltyard/arena"
REPLAY = "tiltyard replay"
"""What makes a battle's answers again, in front of the battle's id."""


_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Speed:
    """How fast a side answered its last judged message, as the gateway measured it."""

    first_token_ms: float
    """From arrival to the first token."""
    tokens_per_s: float | None
    """After the first token; `None` when there was only one."""
    tokens: int


@dataclass(frozen=True)
class RevealedSide:
    """One side, unmasked."""

    side: Side
    name: str
    identity: Digest
    """Behaviour digest."""
    generations: tuple[str, ...]
    description: str
    organization: str
    license: str
    manifest: Behaviour | None
    """`None` when it is not known here."""
    speed: Speed | None = None
    """`None` when it was not measured."""

    @property
    def setting(self) -> dict[str, str]:
        """The manifest's fields in words, by dotted path, such as `default_sampling.temperature`."""
        return {} if self.manifest is None else dict(setting_of(self.manifest))


@dataclass(frozen=True)
class Difference:
    """One manifest field in which the sides differ."""

    field: str
    a: str
    b: str


@dataclass(frozen=True)
class Reveal:
    """What the voter learns."""

    battle: str
    choice: Choice
    receipt: str
    time_us: int
    turns: int
    pair_probability: float
    side_probability: float
    a: RevealedSide
    b: RevealedSide
    replay: str = REPLAY
    withdrawn: bool = False
    """The voter took the vote back."""

    @property
    def differences(self) -> list[Difference]:
        """Manifest fields in which the sides differ; none when a manifest is not known here."""
        if self.a.manifest is None or self.b.manifest is None:
            return []
        return [
            Difference(one.field.removeprefix("behaviour."), _words(one.left), _words(one.right))
            for one in behaviour_differences(self.a.manifest, self.b.manifest)
        ]

    @property
    def replay_command(self) -> str:
        """The command that makes both sides' answers again."""
        return f"{self.replay} {self.battle}"

    def to_json(self) -> dict[str, Json]:
        """The body of the vote's HTTP answer."""
        return {
            "battle": self.battle,
            "choice": self.choice,
            "receipt": self.receipt,
            "withdrawn": self.withdrawn,
            "turns": self.turns,
            "pair_probability": self.pair_probability,
            "side_probability": self.side_probability,
            "a": _side_json(self.a),
            "b": _side_json(self.b),
            "differences": [{"field": d.field, "a": d.a, "b": d.b} for d in self.differences],
            "replay": self.replay_command,
            "leaderboard": LEADERBOARD,
        }


def reveal(
    battle: Battle,
    known: Iterable[Entrant],
    *,
    replay: str = REPLAY,
    speeds: Mapping[str, Speed] = MappingProxyType({}),
) -> Reveal:
    """Say who was who; raises `Conflict` before the vote, whoever asks.

    `known` are the identities that can be described here; a side that is not among them is still named.
    `speeds` are those of generations, by id. `replay` is the command, as one types it here, that makes the answers of the battle named after it again.
    """
    vote = battle.vote
    if vote is None:
        raise Conflict("this battle has no vote yet; the sides stay unnamed until it has", code="not_voted")
    entrants = list(known)
    return Reveal(
        battle=battle.id,
        choice=vote.choice,
        receipt=vote.receipt,
        time_us=vote.time_us,
        turns=vote.turns,
        pair_probability=battle.pair_probability,
        side_probability=battle.side_probability,
        a=_unmask(battle, "a", vote.generations_a, entrants, speeds),
        b=_unmask(battle, "b", vote.generations_b, entrants, speeds),
        withdrawn=battle.withdrawn is not None,
        replay=replay,
    )


async def reveal_of(
    battle: Battle, log: EventLog, ready: Sequence[Entrant], *, replay: str = REPLAY
) -> Reveal:
    """Say who was who, described by the contestants that stand `ready`, or else by the log."""
    vote = battle.vote
    asked = () if vote is None else (*vote.generations_a[-1:], *vote.generations_b[-1:])
    here = {(one.name, one.behaviour) for one in ready}
    strangers = any((one.identity, one.behaviour) not in here for one in battle.contestants.values())

    def read() -> tuple[list[Entrant], dict[str, Speed]]:
        # every registration, once a vote: only where needed
        return _registered(log) if strangers else [], _speeds(log, asked)

    registered, speeds = await asyncio.to_thread(read)
    revealed = reveal(battle, [*ready, *registered], replay=replay, speeds=speeds)
    await _record(battle, log)
    return revealed


async def _record(battle: Battle, log: EventLog) -> None:
    """Write down that the sides are named, before they are: whoever has the log can check that a vote stood before."""
    if battle.revealed:
        return
    event = SidesRevealed(battle=battle.id, vote="" if battle.vote is None else battle.vote.receipt)
    try:
        await log.append(event, subject=battle.id, source=SOURCE)
    except Conflict:
        pass  # an earlier look, perhaps before a restart
    except StorageFailed as error:
        # The vote is safe and its voter is told; a later look writes this down.
        _logger.warning("that battle %s was revealed could not be written down: %s", battle.id, error.message)
        return
    battle.revealed = True


def _speeds(log: EventLog, generations: Iterable[str]) -> dict[str, Speed]:
    found = {}
    for name in generations:
        try:
            ended = log.generation(name)
        except NotFound:
            continue  # another log has it, or none: no speed is shown
        if ended.time_to_first_token_ms is None:
            continue
        later = ended.completion_tokens - 1
        rate = later / ended.decode_ms * 1000 if later > 0 and ended.decode_ms else None
        found[name] = Speed(ended.time_to_first_token_ms, rate, ended.completion_tokens)
    return found


def _registered(log: EventLog) -> list[Entrant]:
    return [
        Entrant.from_registration(event.data)
        for event in log.read(types=[IdentityRegistered], newest_first=True)
        if isinstance(event.data, IdentityRegistered)
    ]


def _unmask(
    battle: Battle,
    side: Side,
    generations: tuple[str, ...],
    known: Sequence[Entrant],
    speeds: Mapping[str, Speed],
) -> RevealedSide:
    contestant = battle.contestants[side]
    entrant = next(
        (e for e in known if (e.name, e.behaviour) == (contestant.identity, contestant.behaviour)),
        Entrant(contestant.identity, contestant.behaviour),
    )
    return RevealedSide(
        side=side,
        name=contestant.identity,
        identity=contestant.behaviour,
        generations=generations,
        description=entrant.description,
        organization=entrant.organization,
        license=entrant.license,
        manifest=entrant.manifest,
        speed=speeds.get(generations[-1]) if generations else None,
    )


def setting_of(manifest: Behaviour) -> Iterator[tuple[str, str]]:
    """Yield the manifest's fields, nested names joined by dots, with values in words."""
    document = manifest.to_json()
    if isinstance(document, Mapping):
        yield from _flatten("", document)


def _flatten(prefix: str, value: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    for name, inner in value.items():
        path = f"{prefix}{name}"
        if isinstance(inner, Mapping):
            yield from _flatten(f"{path}.", inner)
        else:
            yield path, _words(inner)


def _words(value: Json) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_words(item) for item in value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _side_json(side: RevealedSide) -> dict[str, Json]:
    return {
        "name": side.name,
        "identity": side.identity,
        "generations": list(side.generations),
        "description": side.description,
        "organization": side.organization,
        "license": side.license,
        "speed": None
        if side.speed is None
        else {
            "first_token_ms": side.speed.first_token_ms,
            "tokens_per_s": side.speed.tokens_per_s,
            "tokens": side.speed.tokens,
        },
    }
