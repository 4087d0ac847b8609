"""What judges, scorers and experts say."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, JsonValue

from tiltyard.events.schema.record import Choice, ContentRef, EventData, Seed, Side
from tiltyard.identity.canonical import Digest
from tiltyard.identity.manifest import Frozen


class RubricRegistered(EventData):
    """Written by a judge run before its first judgment under a rubric."""

    TYPE: ClassVar[str] = "tiltyard.rubric.registered.v1"
    rubric: Digest
    """Digest of the rubric in canonical JSON."""
    name: str
    """What people call it."""
    rules: dict[str, JsonValue]
    """The rubric itself, so that a judgment can be understood, and asked for again."""

    def unique_key(self) -> str | None:
        """A rubric is registered once."""
        return f"rubric:{self.rubric}"


class JudgeRegistered(EventData):
    """Written by a judge run before the first judgment of a judge."""

    TYPE: ClassVar[str] = "tiltyard.judge.registered.v1"
    judge: Digest
    """Digest of the specification in canonical JSON."""
    name: str
    """The model name that is asked."""
    specification: dict[str, JsonValue]
    """Server, model, behaviour digest where the server names one, pin, sampling, how the verdict is had."""

    def unique_key(self) -> str | None:
        """A judge is registered once."""
        return f"judge:{self.judge}"


class JudgedSide(Frozen):
    """One of the answers that a judgment is about."""

    side: Side
    """`a` or `b`: the item's sides, whatever order the judge saw; a single answer is `a`."""
    identity: str
    """Identity or model name."""
    behaviour: Digest | None = None
    """Behaviour digest, where it is known."""
    generations: tuple[str, ...] = ()
    """Generations that made the answer, a turn each, where they are known."""
    words: int = 0
    """Words of the answer, all turns; a Chinese character or a kana is one."""
    markup: int = 0
    """Headers, bold passages and list items of the answer."""
    tokens_neutralised: int = 0
    """Verdict tokens and fences in the answer that were made harmless before the judge saw it."""


class JudgmentMade(EventData):
    """Written by a judge run for each answer of a judge, whether a verdict could be read from it or not."""

    TYPE: ClassVar[str] = "tiltyard.judgment.made.v1"
    judgment: str
    """Judgment id, `jdg_…`, made of what it is once for; also the event's subject."""
    judge: Digest
    """Who judged."""
    judge_name: str
    """The model name that was asked."""
    answered_as: str
    """What the server called the model that answered."""
    judge_generation: str | None = None
    """Generation of the judge's answer, where the server is a tiltyard."""
    rubric: Digest
    """Under which rubric."""
    mode: Literal["pairwise", "single"]
    """Two answers compared, or one rated."""
    item: str
    """Keyed digest of what was judged, `itm_…`: question, answers, who gave them, reference."""
    item_id: str
    """What the set calls it."""
    question: str
    """Keyed digest of the question, `qst_…`: tells which items are about the same."""
    collection: Digest
    """Digest of the set's file."""
    sides: tuple[JudgedSide, ...]
    """The answers."""
    slices: dict[str, str] = Field(default_factory=dict)
    """Slices of the item."""
    order: Literal["ab", "ba", "single"]
    """The order in which the judge saw the answers."""
    asked: Literal["first", "second", "only"]
    """Which of the two orders was asked first; drawn from `seed` and the item."""
    seed: Seed
    """Seed of the run's draws."""
    sample: int = 0
    """0, or the number of a repetition."""
    verdict: Choice | None
    """The winner, by the item's sides; `None`: unscored, or a single answer."""
    score: float | None
    """Rating of a single answer; `None`: unscored, or a pair."""
    scores: tuple[float, float] | None = None
    """Ratings of sides a and b, under a rubric that asks for both."""
    unscored: str | None = None
    """Why no verdict could be read: `no_verdict`, `cut`, `out_of_range`, `form_not_held`, `refused`; `None`: it could."""
    purpose: Literal["verdict", "attack", "check"] = "verdict"
    """`attack`: the item was spoiled on purpose; `check`: it is an answer of a fixed set. Neither counts in the judge's own rates."""
    held: Literal["grammar", "text"]
    """Whether the engine held the verdict to its form, or it was read from the text."""
    prompt: ContentRef
    """The conversation as the judge saw it, in canonical JSON."""
    raw: ContentRef
    """What the judge said, to the letter."""
    prompt_tokens: int
    """Tokens that the judge read."""
    completion_tokens: int
    """Tokens that the judge wrote."""
    cost_usd: float | None = None
    """By the prices that the run was given; `None`: none were."""
    total_ms: float
    """From the question to the end of the answer."""

    def unique_key(self) -> str | None:
        """One judgment for each judge, rubric, item, order and repetition."""
        return f"judgment:{self.judgment}"


class JudgesBridged(EventData):
    """Written by `tiltyard judge bridge`: from here on the new one's line is read in place of the old one's."""

    TYPE: ClassVar[str] = "tiltyard.judges.bridged.v1"
    old: Digest
    """The judge that was followed."""
    new: Digest
    """The judge that follows."""
    old_label: str
    """Label of the old one's line: judge and rubric."""
    new_label: str
    """Label of the new one's line."""
    measure: Literal["verdict", "rating"]
    """What both gave."""
    items: int
    """Items that both scored."""
    shift: float
    """Mean of new minus old: rating, or points of side a from 0 to 1."""
    shift_lower: float
    """Lower end of its 95 % interval."""
    shift_upper: float
    """Upper end of its 95 % interval."""
    agreement: float
    """Share of items on which both say the same."""
    map: dict[str, JsonValue]
    """`offset` and `slope` with their variances and covariance, or `chances` of the new verdict by the old one."""


