from __future__ import annotations

from tiltyard.engine.request import EmittedToken, Finish
from tiltyard.identity.canonical import digest_of_json
from tiltyard.identity.manifest import DefaultSampling
from tiltyard.wire.decoding import Decoding
from tiltyard.worker.answer import Answer, AnswerPlan, ScoredToken

SPELLINGS = {
    1: b"Hel",
    2: b"lo",
    3: b" E",
    4: b"N",
    5: b"D.",
    6: "猫".encode()[:2],
    7: "猫".encode()[2:],
    9: b"",
}
STOP_ID = 9


class Spelling:
    def token_bytes(self, token_id: int) -> bytes:
        return SPELLINGS[token_id]


def plan(*, n: int = 1, seed: int = 5, top_logprobs: int | None = None, **decoding: object) -> AnswerPlan:
    return AnswerPlan(
        generation="gen_1",
        identity="m",
        behaviour="sha256:b",
        deployment="sha256:d",
        tenant="t",
        prompt=(1, 2, 3),
        sampling=DefaultSampling(max_tokens=8),
        seed=seed,
        stop_ids=frozenset({STOP_ID}),
        decoding=Decoding(**decoding),  # type: ignore[arg-type]
        n=n,
        top_logprobs=top_logprobs,
    )


def token(
    value: int,
    finish: Finish | None = None,
    *,
    choice: int = 0,
    logprob: float | None = None,
    cached: int = 0,
) -> EmittedToken:
    top = None if logprob is None else ((value, logprob),)
    return EmittedToken(f"gen_1/{choice}", value, logprob, top, finish, cached, first=False, kv_blocks=2)


def test_each_choice_draws_from_its_own_seed() -> None:
    requests = plan(n=3, seed=2**64 - 2).engine_requests()
    assert [r.sampling.seed for r in requests] == [2**64 - 2, 2**64 - 1, 0]
    assert [r.request_id for r in requests] == ["gen_1/0", "gen_1/1", "gen_1/2"]
    assert {r.namespace for r in requests} == {"sha256:b/t"}


def test_an_answer_that_ends_by_a_stop_token_keeps_the_id_but_shows_no_text_for_it() -> None:
    answer = Answer(plan(), Spelling(), submitted_s=10.0)
    answer.admit("gen_1/0", 10.5)
    answer.accept(token(1, cached=2), 11.0)
    answer.accept(token(2), 12.0)
    last = answer.accept(token(STOP_ID, "stop"), 13.0)
    assert last is not None
    assert (last.finish_reason, last.text, last.cancel) == ("stop", "", False)
    facts = answer.outcome()
    assert facts.choices[0].text == "Hello"
    assert facts.choices[0].token_ids == (1, 2, STOP_ID)
    assert (facts.prompt_tokens, facts.cached_tokens, facts.completion_tokens) == (3, 2, 3)
    assert (facts.queue_ms, facts.prefill_ms, facts.decode_ms) == (500.0, 500.0, 2000.0)
    assert facts.time_to_first_token_ms == 1000.0
    assert facts.prompt_token_digest == digest_of_json([1, 2, 3])


def test_tokens_after_the_one_that_completed_a_stop_string_are_dropped() -> None:
    """vLLM #13087: what came behind the stop string was shown. So also when one step brings several tokens."""
    answer = Answer(plan(stop=(" END",)), Spelling(), submitted_s=0.0)
    updates = [answer.accept(token(t), 1.0) for t in (1, 2, 3, 4, 5)]
    last = updates[-1]
    assert [u.text if u else None for u in updates] == ["Hel", "lo", None, None, ""]
    assert last is not None
    assert (last.finish_reason, last.cancel) == ("stop", True)
    assert answer.finished
    assert answer.accept(token(1), 2.0) is None  # the engine had already run one more
    choice = answer.outcome().choices[0]
    assert (choice.text, choice.token_ids, choice.stop_match) == ("Hello", (1, 2, 3, 4, 5), " END")


def test_the_engine_need_not_be_told_when_it_ended_the_answer_itself() -> None:
    answer = Answer(plan(stop=("lo",)), Spelling(), submitted_s=0.0)
    answer.accept(token(1), 1.0)
    last = answer.accept(token(2, "length"), 1.0)
    assert last is not None
    assert (last.finish_reason, last.cancel) == ("stop", False)


def test_held_text_is_shown_when_the_answer_ends_by_length() -> None:
    answer = Answer(plan(stop=(" END",)), Spelling(), submitted_s=0.0)
    assert answer.accept(token(3), 1.0) is None
    last = answer.accept(token(4, "length"), 1.0)
    assert last is not None
    assert (last.text, last.finish_reason) == (" EN", "length")


