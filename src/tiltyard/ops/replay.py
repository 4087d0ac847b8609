"""Makes a recorded answer again from the log and the vault, and compares it token by token.

::

    for outcome in Replayer(log, store, models).replay("bat_…"):
        outcome.identical        # the same token ids and the same bytes of text
        outcome.difference       # else the first place where they part

Nothing is asked of a running server: the model is loaded here, from the identity that the event names. What the
declaration says today does not matter; the manifest of that day does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol, cast

import orjson

from tiltyard.errors import InvalidRequest, ModelRejected, NotFound
from tiltyard.events.log import EventLog
from tiltyard.events.reading import Words
from tiltyard.events.schema import BattleTurnFinished, GenerationFinished
from tiltyard.identity.canonical import Digest, Json, digest_of
from tiltyard.identity.declaration import IdentityDeclaration, ToolFormatName
from tiltyard.identity.manifest import Behaviour
from tiltyard.identity.rope import RopeScaling
from tiltyard.identity.store import IdentityStore
from tiltyard.kernels import NUMERICS_VERSION
from tiltyard.models.adapters import Adapter
from tiltyard.models.grammar import ENGINE
from tiltyard.models.resolve import TEMPLATE_KEY
from tiltyard.models.stored import open_model
from tiltyard.wire.decoding import Decoding
from tiltyard.wire.structured import Structure
from tiltyard.wire.tools import ToolUse
from tiltyard.wire.worker import FinishedAnswer
from tiltyard.worker.host import HostSettings
from tiltyard.worker.local import LocalModel

NAME = "replayed"
ENDED = ("stop", "length", "tool_calls")
"""Ends that the model made; at any other the answer was cut off."""


class FindModel(Protocol):
    """Finds the file whose bytes have a digest; raises `NotFound` saying how to get it."""

    def __call__(self, weights: Digest) -> Path:
        """Return its path."""


@dataclass(frozen=True)
class Recorded:
    """One of the `n` answers as it was given."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str


@dataclass(frozen=True)
class Outcome:
    """One generation, made again."""

    generation: str
    identity: str
    behaviour: Digest
    tokens: int
    """Tokens compared, over all of the generation's answers."""
    difference: str | None
    """`None` when identical, else the first place where the answers part."""
    words: str = "as they came"
    """Which words were served and kept, as the policy of that day said."""

    @property
    def identical(self) -> bool:
        """Whether every token and every byte came again."""
        return self.difference is None


def kept_words(event: GenerationFinished) -> str:
    """Which words the vault has of a generation, in words: what a replay makes again is what was served."""
    if event.prompt is None:
        return "the tenant's terms keep no words"
    found = ", ".join(f"{count} {kind.lower()}" for kind, count in sorted(event.found.items()))
    if event.policy == "redact" and found:
        return f"as served, after {found} was replaced"
    return f"as they came, with {found}" if found else "as they came"


