"""The arena's battles as items for a judge: what was asked and answered, and what the voter said.

The words stay under their voter's key: an item's `subject` is the voter, so what a judge says of them is erased with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import orjson

from tiltyard.errors import ContentMissing, NotFound
from tiltyard.events.log import EventLog
from tiltyard.events.reading import Words
from tiltyard.events.schema import BattleOpened, BattleTurnFinished, BattleTurnStarted, Choice, Side, VoteCast
from tiltyard.identity.canonical import digest_of_json
from tiltyard.judge.items import Item, ItemSet, JudgedAnswer

WHOLE: Final = frozenset({"stop", "length"})
"""How an answer ends that can be judged."""


@dataclass(frozen=True, slots=True)
class BattleItems:
    """Battles that can be judged, and how many cannot."""

    items: ItemSet
    erased: int
    """Battles whose words are gone, or were not to be evaluated."""
    unfinished: int
    """Battles without a whole answer on both sides."""


@dataclass(slots=True)
class _Battle:
    opened: BattleOpened
    started: dict[tuple[int, int], BattleTurnStarted]
    finished: dict[tuple[int, int], BattleTurnFinished]
    choice: Choice | None = None


def battle_items(log: EventLog, *, voted_only: bool = False, slices: bool = True) -> BattleItems:
    """Read every battle of a log, oldest first; blocks. With `voted_only` those that ended in a vote."""
    battles: dict[str, _Battle] = {}
    for event in log.read(types=(BattleOpened, BattleTurnStarted, BattleTurnFinished, VoteCast)):
        match event.data:
            case BattleOpened() as opened:
                battles[opened.battle] = _Battle(opened, {}, {})
            case BattleTurnStarted() as started if started.battle in battles:
                battles[started.battle].started[started.turn, started.attempt] = started
            case BattleTurnFinished() as finished if finished.battle in battles:
                battles[finished.battle].finished[finished.turn, finished.attempt] = finished
            case VoteCast() as vote if vote.battle in battles:
                battles[vote.battle].choice = vote.choice
            case _:
                pass  # of a battle that nobody opened here, or a later version
    items: list[Item] = []
    erased = unfinished = 0
    words = log.words("evaluate", reader="judge/battles")
    for battle in battles.values():
        if voted_only and battle.choice is None:
            continue
        try:
            item = _item(log, words, battle, slices=slices)
        except (ContentMissing, NotFound):
            erased += 1
            continue
        if item is None:
            unfinished += 1
        else:
            items.append(item)
    words.close()
    digest = digest_of_json([item.id for item in items])
    return BattleItems(ItemSet("battles", digest, tuple(items)), erased, unfinished)


def _item(log: EventLog, words: Words, battle: _Battle, *, slices: bool) -> Item | None:
    last = dict(sorted(battle.started))  # the latest attempt of each turn
    turns: list[str] = []
    texts: dict[Side, list[str]] = {"a": [], "b": []}
    generations: dict[Side, list[str]] = {"a": [], "b": []}
    for turn, attempt in sorted(last.items()):
        finished = battle.finished.get((turn, attempt))
        if finished is None or not {finished.finish_a, finished.finish_b} <= WHOLE:
            return None
        turns.append(words.read(battle.started[turn, attempt].message).decode())
        sides: tuple[tuple[Side, str | None], ...] = (
            ("a", finished.generation_a),
            ("b", finished.generation_b),
        )
        for side, generation in sides:
            if generation is None:
                return None
            texts[side].append(_text(log, words, generation))
            generations[side].append(generation)
    if not turns:
        return None
    who = {one.side: one for one in battle.opened.contestants}
    return Item(
        id=battle.opened.battle,
        turns=tuple(turns),
        sides={
            side: JudgedAnswer(
                tuple(texts[side]), who[side].identity, who[side].behaviour, tuple(generations[side])
            )
            for side in texts
        },
        slices={"battle": battle.opened.slice} if slices and battle.opened.slice else {},
        people=() if battle.choice is None else (battle.choice,),
        subject=battle.opened.voter,
    )


def _text(log: EventLog, words: Words, generation: str) -> str:
    response = log.generation(generation).response
    if response is None:
        raise ContentMissing(f"no words were kept of {generation}")
    (choice,) = orjson.loads(words.read(response))["choices"]
    return str(choice["text"])