class AnswerScored(EventData):
    """Written by a reward scorer for each answer that it scored."""

    TYPE: ClassVar[str] = "tiltyard.answer.scored.v1"
    scorer: Digest
    """Digest of the scorer's specification."""
    scorer_name: str
    """What people call it."""
    kind: Literal["likelihood", "http", "preference"]
    """A model's own log-likelihoods, a reward model behind HTTP, or a model trained on the arena's votes."""
    item: str
    """Keyed digest of question and answers, `itm_…`."""
    item_id: str
    """What the set calls it."""
    question: str
    """Keyed digest of the question, `qst_…`."""
    side: Side
    """Which answer of the item."""
    identity: str
    """Identity or model name that answered."""
    behaviour: Digest | None = None
    """Behaviour digest of who answered, where it is known."""
    generations: tuple[str, ...] = ()
    """Generations that made the answer, where they are known."""
    score: float
    """Higher is better; comparable only with other scores of this scorer."""
    slices: dict[str, str] = Field(default_factory=dict)
    """Slices of the item."""

    def unique_key(self) -> str | None:
        """One score for each scorer, item and side."""
        return f"score:{self.scorer}:{self.item}:{self.side}"


class PreferenceModelTrained(EventData):
    """Written by `tiltyard judge train`; the event is the model."""

    TYPE: ClassVar[str] = "tiltyard.preference.model.trained.v1"
    model: Digest
    """Digest of features, weights and lineage; also the event's subject."""
    method: str
    """Name and version of features and fit."""
    features: tuple[str, ...]
    """What it looks at in an answer."""
    weights: tuple[float, ...]
    """Log-odds for one standard deviation of each feature's difference."""
    scales: tuple[float, ...]
    """Standard deviation of each feature's difference among the votes."""
    temperature: float
    """By which log-odds are divided so that chances hold on votes that it was not fitted to."""
    ridge: float
    """1 / variance of the prior on the weights."""
    votes: int
    """Votes that it was fitted to."""
    battles: Digest
    """Digest of the battles' ids, sorted: the lineage."""
    first_sequence: int
    """First event of the votes' range."""
    last_sequence: int
    """Last event of the votes' range."""
    accuracy: float
    """Share of decided votes that it foretold, out of fold."""
    brier: float
    """Mean squared error of its chances, out of fold."""
    brier_of_ignorance: float
    """The same of a chance of one half for every vote."""
    gap: float
    """Mean distance of chances from shares, out of fold."""


class ReviewerNamed(EventData):
    """Written by `tiltyard judge experts name`: who may review, and for what; the latest one about a reviewer holds."""

    TYPE: ClassVar[str] = "tiltyard.reviewer.named.v1"
    reviewer: str
    """Pseudonymous id, `rev_…`; also the event's subject."""
    name: ContentRef
    """Name and qualification, in the vault under the reviewer's own key."""
    roles: tuple[str, ...]
    """Slices that the reviewer may review (`medicine`), and `adjudicator`; empty: none any more."""


class ReviewAssigned(EventData):
    """Written by `tiltyard judge experts assign`: one expert is to review one item, blind."""

    TYPE: ClassVar[str] = "tiltyard.review.assigned.v1"
    item: str
    """Keyed digest of what is reviewed, `itm_…`; also the event's subject."""
    item_id: str
    """What the set calls it."""
    reviewer: str
    """Who is to review it."""
    role: str
    """In which role."""
    order: Literal["ab", "ba", "single"]
    """The order in which the answers are shown; drawn."""
    form: Digest
    """Digest of the rubric that is the review's form."""
    seed: Seed
    """Seed of the draws of reviewers and order."""

    def unique_key(self) -> str | None:
        """An expert reviews an item under a form once."""
        return f"review-assigned:{self.form}:{self.item}:{self.reviewer}"


class ReviewGiven(EventData):
    """Written by `tiltyard judge experts give`: what one expert said, before hearing of any other."""

    TYPE: ClassVar[str] = "tiltyard.review.given.v1"
    item: str
    """Keyed digest of what was reviewed; also the event's subject."""
    item_id: str
    """What the set calls it."""
    reviewer: str
    """Who reviewed it."""
    role: str
    """In which role."""
    form: Digest
    """Digest of the rubric that is the review's form."""
    sides: tuple[JudgedSide, ...]
    """The answers."""
    slices: dict[str, str] = Field(default_factory=dict)
    """Slices of the item."""
    question: str
    """Keyed digest of the question, `qst_…`."""
    verdict: Choice | None
    """The winner, by the item's sides; `None`: a single answer."""
    score: float | None
    """Rating of a single answer; `None`: a pair."""
    adjudicates: bool
    """Whether it decides between two reviews that differ."""
    reasons: ContentRef | None
    """Why, in the vault."""

    def unique_key(self) -> str | None:
        """One review for each form, item and expert, and one adjudication for each form and item."""
        if self.adjudicates:
            return f"adjudication:{self.form}:{self.item}"
        return f"review:{self.form}:{self.item}:{self.reviewer}"
