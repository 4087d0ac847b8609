"""Small, valid events for tests."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import select

from tiltyard.events.committer import Draft
from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    AnswerScored,
    BattleOpened,
    BattleTurnStarted,
    Choice,
    ChoiceOutcome,
    ContentRef,
    Contestant,
    DatasetReleased,
    DatasetRowsReleased,
    DatasetUsed,
    EvalItemFailed,
    EvalItemFinished,
    EvalItemReviewed,
    EvalRunFinished,
    EvalRunStarted,
    EvalVerdict,
    EventData,
    FeedbackReviewed,
    GateJudged,
    GateNotPassed,
    GenerationFinished,
    IdentityRegistered,
    JudgedSide,
    JudgeRegistered,
    JudgesBridged,
    JudgmentMade,
    PreferenceModelTrained,
    ReleasedRow,
    ReleaseEnded,
    ReleaseOrdered,
    ReleaseStarted,
    ReviewAssigned,
    ReviewerNamed,
    ReviewGiven,
    RubricRegistered,
    StageEntered,
    TextsEmbedded,
    TrafficArm,
    TrafficSplit,
    VoteCast,
)
from tiltyard.events.tables import PROJECTIONS
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import Behaviour, DefaultSampling, Deployment, Weights

A = "sha256:" + "a" * 64
B = "sha256:" + "b" * 64
SOURCE = "tiltyard/tests"


def vote(battle: str, choice: Choice = "a", *, left: str = "plum", right: str = "quince") -> VoteCast:
    digests = {"plum": A, "quince": B}
    return VoteCast(
        battle=battle,
        voter="voter-1",
        choice=choice,
        identity_a=left,
        identity_b=right,
        behaviour_a=digests[left],
        behaviour_b=digests[right],
        pair_probability=1 / 3,
        side_probability=0.5,
        turns=1,
        generations_a=("gen_1",),
        generations_b=("gen_2",),
    )


def opened(battle: str) -> BattleOpened:
    return BattleOpened(
        battle=battle,
        voter="voter-1",
        contestants=(
            Contestant(side="a", identity="plum", behaviour=A),
            Contestant(side="b", identity="quince", behaviour=B),
        ),
        pair_probability=1 / 3,
        side_probability=0.5,
        policy="uniform.v1",
        vote_token_digest="sha256:" + "c" * 64,
    )


def turn(battle: str, number: int, message: ContentRef, *, attempt: int = 0) -> BattleTurnStarted:
    return BattleTurnStarted(battle=battle, turn=number, attempt=attempt, message=message)


def generation(name: str, *, seed: int = 7) -> GenerationFinished:
    return GenerationFinished(
        generation=name,
        endpoint="chat.completions",
        behaviour=A,
        deployment=B,
        alias="chat",
        identity="plum",
        worker="plum-0",
        prompt=None,
        response=None,
        prompt_token_digest=None,
        sampling=DefaultSampling(temperature=0.0),
        seed=seed,
        stream=True,
        choices=(ChoiceOutcome(index=0, finish_reason="stop", completion_tokens=5),),
        prompt_tokens=11,
        cached_tokens=3,
        completion_tokens=5,
        total_ms=12.5,
    )


def embedded(tokens: int) -> TextsEmbedded:
    return TextsEmbedded(
        alias="chat",
        identity="plum",
        behaviour=A,
        worker="plum-0",
        texts=2,
        prompt_tokens=tokens,
        total_ms=1.5,
    )


def registered(name: str) -> IdentityRegistered:
    behaviour = Behaviour(
        weights=Weights(digest=A, size_bytes=1, stored_as=("Q4_1",)),
        architecture={"layers": 30, "norm_eps": 1e-5},
        tokenizer=B,
        chat_template=None,
    )
    deployment = Deployment(
        behaviour=behaviour.digest,
        engine_build="test",
        isa="scalar",
        threads=1,
        block_tokens=32,
        kv_blocks=8,
        max_batch_tokens=64,
        hardware="none",
    )
    return IdentityRegistered(
        name=name,
        behaviour=behaviour.digest,
        deployment=deployment.digest,
        behaviour_manifest=behaviour,
        deployment_manifest=deployment,
        declaration=IdentityDeclaration(model="plum"),
    )


def draft(log: EventLog, data: EventData, subject: str = "s") -> Draft:
    """Make a draft that is not yet on its way."""
    return log._draft(data, subject=subject, source=SOURCE, tenant="t", traceparent=None, words=())


def submit(log: EventLog, data: EventData) -> Draft:
    """Put an event into the writer's queue without waiting."""
    one = draft(log, data)
    log._writer.submit(one)
    return one


def projections_of(log: EventLog) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every projection, sorted."""
    found = {}
    with log._database.reading() as connection:
        for table in PROJECTIONS:
            rows = connection.execute(select(table)).all()
            found[table.name] = sorted((tuple(row) for row in rows), key=repr)
    return found


def tamper(path: Path, change: Callable[[sqlite3.Connection], object]) -> None:
    """Change a log's file as somebody who can write to it would: without the guarding triggers."""
    connection = sqlite3.connect(path)
    try:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        change(connection)
        connection.commit()
    finally:
        connection.close()


