"""A log with two identities, a plan, and traffic that is written straight into the log."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    BattleOpened,
    BattleTurnStarted,
    Choice,
    ChoiceOutcome,
    Contestant,
    DataTermsSet,
    EventData,
    FinishReason,
    GenerationFinished,
    IdentityRegistered,
    ReleaseStarted,
    RulesetAdopted,
    VoteCast,
    VoteWithdrawn,
)
from tiltyard.events.vault import NewContent
from tiltyard.identity.canonical import digest_of_json
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import Behaviour, DefaultSampling, Deployment, Weights
from tiltyard.rating.ruleset import Ruleset
from tiltyard.release.history import start
from tiltyard.release.plan_file import parse_plan
from tiltyard.release.reconciler import Reconciler
from tiltyard.release.state import ReleaseState

SOURCE = "tiltyard/tests"
DIGEST = "sha256:" + "d" * 64
ALIASES = {"chat": "old"}
CANARY = """
alias: chat
candidate: new
stages:
  - stage: canary
    traffic: 5%
    minimum: 20
    maximum: 30m
    gates:
      - {metric: error_rate, worse_by: 0.2}
  - stage: promote
"""


def registered(name: str, temperature: float) -> IdentityRegistered:
    behaviour = Behaviour(
        weights=Weights(digest=DIGEST, size_bytes=1, stored_as=("Q4_1",)),
        architecture={"layers": 1},
        tokenizer=DIGEST,
        chat_template=None,
        default_sampling=DefaultSampling(temperature=temperature),
    )
    deployment = Deployment(
        behaviour=behaviour.digest, engine_build="t", isa="scalar", threads=1, block_tokens=32, kv_blocks=8,
        max_batch_tokens=64, hardware="none",
    )  # fmt: skip
    return IdentityRegistered(
        name=name,
        behaviour=behaviour.digest,
        deployment=deployment.digest,
        behaviour_manifest=behaviour,
        deployment_manifest=deployment,
        declaration=IdentityDeclaration(model="m"),
    )


class Scene:
    """A log, a clock that stands still until it is moved, and a release."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.now_us = 1_800_000_000_000_000
        self._generations = self._battles = 0
        self.behaviours = {}
        for name, temperature in (("old", 0.0), ("new", 0.5), ("newer", 0.7)):
            data = registered(name, temperature)
            self.behaviours[name] = data.behaviour
            log.append_blocking(data, subject=name, source=SOURCE)

    def clock(self) -> int:
        return self.now_us

    def reconciler(self) -> Reconciler:
        """A new one, which knows nothing but the log."""
        return Reconciler(self.log, now_us=self.clock)

    def start(self, plan: str = CANARY) -> ReleaseStarted:
        self.started = start(self.log, parse_plan(plan, "plan.yaml"), ALIASES, by="ann", why="better")
        return self.started

    def settled(self) -> ReleaseState:
        """What a reconciler that starts now makes of the log."""
        reconciler = self.reconciler()
        reconciler.settle()
        return reconciler.state(self.started.release)

    def serve(
        self,
        arm: str,
        times: int = 1,
        *,
        finish: FinishReason = "stop",
        shadow_of: str | None = None,
        diverted_from: str | None = None,
        ttft_ms: float = 50.0,
        tokens: int = 10,
        tenant: str = "default",
        service_class: Literal["interactive", "agent", "batch"] = "interactive",
        prompt_tokens: int = 5,
        question: str = "",
    ) -> str:
        """Write that requests were answered; returns the last one's id."""
        pending: list[tuple[EventData, str, str]] = []
        identity = "new" if arm in ("candidate", "shadow") else "old"
        asked = json.dumps({"messages": [{"role": "user", "content": question}]}).encode()
        words = self.log.content("default:bob", asked) if question else None
        for _ in range(times):
            self._generations += 1
            name = f"gen_{self._generations:032x}"
            data = GenerationFinished(
                generation=name,
                endpoint="chat.completions",
                behaviour=self.behaviours[identity],
                deployment=DIGEST,
                alias="chat",
                identity=identity,
                worker="w",
                prompt=None if words is None else words.ref,
                response=None,
                prompt_token_digest=None,
                sampling=DefaultSampling(),
                seed=1,
                stream=True,
                choices=(ChoiceOutcome(index=0, finish_reason=finish, completion_tokens=tokens),),
                error="upstream_failed" if finish == "failed" else None,
                prompt_tokens=prompt_tokens,
                service_class=service_class,
                cached_tokens=0,
                completion_tokens=tokens,
                decode_ms=10.0 * (tokens - 1),
                time_to_first_token_ms=ttft_ms,
                total_ms=100.0,
                arm=arm,
                release=self.started.release,
                diverted_from=diverted_from,
                shadow_of=shadow_of,
            )
            pending.append((data, name, tenant))
        self.append(pending, () if words is None else (words,))
        return name

    def votes(
        self,
        choices: str,
        *,
        voters: int = 100,
        leaks: Sequence[str] = (),
        generations: Sequence[str] = (),
        language: str = "",
    ) -> list[str]:
        """Write votes `a`, `b` or `t` (a tie) of so many people in turn, the candidate on side b; returns the battles.

        `generations` are production's of each battle, `language` what the first message was taken for.
        """
        pending: list[tuple[EventData, str, str]] = []
        first = self._battles
        self._battles += len(choices)
        if language:
            battles = [f"bat_{number}" for number in range(first, self._battles)]
            self.append([(self._opened(battle, language), battle, "default") for battle in battles])
            self.now_us += 60_000_000  # who is faster than a second has read nothing
        for number, choice in enumerate(choices, first):
            data = VoteCast.model_validate(
                {
                    "battle": f"bat_{number}",
                    "voter": f"v{number % voters}",
                    "leaks": leaks,
                    "choice": {"t": "tie"}.get(choice, choice),
                    "identity_a": "old",
                    "identity_b": "new",
                    "behaviour_a": self.behaviours["old"],
                    "behaviour_b": self.behaviours["new"],
                    "pair_probability": 1.0,
                    "side_probability": 0.5,
                    "turns": 1,
                    "generations_a": list(generations),
                    "generations_b": [],
                }
            )
            pending.append((data, data.battle, "default"))
        self.append(pending)
        return [f"bat_{number}" for number in range(first, self._battles)]

    def _opened(self, battle: str, language: str) -> BattleOpened:
        return BattleOpened(
            battle=battle,
            voter="v",
            contestants=(
                Contestant(side="a", identity="old", behaviour=self.behaviours["old"]),
                Contestant(side="b", identity="new", behaviour=self.behaviours["new"]),
            ),
            pair_probability=1.0,
            side_probability=0.5,
            policy="tests/1",
            language=language,
            vote_token_digest=DIGEST,
        )

    def adopt(self, ruleset: Ruleset, **changed: object) -> None:
        """Write that these are the rules from now on; `changed` are members that another version wrote."""
        rules = {**ruleset.model_dump(mode="json"), **changed}
        data = RulesetAdopted.model_validate(
            {
                "ruleset": ruleset.label,
                "digest": digest_of_json({k: v for k, v in rules.items() if k != "why"}),
                "rules": rules,
                "why": "a test",
                "previous": None,
                "votes_before": 0,
                "votes_after": 0,
                "moved": [],
            }
        )
        self.log.append_blocking(data, subject="ruleset", source=SOURCE)

    def take_back(self, battles: Sequence[str]) -> None:
        """Their voters take the votes in these battles back."""
        self.append(
            [
                (VoteWithdrawn(battle=battle, voter="v", vote="evt", reason="slip"), battle, "default")
                for battle in battles
            ]
        )

    def append(self, pending: Sequence[tuple[EventData, str, str]], words: Sequence[NewContent] = ()) -> None:
        """Append events of subjects and tenants; all of them share a commit. `words` are those of the only one."""
        drafts = [
            self.log._draft(
                data, subject=subject, source=SOURCE, tenant=tenant, traceparent=None, words=words
            )
            for data, subject, tenant in pending
        ]
        for draft in drafts:
            self.log._writer.submit(draft)
        for draft in drafts:
            draft.done.result()


