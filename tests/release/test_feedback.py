"""What users found wrong, on its way into the fixed sets: redacted, reviewed, with its lineage, and never by itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from release_stage import Scene, allow_evaluation, both_bad_battle

from tiltyard.cli.main import main
from tiltyard.errors import Conflict, ContentMissing, InvalidRequest, NotFound
from tiltyard.evals.sets import BadSet, load_set
from tiltyard.events.schema import (
    BattleTurnFinished,
    ContentRead,
    ContentRef,
    GenerationFinished,
    JudgedSide,
    JudgmentMade,
    VoteWithdrawn,
)
from tiltyard.governance.redaction import Redactor
from tiltyard.release.feedback import accept, candidates, drafts, reject, waiting

QUESTION = "Mail ann@example.com why the sky is blue."


def failed_request(scene: Scene, served: object, *, subject: str = "acme:bob") -> str:
    """Write that a request with these words failed; returns the event's id."""
    scene.start()
    template = scene.log.generation(scene.serve("candidate", finish="failed"))
    words = scene.log.content(subject, json.dumps(served).encode())
    data = template.model_copy(update={"generation": "gen_" + "f" * 32, "prompt": words.ref})
    return scene.log.append_blocking(data, subject=data.generation, source="test", contents=[words]).id


def test_failures_and_battles_in_which_both_were_bad_wait_for_a_person(scene: Scene) -> None:
    allow_evaluation(scene.log)
    served = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]}
    failure = failed_request(scene, served)
    origin = both_bad_battle(scene, "為什麼天空是藍色的?", "bat_1")
    found = waiting(scene.log)
    assert [(one.kind, one.origin) for one in found] == [("both_bad", origin), ("failure", failure)]
    bad, failed = drafts(scene.log, found, Redactor, who="ann")
    assert bad.item is not None
    assert failed.item is not None
    assert bad.item.slices == {"origin": "both_bad", "language": "zh-Hant"}
    assert failed.item.turns == ("Mail [EMAIL_1] why the sky is blue.",)
    assert (failed.item.system, failed.replaced) == ("Be brief.", {"EMAIL": 1})
    assert failed.item.source == f"failure of gen_{'f' * 32}, event {failure}"
    read = [e.data for e in scene.log.read(types=(ContentRead,)) if isinstance(e.data, ContentRead)]
    assert {(one.reader, one.who) for one in read} == {("release/feedback", "ann")}
    assert waiting(scene.log, "failure") == [found[1]]


def judged(scene: Scene, verdict: str, *, swapped: bool) -> None:
    """A judge's verdict of `bat_1`; `swapped`: what is a in the battle is b to the judge."""
    generations = ["gen_bat_1_a", "gen_bat_1_b"]
    if swapped:
        generations.reverse()
    ref = ContentRef(id="x", subject="judge", digest="hmac-sha256:0", size_bytes=0)
    data = JudgmentMade.model_validate(
        {
            "judgment": f"jud_{verdict}{swapped}", "judge": "sha256:" + "1" * 64, "judge_name": "j", "answered_as": "j",
            "rubric": "sha256:" + "2" * 64, "mode": "pairwise", "item": "i", "item_id": "bat_1", "question": "q",
            "collection": "sha256:" + "3" * 64, "order": "ab", "asked": "first", "seed": 1, "verdict": verdict, "score": None,
            "held": "text", "prompt": ref, "raw": ref, "prompt_tokens": 1, "completion_tokens": 1, "total_ms": 1.0,
            "sides": [
                JudgedSide(side="a", identity="old", generations=(generations[0],)),
                JudgedSide(side="b", identity="new", generations=(generations[1],)),
            ],
        }
    )  # fmt: skip
    scene.log.append_blocking(data, subject=data.judgment, source="test")


def test_a_battle_is_disputed_when_the_judge_says_the_opposite_of_the_voter(scene: Scene) -> None:
    both_bad_battle(scene, "Why?", "bat_1", choice="a")
    finished = BattleTurnFinished(
        battle="bat_1", turn=0, attempt=0, generation_a="gen_bat_1_a", generation_b="gen_bat_1_b",
        finish_a="stop", finish_b="stop",
    )  # fmt: skip
    scene.log.append_blocking(finished, subject="bat_1", source="test")
    judged(scene, "a", swapped=False)
    assert waiting(scene.log) == []  # they agree
    judged(scene, "a", swapped=True)
    assert waiting(scene.log) == []  # the judge says both, which is nothing
    judged(scene, "b", swapped=False)
    (found,) = waiting(scene.log)
    assert (found.kind, found.told) == ("disputed", "old and new: people say a, the judge says b")