def eval_events(run: str = "evr_1") -> list[EventData]:
    """A run of one item of a fixed set, from its start to its end."""
    words = ContentRef(id="c", subject="tiltyard-eval", digest="hmac-sha256:0", size_bytes=1)
    return [
        EvalRunStarted(
            run=run,
            set_name="core",
            set_digest=A,
            items=1,
            alias="chat",
            behaviour=B,
            identified=True,
            settings={"max_tokens": 8},
            seed=0,
            repeat=0,
        ),
        EvalItemFailed(run=run, item="sum-1", sample=0, error="stream_cut"),
        EvalItemFinished(
            run=run,
            item="sum-1",
            item_digest=A,
            alias="chat",
            behaviour=B,
            sample=0,
            generations=("gen_1",),
            transcript=words,
            output_digest="hmac-sha256:1",
            score=1.0,
            verdicts=(EvalVerdict(kind="numeric", score=1.0),),
            finish_reason="stop",
            prompt_tokens=3,
            cached_tokens=0,
            completion_tokens=2,
            total_ms=4.0,
            tries=1,
        ),
        EvalItemReviewed(
            run=run,
            item="dose-1",
            item_digest=A,
            behaviour=B,
            sample=0,
            reviewed=("itm_1",),
            score=0.75,
            verdicts=(EvalVerdict(kind="expert", score=0.75),),
        ),
        EvalRunFinished(run=run, samples=1, scored=1, failed=0, mean=1.0, outputs_digest="hmac-sha256:2"),
    ]


def judge_events() -> list[EventData]:
    """One of each type that judges, scorers and experts write."""
    words = ContentRef(id="c", subject="judge-set", digest="hmac-sha256:0", size_bytes=1)
    side = JudgedSide(side="a", identity="plum")
    return [
        RubricRegistered(rubric=A, name="pairwise", rules={"name": "pairwise"}),
        JudgeRegistered(judge=B, name="judge", specification={"model": "judge"}),
        JudgmentMade(
            judgment="jdg_1",
            judge=B,
            judge_name="judge",
            answered_as="judge",
            rubric=A,
            mode="single",
            item="itm_1",
            item_id="q1",
            question="qst_1",
            collection=A,
            sides=(side,),
            order="single",
            asked="only",
            seed=0,
            verdict=None,
            score=7.0,
            held="text",
            prompt=words,
            raw=words,
            prompt_tokens=10,
            completion_tokens=2,
            total_ms=1.0,
        ),
        JudgesBridged(
            old=A,
            new=B,
            old_label="old@1/2",
            new_label="new@1/2",
            measure="rating",
            items=30,
            shift=-0.5,
            shift_lower=-0.7,
            shift_upper=-0.3,
            agreement=0.4,
            map={"offset": 0.0, "slope": 1.0},
        ),
        AnswerScored(
            scorer=A,
            scorer_name="rm",
            kind="http",
            item="itm_1",
            item_id="q1",
            question="qst_1",
            side="a",
            identity="plum",
            score=1.5,
        ),
        PreferenceModelTrained(
            model=A,
            method="m/1",
            features=("words",),
            weights=(0.5,),
            scales=(1.0,),
            temperature=1.0,
            ridge=1.0,
            votes=60,
            battles=B,
            first_sequence=1,
            last_sequence=9,
            accuracy=0.7,
            brier=0.2,
            brier_of_ignorance=0.25,
            gap=0.01,
        ),
        ReviewerNamed(reviewer="rev_1", name=words, roles=("medicine",)),
        ReviewAssigned(
            item="itm_1", item_id="q1", reviewer="rev_1", role="medicine", order="single", form=A, seed=0
        ),
        ReviewGiven(
            item="itm_1",
            item_id="q1",
            reviewer="rev_1",
            role="medicine",
            form=A,
            sides=(side,),
            question="qst_1",
            verdict=None,
            score=8.0,
            adjudicates=False,
            reasons=None,
        ),
    ]


def release_events() -> list[EventData]:
    """A release of one stage that is rolled back."""
    return [
        ReleaseStarted(
            release="rel_1",
            alias="chat",
            number=1,
            candidate="plum",
            candidate_behaviour=A,
            production="quince",
            production_behaviour=B,
            plan={},
            plan_digest=A,
            by="ann",
            why="",
        ),
        StageEntered(release="rel_1", index=0, stage="canary"),
        TrafficSplit(
            alias="chat",
            arms=(TrafficArm(arm="candidate", identity="plum", behaviour=A, weight=0.05),),
            release="rel_1",
            step=1,
            by="ann",
            why="stage 1",
        ),
        GateJudged(
            release="rel_1",
            index=0,
            gate="error_rate worse_by 0.01",
            number=1,
            verdict="fail",
            effect=0.5,
            low=0.4,
            high=0.6,
            samples=100,
            through=7,
            words="half of the requests failed",
        ),
        ReleaseOrdered(
            release="rel_1",
            order="approve",
            index=0,
            by="ann",
            why="seen enough",
            against=(GateNotPassed(index=0, gate="error_rate worse_by 0.01", words="hold"),),
        ),
        ReleaseEnded(release="rel_1", outcome="rolled_back", why="a gate failed"),
        FeedbackReviewed(
            feedback="fb_1",
            kind="both_bad",
            origin="1",
            decision="reject",
            set_name=None,
            item=None,
            item_digest=None,
            by="ann",
            why="not our subject",
        ),
    ]


def dataset_events() -> list[EventData]:
    """A release of one row, and a scorer that used it."""
    row = ReleasedRow(id="0" * 32, digest=A, subjects=("voter_1",), origin="bat_1", generations=("gen_1",))
    return [
        DatasetRowsReleased(release="dat_1", place=0, rows=(row,)),
        DatasetReleased(
            release="dat_1",
            name="votes",
            version="1.0.0",
            layout="pairs",
            position=9,
            digest=A,
            manifest={},
            rows=1,
            key=B,
            by="ann",
        ),
        DatasetUsed(release="dat_1", kind="scorer", name="plum-reward", by="ann"),
    ]
