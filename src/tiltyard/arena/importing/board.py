"""Imported votes as ratings read them, source by source.

A model of a file has no identity here, only a name that the file declares. Its key is `declared:<source>/<name>`: no
behaviour digest (`sha256:…`) can look like it, whatever a file calls its models, and equal names in two sources are two
models, unless whoever asks says that they are the same (`declared:/<name>`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tiltyard.errors import InvalidRequest, NotFound
from tiltyard.events.imported import ImportQueries, ImportRow
from tiltyard.identity.canonical import Json
from tiltyard.rating.admission import MICROSECONDS_PER_DAY, Window
from tiltyard.rating.outcomes import OUTCOMES
from tiltyard.rating.rated_models import RatedModel
from tiltyard.rating.slices import Period
from tiltyard.rating.votes import Trait, Votes

RULESET: Final = "imported-votes/1"
"""Every imported vote counts, but those of voters who saw the names."""
JUDGED_RULESET: Final = "imported-judgments/1"
"""Every verdict that could be read counts once; where both orders were judged and disagree, it is a tie."""
DECLARED: Final = "declared:"
ALL_TIME: Final = Window()


@dataclass(frozen=True, eq=False)
class ImportedBoard:
    """Votes of chosen sources, and where they came from."""

    votes: Votes
    models: tuple[RatedModel, ...]
    ruleset: str
    excluded: dict[str, int]
    first_sequence: int
    last_sequence: int
    imports: tuple[ImportRow, ...]

    @property
    def details(self) -> dict[str, Json]:
        """What a leaderboard says of its sources; part of its digest."""
        return {
            "sources": [
                {
                    "source": one.source,
                    "licence": one.licence,
                    "import": one.import_id,
                    "file_digest": one.file_digest,
                    "votes": one.votes,
                    "judgments": one.judgments,
                }
                for one in self.imports
            ]
        }


def declared_key(source: str, name: str) -> str:
    """Return the key of a model that only a file names.

    >>> declared_key("lmsys", "gpt-4")
    'declared:lmsys/gpt-4'
    """
    return f"{DECLARED}{source}/{name}"


def imported_board(
    log: ImportQueries,
    sources: Sequence[str],
    *,
    judge: str | None = None,
    same_names: bool = False,
    window: Window = ALL_TIME,
    imports: Collection[str] | None = None,
) -> ImportedBoard:
    """Read the votes of some sources, or the verdicts of one judge model in them; never both.

    `imports` takes these (ids), whether or not they still count: what a published board was made of. `same_names` takes equal names in several sources for one model. A window ends just after the newest vote, which in a
    file is long ago. Raises `NotFound` naming a source that is not there (and those that are), `InvalidRequest` for one
    without votes, and for a window over votes that have no times.
    """
    chosen = [one for one in log.imports() if (one.counts if imports is None else one.import_id in imports)]
    there = sorted({one.source for one in chosen})
    for source in sources:
        if source not in there:
            raise NotFound(
                f"no finished import is of the source {source[:80]!r}; there are {', '.join(there) or 'none'}. "
                "`tiltyard votes list` shows them all."
            )
    chosen = [one for one in chosen if one.source in sources]
    gathered = _Columns(same_names)
    for one in chosen:
        if judge is None:
            gathered.add_votes(log, one)
        else:
            gathered.add_judgments(log, one, judge)
    if not gathered.outcome:
        judged = sum(one.judgments or 0 for one in chosen)
        judges = sorted({row.judge for one in chosen for row in log.imported_judgments(one.import_id)})
        raise InvalidRequest(
            f"{', '.join(sources)} has {judged:,} verdicts of {', '.join(judges) or 'no judge'} and no "
            + (
                "vote of a person; verdicts are rated with --judge NAME."
                if judge is None
                else f"verdict of {judge!r} on a pair."
            ),
            param="source" if judge is None else "judge",
        )
    votes = gathered.votes()
    if window.days is not None:
        if votes.time_us is None:
            raise InvalidRequest("these votes have no times; leave out the window.", param="window")
        end = int(votes.time_us.max(initial=0)) + 1
        votes = Period(end - window.days * MICROSECONDS_PER_DAY, end).of(votes)
    return ImportedBoard(
        votes=votes,
        models=tuple(RatedModel(key=key, name=name) for key, name in gathered.names.items()),
        ruleset=RULESET if judge is None else f"{JUDGED_RULESET}:{judge}",
        excluded=dict(sorted(gathered.excluded.items())),
        first_sequence=min(one.sequence for one in chosen),
        last_sequence=max(one.last_sequence or one.sequence for one in chosen),
        imports=tuple(chosen),
    )


class _Columns:
    """Votes as they are gathered; a column that some vote lacks is left out at the end."""

    def __init__(self, same_names: bool) -> None:
        self._same_names = same_names
        self._place: dict[str, int] = {}
        self.names: dict[str, str] = {}
        """By key."""
        self.a: list[int] = []
        self.b: list[int] = []
        self.outcome: list[int] = []
        self.times: list[int | None] = []
        self.voters: list[str | None] = []
        self.chances: list[float | None] = []
        self.traits: list[dict[str, bool | float | str]] = []
        self.excluded: Counter[str] = Counter()
        self._repeats: list[int] = []

    def add_votes(self, log: ImportQueries, one: ImportRow) -> None:
        code = {outcome: number for number, outcome in enumerate(OUTCOMES)}
        for vote in log.imported_votes(one.import_id):
            if vote.anonymous is False:
                self.excluded["names_were_shown"] += 1
                continue
            traits = vote.traits
            if vote.turns is not None:
                traits["turns"] = float(vote.turns)
            voter = None if vote.voter is None else f"{one.source}/{vote.voter}"
            self._add((one.source, vote.a, vote.b), code[vote.choice], time_us=vote.time_us, traits=traits)
            self.voters[-1], self.chances[-1] = voter, vote.pair_probability
        for pair in log.imported_pairs(one.import_id):
            for number, times in enumerate((pair.wins_a, pair.wins_b, pair.ties, pair.both_bad)):
                if times:
                    self._add((one.source, pair.a, pair.b), number, times=times)

    def add_judgments(self, log: ImportQueries, one: ImportRow, judge: str) -> None:
        code = {outcome: number for number, outcome in enumerate(OUTCOMES)}
        for verdict in log.imported_judgments(one.import_id):
            if verdict.judge != judge or verdict.b is None:
                continue
            if (outcome := verdict.outcome) is None:
                self.excluded["unread_verdict"] += 1
                continue
            traits: dict[str, bool | float | str] = {}
            if verdict.turn is not None:
                traits["turn"] = float(verdict.turn)
            met = one.source, verdict.a, verdict.b
            self._add(met, code[outcome], time_us=verdict.time_us, traits=traits)

    def votes(self) -> Votes:
        """Return all of it, pairs that came as counts written out as so many votes."""
        repeats = np.array(self._repeats, dtype=np.int64)
        order = sorted(self._place)
        place = np.empty(len(order), dtype=np.intp)
        for number, key in enumerate(order):
            place[self._place[key]] = number
        people: dict[str, int] = {}
        voters = [None if one is None else people.setdefault(one, len(people)) for one in self.voters]
        traits: dict[str, Trait] = {}
        for name in sorted({name for one in self.traits for name in one}):
            values = [one.get(name) for one in self.traits]
            if None not in values:
                traits[name] = _array(values)[np.repeat(np.arange(len(values)), repeats)]
        return Votes(
            models=tuple(order),
            a=np.repeat(place[self.a], repeats),
            b=np.repeat(place[self.b], repeats),
            outcome=np.repeat(np.array(self.outcome, dtype=np.int64), repeats),
            time_us=None if None in self.times else np.repeat(np.array(self.times, dtype=np.int64), repeats),
            voter=None if None in voters else np.repeat(np.array(voters, dtype=np.intp), repeats),
            pair_probability=(
                None if None in self.chances else np.repeat(np.array(self.chances, dtype=np.float64), repeats)
            ),
            traits=traits,
        )

    def _add(
        self,
        met: tuple[str, str, str],
        outcome: int,
        *,
        time_us: int | None = None,
        traits: dict[str, bool | float | str] | None = None,
        times: int = 1,
    ) -> None:
        source, a, b = met
        self.a.append(self._model(source, a))
        self.b.append(self._model(source, b))
        self.outcome.append(outcome)
        self.times.append(time_us)
        self.voters.append(None)
        self.chances.append(None)
        self.traits.append(traits or {})
        self._repeats.append(times)

    def _model(self, source: str, name: str) -> int:
        key = declared_key("" if self._same_names else source, name)
        self.names.setdefault(key, name)
        return self._place.setdefault(key, len(self._place))


def _array(values: list[bool | float | str | None]) -> Trait:
    numbers = [float(value) for value in values if isinstance(value, bool | int | float)]
    return np.array(numbers) if len(numbers) == len(values) else np.array([str(value) for value in values])