def test_a_vote_that_was_taken_back_waits_for_nobody(scene: Scene) -> None:
    origin = both_bad_battle(scene, "Why?", "bat_1")
    gone = VoteWithdrawn.model_validate({"battle": "bat_1", "voter": "v", "vote": origin, "reason": "slip"})
    scene.log.append_blocking(gone, subject="bat_1", source="test")
    assert waiting(scene.log) == []


def test_nothing_enters_a_set_unreviewed_and_what_enters_is_a_set(scene: Scene, tmp_path: Path) -> None:
    allow_evaluation(scene.log)
    origin = both_bad_battle(scene, QUESTION, "bat_1")
    both_bad_battle(scene, "Nonsense?", "bat_2")
    name, other = (one.id for one in sorted(waiting(scene.log), key=lambda one: one.about))
    assert candidates(scene.log, "sky", who="ann").lines == ()
    with pytest.raises(InvalidRequest, match="why is empty"):
        accept(scene.log, name, "sky", Redactor, by="ann", why=" ")
    edited = {
        "turns": ["Write to bob@example.com: why is the sky blue?"],
        "checks": [{"kind": "contains", "all": ["light"]}],
    }
    with pytest.raises(BadSet, match="turns: it is missing"):
        accept(scene.log, name, "sky", Redactor, by="ann", why="x", edited={"id": "mine"})
    made = accept(scene.log, name, "sky", Redactor, by="ann", why="common", edited=edited)
    assert (made.kind, made.origin, made.found) == ("both_bad", origin, {"EMAIL": 2})
    reject(scene.log, other, by="ann", why="nonsense")
    with pytest.raises(Conflict, match="was decided before: reject by ann"):
        accept(scene.log, other, "sky", Redactor, by="bea", why="x")
    with pytest.raises(NotFound, match="there is no feedback 'fb_0'"):
        reject(scene.log, "fb_0", by="ann", why="x")
    (line,) = candidates(scene.log, "sky", who="ann").lines
    path = tmp_path / "sky.jsonl"
    path.write_bytes(line)
    (item,) = load_set(str(path)).items
    assert item.turns == ("Write to [EMAIL_1]: why is the sky blue?",)
    assert (item.id, item.source, item.digest) == (
        name,
        f"both_bad of bat_1, event {origin}",
        made.item_digest,
    )


def test_who_is_erased_leaves_the_candidates_too(scene: Scene) -> None:
    allow_evaluation(scene.log)
    both_bad_battle(scene, QUESTION, "bat_1")
    both_bad_battle(scene, QUESTION, "bat_2")
    name, later = (one.id for one in waiting(scene.log))
    accept(scene.log, name, "sky", Redactor, by="ann", why="common")
    scene.log.erase_subject("acme:bob")
    assert candidates(scene.log, "sky", who="ann") == ((), 1)
    with pytest.raises(ContentMissing, match="has no words"):
        accept(scene.log, later, "sky", Redactor, by="ann", why="common")


def test_feedback_at_the_command_line(scene: Scene, tmp_path: Path) -> None:
    allow_evaluation(scene.log)
    both_bad_battle(scene, QUESTION, "bat_1")
    (tmp_path / "tiltyard.toml").write_text('[models.m]\nsource = "hf:a/b"\n[identities.old]\nmodel = "m"\n')
    place = ["--data", str(tmp_path), "--config", str(tmp_path / "tiltyard.toml")]

    def run(*words: str) -> str:
        result = CliRunner().invoke(main, ["release", *place, "feedback", *words], env={"TILTYARD_BY": "ann"})
        assert result.exit_code == 0, result.output
        return result.output

    name = run("list").split()[0]
    shown = run("show", name)
    assert "Mail [EMAIL_1] why the sky is blue." in shown
    item = tmp_path / "item.json"
    item.write_text(json.dumps({"turns": ["Why is the sky blue?"], "reference": "Rayleigh scattering"}))
    assert "a candidate for sky" in run(
        "accept", name, "--set", "sky", "--why", "common", "--item", str(item)
    )
    assert run("list") == "nothing waits\n"
    assert f"{name}  both_bad  accept for sky by ann: common" in run("list", "--decided")
    out = tmp_path / "sky.jsonl"
    assert "1 candidates for sky" in run("export", "sky", "--out", str(out))
    assert load_set(str(out)).items[0].reference == "Rayleigh scattering"


def test_generations_that_ended_well_or_were_our_own_do_not_wait(scene: Scene) -> None:
    failed_request(scene, {"prompt": "Hi"}, subject="default:tiltyard-eval")
    good = scene.log.generation(scene.serve("candidate"))
    assert isinstance(good, GenerationFinished)
    assert waiting(scene.log) == []
