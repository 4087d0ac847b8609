"""Published leaderboards: the event that holds every number, and the proof that raw events give them again.

::

    published = find(log, "sha256:…")            # or the 64 hexadecimal digits alone
    replay(log, published.digest).difference     # None, or the first number that differs, in words
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from pydantic import JsonValue, ValidationError

from tiltyard.arena.boards import Boards
from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.errors import InvalidRequest, NotFound
from tiltyard.events.log import EventLog
from tiltyard.events.schema import LeaderboardPublished, PublishedName
from tiltyard.identity.canonical import Digest, Json, canonical_json, digest_of_json
from tiltyard.rating.board_document import BoardDocument
from tiltyard.rating.bradley_terry import Ratings
from tiltyard.rating.counts import PairCounts
from tiltyard.rating.leaderboard import FORMAT, Evidence, Leaderboard, LeaderboardRow, in_order
from tiltyard.rating.rated_models import RatedModel, unregistered
from tiltyard.rating.ruleset import Ruleset

_NAME = re.compile(r"(?:sha256:)?([0-9a-f]{64})")
_SHOWN: Final = 120  # characters of a value in the words of a difference


@dataclass(frozen=True)
class Published:
    """A published leaderboard as the log has it."""

    sequence: int
    """Log position of the event."""
    time_us: int
    """When it was published: microseconds since 1970, UTC."""
    event: LeaderboardPublished

    @property
    def digest(self) -> Digest:
        """Its name."""
        return self.event.digest


@dataclass(frozen=True)
class ReplayedBoard:
    """A leaderboard computed again."""

    digest: Digest
    votes: int
    numbers: int
    """Numbers compared."""
    difference: str | None
    """`None` when every number is the same to the last bit, else where the first difference is."""


def event_of(board: Leaderboard) -> LeaderboardPublished:
    """Make the event that publishes a board."""
    evidence = board.evidence
    return LeaderboardPublished(
        digest=board.digest,
        method=board.ratings.method,
        ruleset=evidence.ruleset,
        votes=board.votes,
        first_sequence=evidence.first_sequence,
        last_sequence=evidence.last_sequence,
        board=as_stored(board.document),
        names={
            row.model.key: PublishedName(
                name=row.model.name,
                organization=row.model.organization,
                license=row.model.license,
                description=row.model.description,
                registered=row.model.behaviour is not None,
                superseded=row.model.superseded,
            )
            for row in board.rows
        },
    )


def publish(log: EventLog, board: Leaderboard, *, source: str) -> Published:
    """Append the event of a board; blocks until it is durable.

    Raises `Conflict` when the same board was published before, `InvalidRequest` for a board that nobody could compute
    again: one of a votes file.
    """
    if not board.evidence.question:
        raise InvalidRequest(
            "only a leaderboard of this log's votes can be published, since only its votes can be read again; "
            "leave out --votes.",
            param="votes",
        )
    event = event_of(board)
    stored = log.append_blocking(event, subject=board.digest, source=source)
    return Published(stored.sequence, stored.time_us, event)


def find(log: EventLog, name: str) -> Published:
    """Return the board with a name; raises `InvalidRequest` for what is no name, `NotFound` for one that nobody gave."""
    written = _NAME.fullmatch(name.strip().lower())
    if written is None:
        raise InvalidRequest(
            f"{name[:80]!r} names no leaderboard; a name is the 64 hexadecimal digits of a SHA-256, with or without "
            "'sha256:' before them.",
            param="digest",
        )
    digest = f"sha256:{written[1]}"
    stored = log.find(LeaderboardPublished, subject=digest)
    if stored is None or not isinstance(stored.data, LeaderboardPublished):
        raise NotFound(
            f"no leaderboard {digest} was published in this log; `tiltyard leaderboard publish` publishes one, and "
            "`tiltyard events tail` shows the names of the last."
        )
    return Published(stored.sequence, stored.time_us, stored.data)


def newest(log: EventLog) -> Published | None:
    """Return the board that was published last, or `None`."""
    for stored in log.read(types=(LeaderboardPublished,), newest_first=True, limit=1):
        if isinstance(stored.data, LeaderboardPublished):
            return Published(stored.sequence, stored.time_us, stored.data)
    return None


def board_of(published: Published) -> Leaderboard:
    """Return the board as it was published, for a page to show: no covariance, and nothing is computed.

    Raises `InvalidRequest` when it was published by a version that kept no numbers, or another arrangement of them.
    """
    event, document = published.event, _document(published)
    models = document.models
    counts = PairCounts.from_pairs(
        models, [pair[:2] for pair in document.pairs], [pair[2:] for pair in document.pairs]
    )
    numbers = {
        name: np.array([getattr(row, name) for row in document.rows], dtype=np.float64)
        for name in ("rating", "lower", "upper")
    }
    component = np.full(len(models), -1, dtype=np.intp)
    for number, part in enumerate(document.components):
        component[list(part)] = number
    ratings = Ratings(
        models=tuple(models),
        ratings=numbers["rating"],
        lower=numbers["lower"],
        upper=numbers["upper"],
        covariance=np.full((len(models), len(models)), np.nan),
        votes=np.array([row.votes for row in document.rows], dtype=np.int64),
        components=tuple(tuple(models[place] for place in part) for part in document.components),
        component=component,
        converged=document.converged,
        iterations=0,
        log_likelihood=float("nan"),
        unbounded=document.unbounded,
        model_based=frozenset(document.model_based),
        virtual_pairs=0,
        both_bad=document.both_bad,
        confidence=document.confidence,
        anchor=document.anchor,
        method=document.method,
    )
    rows = [
        LeaderboardRow(model=_named(key, event.names.get(key)), **vars(row))
        for key, row in zip(models, document.rows, strict=True)
    ]
    evidence = Evidence(
        ruleset=document.ruleset,
        window=document.window,
        first_sequence=document.first_sequence,
        last_sequence=document.last_sequence,
        excluded=document.excluded,
        data_digest=document.data_digest,
        question=document.question,
    )
    return Leaderboard(in_order(rows), counts, ratings, evidence, document.minimum_votes, document.details)


def _document(published: Published) -> BoardDocument:
    board = published.event.board
    if not board:
        raise InvalidRequest(
            f"{published.digest} was published by a version that kept no numbers in the event, so there is nothing "
            "to show or compare.",
            param="digest",
        )
    if board.get("format") != FORMAT:
        raise InvalidRequest(
            f"{published.digest} is written as {board.get('format')!r}; this version knows {FORMAT!r}. Install a "
            "tiltyard of that time.",
            param="digest",
        )
    try:
        return BoardDocument.model_validate(board)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(
            f"{published.digest} cannot be read: {place}: {first['msg']}", param="digest"
        ) from error


def _named(key: str, name: PublishedName | None) -> RatedModel:
    if name is None:
        return unregistered(key)
    return RatedModel(
        key=key,
        name=name.name,
        organization=name.organization,
        license=name.license,
        description=name.description,
        behaviour=key if name.registered else None,
        superseded=name.superseded,
    )


def replay(log: EventLog, name: str) -> ReplayedBoard:
    """Compute a published board again, from the events up to the log position it names, and compare every number.

    Later votes, later rules and later names change nothing: the event holds the rules and the range. Raises
    `InvalidRequest` when this version cannot compute it: another format or method, or a board without its numbers.
    """
    published = find(log, name)
    recorded = published.event.board
    question = _document(published).question
    again = as_stored(Boards(RecordedVotes(log, Ruleset())).again(question).leaderboard.document)
    difference = first_difference(recorded, again)
    if difference is not None:
        difference = _explained(difference, published.event)
    if difference is None and digest_of_json(recorded) != published.digest:
        difference = (
            "its numbers are right, but they are not what its name is the digest of: the event was altered"
        )
    elif difference is not None and digest_of_json(recorded) != published.digest:
        difference += "; the event was altered, for its numbers no longer give its name"
    return ReplayedBoard(
        published.digest, published.event.votes, sum(1 for _ in _numbers(recorded)), difference
    )


def as_stored(document: dict[str, Json]) -> dict[str, JsonValue]:
    """Return a document as it reads when it comes out of an event: 1000.0 and 1000 are one number in JSON."""
    stored: dict[str, JsonValue] = json.loads(canonical_json(document))
    return stored


def first_difference(recorded: JsonValue, again: JsonValue, where: str = "") -> str | None:
    """Say where two documents differ first, in words; `None` when they do not. Numbers are equal bit for bit or not.

    >>> first_difference({"rows": [{"rating": 1000.5}]}, {"rows": [{"rating": 1000.25}]})
    'rows[0].rating: published 1000.5, computed 1000.25'
    """
    if isinstance(recorded, dict) and isinstance(again, dict):
        for name in sorted({*recorded, *again}, key=_settings_first):
            place = f"{where}.{name}" if where else name
            if name not in recorded or name not in again:
                side = "published" if name in recorded else "computed"
                return f"{place}: only the {side} board has it"
            if (found := first_difference(recorded[name], again[name], place)) is not None:
                return found
        return None
    if isinstance(recorded, list) and isinstance(again, list):
        for number, (one, other) in enumerate(zip(recorded, again, strict=False)):
            if (found := first_difference(one, other, f"{where}[{number}]")) is not None:
                return found
        if len(recorded) != len(again):
            return f"{where}: published {len(recorded)} entries, computed {len(again)}"
        return None
    if type(recorded) is type(again) and recorded == again:
        return None
    return f"{where}: published {_short(recorded)}, computed {_short(again)}"


def _explained(difference: str, event: LeaderboardPublished) -> str:
    """Add the model's name to the number of a row, and to the votes' digest what it means."""
    models = event.board.get("models")
    row = re.match(r"rows\[(\d+)\]", difference)
    if row is not None and isinstance(models, list) and int(row[1]) < len(models):
        key = str(models[int(row[1])])
        name = event.names[key].name if key in event.names else key
        return difference.replace(row[0], f"rows[{row[1]}] ({name})", 1)
    if difference.startswith("data_digest"):
        return f"{difference}: the votes are not those that were counted"
    return difference


def _settings_first(name: str) -> tuple[int, str]:
    """Put what explains a difference before what follows from it."""
    order = ("format", "method", "ruleset", "question", "votes", "data_digest", "models", "rows", "pairs")
    return (order.index(name) if name in order else len(order), name)


def _short(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _numbers(value: JsonValue) -> Iterator[float]:
    if isinstance(value, dict):
        for part in value.values():
            yield from _numbers(part)
    elif isinstance(value, list):
        for part in value:
            yield from _numbers(part)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value