def allow_evaluation(log: EventLog) -> None:
    """Terms under which everybody's words may be looked at to learn about models."""
    data = DataTermsSet.model_validate(
        {"scope": "*", "purposes": {"serve": None, "evaluate": None}, "basis": "a test", "by": "test"}
    )
    log.append_blocking(data, subject="*", source=SOURCE)


def both_bad_battle(
    scene: Scene, question: str, battle: str, *, subject: str = "acme:bob", choice: Choice = "both_bad"
) -> str:
    """A battle between the two in which somebody asked this and found both bad; returns the id of the vote."""
    words = scene.log.content(subject, question.encode())
    turn = BattleTurnStarted(battle=battle, turn=0, attempt=0, message=words.ref)
    scene.log.append_blocking(turn, subject=battle, source=SOURCE, contents=[words])
    vote = VoteCast(
        battle=battle,
        voter="v",
        choice=choice,
        identity_a="old",
        identity_b="new",
        behaviour_a=scene.behaviours["old"],
        behaviour_b=scene.behaviours["new"],
        pair_probability=1.0,
        side_probability=0.5,
        turns=1,
        generations_a=(f"gen_{battle}_a",),
        generations_b=(f"gen_{battle}_b",),
    )
    return scene.log.append_blocking(vote, subject=battle, source=SOURCE).id