class Replayer:
    """Replays generations and battles; a model that several of them need is loaded once."""

    def __init__(
        self,
        log: EventLog,
        store: IdentityStore,
        find_model: FindModel,
        *,
        settings: HostSettings,
        report: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._log = log
        self._store = store
        self._find_model = find_model
        self._settings = settings
        self._report = report
        self._loaded: tuple[Digest, LocalModel] | None = None

    def replay(self, name: str) -> Iterator[Outcome]:
        """Replay a generation (`gen_…`) or every generation of a battle (`bat_…`), those of one identity together.

        Raises `NotFound` for a name that the log does not have, `ContentMissing` when the words were erased,
        `ModelRejected` when this build cannot make that identity's tokens.
        """
        generations = self.generations_of(name)
        for generation in sorted(generations, key=lambda event: event.behaviour):
            with self._log.words("serve", reader="ops/replay") as words:
                recorded = self._recorded(generation, words)
                prompt = self._asked(generation, words)
            yield self._replay_one(generation, prompt, recorded)

    def generations_of(self, name: str) -> list[GenerationFinished]:
        """The generations that a name stands for."""
        if not name.startswith("bat_"):
            return [self._log.generation(name)]
        turns = list(self._log.read(types=[BattleTurnFinished], subject=name))
        if not turns:
            raise NotFound(f"{name} is no battle with a finished turn in this log")
        names = [
            generation
            for turn in turns
            if isinstance(turn.data, BattleTurnFinished)
            for generation in (turn.data.generation_a, turn.data.generation_b)
            if generation is not None
        ]
        return [self._log.generation(generation) for generation in names]

    def _asked(self, event: GenerationFinished, words: Words) -> dict[str, Json]:
        if event.prompt is None:
            raise InvalidRequest(
                f"{event.generation} kept no prompt ({kept_words(event)}), so it cannot be made again"
            )
        asked: dict[str, Json] = orjson.loads(words.read(event.prompt))
        return asked

    def _replay_one(
        self, event: GenerationFinished, prompt: dict[str, Json], recorded: list[Recorded]
    ) -> Outcome:
        again = self._generate(event, prompt, recorded)
        return Outcome(
            generation=event.generation,
            identity=event.identity,
            behaviour=event.behaviour,
            tokens=sum(len(choice.token_ids) for choice in recorded),
            difference=first_difference(recorded, again),
            words=kept_words(event),
        )

    def _recorded(self, event: GenerationFinished, words: Words) -> list[Recorded]:
        if event.response is None or not event.choices:
            if event.error is None and event.choices:
                raise InvalidRequest(
                    f"the words of {event.generation} were not kept ({kept_words(event)}), so it cannot be made again"
                )
            raise InvalidRequest(
                f"{event.generation} failed ({event.error or 'no answer'}), so there is nothing to compare"
            )
        said = orjson.loads(words.read(event.response))
        return [
            Recorded(c["index"], c["text"], tuple(c["token_ids"]), c["finish_reason"])
            for c in said["choices"]
        ]

    def _generate(
        self, event: GenerationFinished, prompt: Mapping[str, object], recorded: Sequence[Recorded]
    ) -> FinishedAnswer:
        model = self._model(event.behaviour)
        # An answer that was cut off is compared up to the cut: no more tokens than the longest one had. What fitted
        # into the worker's memory may have cut it too, and this machine may have more.
        cut = any(choice.finish_reason not in ENDED for choice in recorded)
        longest = max((len(choice.token_ids) for choice in recorded), default=0)
        messages, text, tools = prompt.get("messages"), prompt.get("prompt"), prompt.get("tool_use")
        return model.generate(
            NAME,
            messages=messages if isinstance(messages, list) else None,
            prompt=text if isinstance(text, str | list) else None,
            sampling=event.sampling,
            seed=event.seed,
            max_tokens=max(1, longest) if cut else None,
            decoding=self._decoding(event, prompt.get("structure"), most_tokens=longest if cut else None),
            n=event.n,
            tools=None if tools is None else ToolUse.from_json(tools),
        )

    def _decoding(self, event: GenerationFinished, structure: object, *, most_tokens: int | None) -> Decoding:
        """The event's fields of these names; the words of a structure come with the prompt."""
        members = {item.name: getattr(event, item.name) for item in fields(Decoding)}
        members["logit_bias"] = {int(token): bias for token, bias in event.logit_bias.items()}
        if most_tokens is not None:
            members["min_tokens"] = min(event.min_tokens, most_tokens)
        members["structure"] = None if event.structure is None else Structure.from_json(structure)
        if event.structure is not None and event.structure.engine not in (None, ENGINE):
            self._report(
                f"{event.generation} was held to its form by {event.structure.engine}, now by {ENGINE}"
            )
        return Decoding(**members)

    def _model(self, behaviour: Digest) -> LocalModel:
        if self._loaded is None or self._loaded[0] != behaviour:
            self._loaded = None  # give the memory back before taking it again
            self._loaded = (behaviour, self._load(self._store.get_behaviour(behaviour)))
        return self._loaded[1]

    def _load(self, wanted: Behaviour) -> LocalModel:
        served_as = wanted.weights.served_as
        if wanted.declared or served_as == "declared":
            raise ModelRejected(
                f"{wanted.digest[:19]}… was answered by {wanted.engine.name} {wanted.engine.version or ''}, which promises no "
                "bits: what it is was declared, not verified, and no answer of it can be made again"
            )
        if wanted.engine.numerics != NUMERICS_VERSION:
            raise ModelRejected(
                f"{wanted.digest} was made by numerics version {wanted.engine.numerics}; this build has "
                f"version {NUMERICS_VERSION}. Install a tiltyard of that version to replay it"
            )
        path = self._find_model(wanted.weights.digest)
        self._report(f"loading {path.name} ({served_as}) as {wanted.digest[:19]}")
        declaration = self._declaration(wanted, path).model_copy(update={"quantization": served_as})
        with TemporaryDirectory() as directory:
            if wanted.adapters:
                Adapter.stored(self._store, wanted.adapters[0]).write(Path(directory))
                declaration = declaration.model_copy(update={"adapter": directory})
            model = LocalModel.load(path, {NAME: declaration}, settings=self._settings, base_dir=path.parent)
        if (made := model.host.identity(NAME).behaviour_digest) != wanted.digest:
            raise ModelRejected(f"this build makes {made} of the manifest of {wanted.digest}")
        return model

    def _declaration(self, wanted: Behaviour, path: Path) -> IdentityDeclaration:
        """Declare again what the manifest says, from the artifacts that were kept with it."""
        return IdentityDeclaration(
            model=NAME,
            kv_precision=wanted.kv_precision,
            tool_format=cast(ToolFormatName, wanted.tool_format or "off"),
            pooling="mean" if wanted.architecture.get("pooling") == "mean" else "last",
            rope_scaling=None
            if wanted.rope_scaling is None
            else RopeScaling.model_validate(wanted.rope_scaling),
            chat_template=self._template(wanted.chat_template, path),
            system_prompt=None
            if wanted.system_prompt is None
            else self._store.get(wanted.system_prompt).decode(),
            sampling=wanted.default_sampling,
        )

    def _template(self, digest: Digest | None, path: Path) -> str:
        if digest is None:
            return "off"
        with open_model(path) as gguf:
            own = gguf.metadata.get(TEMPLATE_KEY)
        if isinstance(own, str) and digest_of(own.encode()) == digest:
            return "model"
        return str(self._store.path(digest).resolve())


def first_difference(recorded: Sequence[Recorded], again: FinishedAnswer) -> str | None:
    """Say where the recorded answers and the new ones part first; `None` when they do not."""
    made = {choice.index: choice for choice in again.choices}
    for choice in recorded:
        other = made.get(choice.index)
        if other is None:
            return f"answer {choice.index} was not made again"
        for position, (old, new) in enumerate(zip(choice.token_ids, other.token_ids, strict=False)):
            if old != new:
                return f"answer {choice.index}, token {position}: recorded {old}, made {new}"
        cut = choice.finish_reason not in ENDED
        if len(choice.token_ids) != len(other.token_ids) and not cut:
            return (
                f"answer {choice.index}: recorded {len(choice.token_ids)} tokens, "
                f"made {len(other.token_ids)} that agree as far as they go"
            )
        if choice.text != other.text and not (cut and other.text.startswith(choice.text)):
            return f"answer {choice.index}: the tokens agree and the text differs"
        if not cut and choice.finish_reason != other.finish_reason:
            return (
                f"answer {choice.index}: recorded end {choice.finish_reason!r}, made {other.finish_reason!r}"
            )
    return None