def test_a_log_probability_is_shown_together_with_the_text_of_its_token() -> None:
    """vLLM #13087, PR #31135: text, ids and scores came apart while text was held back."""
    answer = Answer(plan(stop=(" END",), top_logprobs=1), Spelling(), submitted_s=0.0)
    updates = [answer.accept(token(t, logprob=-float(t)), 1.0) for t in (1, 3, 4)]
    assert updates[0] is not None
    assert updates[0].scored == [ScoredToken(b"Hel", -1.0, ((b"Hel", -1.0),), 0)]
    assert updates[1:] == [None, None]  # held back, and so are their scores
    last = answer.accept(token(2, "length", logprob=-2.0), 1.0)
    assert last is not None
    assert last.text == " ENlo"
    assert [(s.spelling, s.text_offset) for s in last.scored] == [(b" E", 3), (b"N", 5), (b"lo", 6)]


def test_the_pieces_of_a_character_keep_their_own_scores() -> None:
    answer = Answer(plan(top_logprobs=0), Spelling(), submitted_s=0.0)
    first = answer.accept(token(6, logprob=-1.0), 1.0)
    second = answer.accept(token(7, "length", logprob=-1.0), 1.0)
    assert first is not None
    assert second is not None
    assert (first.text, second.text) == ("", "猫")
    assert b"".join(s.spelling for u in (first, second) for s in u.scored).decode() == "猫"


def test_an_answer_is_finished_when_all_its_choices_are() -> None:
    answer = Answer(plan(n=2), Spelling(), submitted_s=0.0)
    first = answer.accept(token(1, "length"), 1.0)
    assert first is not None
    assert (first.index, first.first) == (0, True)
    assert not answer.finished
    assert answer.unfinished_request_ids() == ["gen_1/1"]
    answer.accept(token(1, "length", choice=1), 2.0)
    assert answer.finished
    assert answer.outcome().peak_kv_blocks == 4


def test_a_choice_counts_as_admitted_once() -> None:
    answer = Answer(plan(), Spelling(), submitted_s=0.0)
    assert answer.admit("gen_1/0", 1.0)
    assert not answer.admit("gen_1/0", 2.0)  # readmitted after a preemption
    assert answer.admitted_s == 1.0


def test_the_tokens_of_a_stop_string_have_no_scores_since_they_have_no_text() -> None:
    """vLLM PR #31135."""
    answer = Answer(plan(stop=(" END",), top_logprobs=0), Spelling(), submitted_s=0.0)
    updates = [answer.accept(token(t, logprob=-float(t)), 1.0) for t in (1, 2, 3, 4, 5)]
    assert [s.spelling for u in updates if u for s in u.scored] == [b"Hel", b"lo"]
    assert answer.outcome().choices[0].token_ids == (1, 2, 3, 4, 5)  # a replay needs them all


def test_a_stop_string_that_is_shown_keeps_its_scores() -> None:
    answer = Answer(
        plan(stop=(" EN",), include_stop_str_in_output=True, top_logprobs=0), Spelling(), submitted_s=0.0
    )
    updates = [answer.accept(token(t, logprob=-float(t)), 1.0) for t in (1, 3, 4)]
    assert [s.spelling for u in updates if u for s in u.scored] == [b"Hel", b" E", b"N"]
    assert answer.outcome().choices[0].text == "Hel EN"


def test_a_stop_string_before_min_tokens_is_text() -> None:
    answer = Answer(plan(stop=("lo",), min_tokens=2), Spelling(), submitted_s=0.0)
    for t in (1, 2, 1):
        answer.accept(token(t), 1.0)
    last = answer.accept(token(2), 1.0)
    assert last is not None
    assert (last.finish_reason, answer.outcome().choices[0].text) == ("stop", "HelloHel")


def test_a_stop_string_that_begins_before_min_tokens_and_ends_behind_stops() -> None:
    answer = Answer(plan(stop=(" END",), min_tokens=2), Spelling(), submitted_s=0.0)
    updates = [answer.accept(token(t), 1.0) for t in (3, 4, 5)]
    assert [u.text if u else None for u in updates] == [None, None, ""]
    assert answer.outcome().choices[0].stop_match == " END"


def test_a_stop_token_is_shown_on_demand_and_a_control_token_by_its_name() -> None:
    class Named(Spelling):
        control_tokens = {"<end>": STOP_ID}  # noqa: RUF012

    for fields, text in [
        ({}, "Hel"),
        ({"include_stop_str_in_output": True}, "Hel"),  # it has no text
        ({"skip_special_tokens": False}, "Hel"),
        ({"include_stop_str_in_output": True, "skip_special_tokens": False}, "Hel<end>"),
    ]:
        answer = Answer(plan(**fields), Named(), submitted_s=0.0)  # type: ignore[arg-type]
        answer.accept(token(1), 1.0)
        answer.accept(token(STOP_ID, "stop"), 1.0)
        assert answer.outcome().choices[0].text == text


def test_a_grammar_that_ends_the_answer_shows_the_last_token() -> None:
    """It ends without an end token: `stop` belongs to an ordinary one."""
    answer = Answer(plan(), Spelling(), submitted_s=0.0)
    last = answer.accept(token(1, "stop"), 1.0)
    assert last is not None
    assert (last.text, last.finish_reason) == ("Hel", "stop")
