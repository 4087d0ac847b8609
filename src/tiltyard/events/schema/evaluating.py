"""Fixed sets, asked of identities."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, JsonValue

from tiltyard.events.schema.record import ContentRef, EventData, Seed
from tiltyard.identity.canonical import Digest
from tiltyard.identity.manifest import Frozen


class EvalVerdict(Frozen):
    """What one check of an item said; its words are in the vault, with the answer."""

    kind: str
    """Kind of the check, such as `numeric`."""
    score: float | None
    """0 (wrong) to 1 (right); `None`: the check could not say."""
    code: str | None = None
    """Why it could not, or what was wrong: `no_number`, `no_judge`, `code_not_allowed`, `awaiting_experts`."""


class EvalRunStarted(EventData):
    """Written by the runner of fixed sets before the first item of a run is asked."""

    TYPE: ClassVar[str] = "tiltyard.eval.run.started.v1"
    run: str
    """Run id, `evr_…`, derived from set, identity, settings and seed; also the event's subject."""
    set_name: str
    """What people call the set."""
    set_digest: Digest
    """Digest of the set's items in canonical JSON."""
    items: int
    """Items of the set."""
    alias: str
    """The model name that was asked for."""
    behaviour: Digest
    """Behaviour digest of the identity; of server and model name where the server tells none."""
    identified: bool
    """Whether the server told the behaviour digest."""
    settings: dict[str, JsonValue]
    """Fields of every request, such as `temperature`."""
    marking: dict[str, JsonValue] = Field(default_factory=dict)
    """What the set leaves open: whether `code` runs, digest of the `judge`; empty where no check depends on it."""
    seed: Seed
    """From which the seed of each sample is derived."""
    repeat: int
    """0, and one more for each time that the same run was asked for afresh."""
    imported: str = ""
    """Tool, version and SHA-256 of the log that the run was read from; empty: it is a run of ours."""

    def unique_key(self) -> str | None:
        """A run starts once, however often it is resumed."""
        return f"eval-run:{self.run}"


class EvalItemFinished(EventData):
    """Written by the runner of fixed sets when an item was answered and marked, or can never be."""

    TYPE: ClassVar[str] = "tiltyard.eval.item.finished.v1"
    run: str
    """Run id; also the event's subject."""
    item: str
    """Id of the item in its set."""
    item_digest: Digest
    """Digest of the item in canonical JSON."""
    alias: str
    """The model name that was asked for."""
    behaviour: Digest
    """As in `EvalRunStarted`."""
    sample: int
    """0 to one less than the samples of an item."""
    generations: tuple[str, ...]
    """Generations of its answers, a turn each."""
    transcript: ContentRef
    """Answers, calls, scores of choices and the words of each check, in canonical JSON."""
    output_digest: str
    """Keyed digest of what the model said, shortened; equal for equal outputs in one log."""
    score: float | None
    """The least score of its checks; `None`: unscored."""
    verdicts: tuple[EvalVerdict, ...]
    """In the order of the item's checks."""
    finish_reason: str | None
    """How its last answer ended."""
    error: str | None = None
    """Code of the refusal for which the item can never be answered, such as `context_length_exceeded`."""
    prompt_tokens: int
    """Tokens of all its prompts."""
    cached_tokens: int
    """Of them, those whose KV came from the prefix cache."""
    completion_tokens: int
    """Tokens of all its answers."""
    total_ms: float
    """From the first question to the last word, waiting included."""
    tries: int
    """Requests beyond the first one of each turn."""

    def unique_key(self) -> str | None:
        """One ending for each item, identity and sample of a run."""
        return f"eval-item:{self.run}:{self.sample}:{self.item}"


class EvalItemReviewed(EventData):
    """Written by the runner of fixed sets when experts have decided on an answer that waited for them; its score and verdicts hold in place of `EvalItemFinished`'s."""

    TYPE: ClassVar[str] = "tiltyard.eval.item.reviewed.v1"
    run: str
    """Run id; also the event's subject."""
    item: str
    """Id of the item in its set."""
    item_digest: Digest
    """As in `EvalItemFinished`."""
    behaviour: Digest
    """As in `EvalRunStarted`."""
    sample: int
    """As in `EvalItemFinished`."""
    reviewed: tuple[str, ...]
    """Under which keys the reviews are in the log, `itm_…`, one for each expert check."""
    score: float | None
    """The least score of its checks, the experts' included; `None`: another check could not say."""
    verdicts: tuple[EvalVerdict, ...]
    """In the order of the item's checks."""

    def unique_key(self) -> str | None:
        """Experts decide on a sample once."""
        return f"eval-reviewed:{self.run}:{self.sample}:{self.item}"


class EvalItemFailed(EventData):
    """Written by the runner of fixed sets when an item got no answer that another try may bring; it counts nowhere."""

    TYPE: ClassVar[str] = "tiltyard.eval.item.failed.v1"
    run: str
    """Run id; also the event's subject."""
    item: str
    """Id of the item in its set."""
    sample: int
    """As in `EvalItemFinished`."""
    error: str
    """Code of the failure."""


class EvalRunFinished(EventData):
    """Written by the runner of fixed sets when nothing was left to ask."""

    TYPE: ClassVar[str] = "tiltyard.eval.run.finished.v1"
    run: str
    """Run id; also the event's subject."""
    samples: int
    """Samples that are finished, of this and earlier sittings."""
    scored: int
    """Those of them that have a score."""
    failed: int
    """Samples without an answer; the next sitting tries them again."""
    mean: float | None
    """Mean score over items; `None` without any."""
    outputs_digest: str
    """Keyed digest of all outputs, by item and sample."""
