"""Reports, contamination and drift: what they say, and what a model's or a user's words can do to them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import orjson
import pytest

from eval_server import EvalServer, eval_server
from tiltyard.client import ModelClient
from tiltyard.evals.asking import SUBJECT
from tiltyard.evals.comparison import Price, summarize
from tiltyard.evals.contamination import Contamination, Seen, find_contamination, similarity
from tiltyard.evals.contender import resolve
from tiltyard.evals.drift import find_drift, traits_of
from tiltyard.evals.evidence import RunEvidence, read_evidence
from tiltyard.evals.item import Item
from tiltyard.evals.marking import Marker
from tiltyard.evals.plan import RunPlan
from tiltyard.evals.report import MOST_SHOWN, Report, as_html, as_markdown, headline, write_report
from tiltyard.evals.runner import Runner
from tiltyard.evals.sets import EvalSet
from tiltyard.evals.users import users_prompts
from tiltyard.events.log import EventLog
from tiltyard.events.schema import ChoiceOutcome, ContentRef, GenerationFinished, JudgmentMade
from tiltyard.identity.manifest import DefaultSampling

HOSTILE = "</pre><script>alert(1)</script><img src=http://evil.example/x onerror=alert(1)>\n````\n# A heading | a cell"


@pytest.fixture(scope="module")
def server() -> Iterator[EvalServer]:
    def say(model: str, messages: list[dict[str, str]]) -> str:
        last = messages[-1]["content"]
        return "yes" if model == "chat" or last == "q1" else HOSTILE

    with eval_server(say) as started:
        yield started


def questions(count: int) -> EvalSet:
    one = {"checks": [{"kind": "exact", "answers": ["yes"]}]}
    items = [
        Item.model_validate(
            {"id": f"q{n}", "turns": [f"q{n}"], "slices": {"kind": "<b>odd" if n % 2 else "even"}, **one}
        )
        for n in range(1, count + 1)
    ]
    return EvalSet("<i>set</i>", tuple(items), "MIT", "# A card\n\nWith <words>.")


async def report_of(server: EvalServer, folder: Path, count: int = 8) -> Report:
    one = questions(count)
    with EventLog.open(folder / "log.db", keys=folder / "keys.db") as log:
        async with ModelClient(server.url) as client:
            runs = [
                (
                    await Runner(client, log, Marker(), concurrency=16).go(
                        RunPlan(one, await resolve(client, name))
                    )
                ).run
                for name in ("chat", "other")
            ]
        summaries = tuple(summarize(read_evidence(log, run), Price(1.0, 2.0)) for run in runs)
    contamination = find_contamination(one.items, [Seen("gen_1", "q3!")])
    return Report(summaries, one, {}, contamination, find_drift(one.items, ["x"] * 3), "tiltyard eval run …")


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


async def test_a_report_fetches_nothing_and_no_word_of_a_model_becomes_markup(
    server: EvalServer, tmp_path: Path
) -> None:
    report = await report_of(server, tmp_path)
    html, markdown = write_report(report, tmp_path / "deep" / "r")
    page = html.read_text("utf-8")
    parser = Tags()
    parser.feed(page)
    names = {tag for tag, _ in parser.found}
    assert names & {"script", "img", "link", "iframe", "object", "i"} == set()
    assert not [
        value
        for _, attributes in parser.found
        for name, value in attributes.items()
        if name in ("src", "href", "onerror", "style")
    ]
    assert "url(" not in page
    assert "@import" not in page
    assert page.count("&lt;script&gt;alert(1)") >= 7
    text = markdown.read_text("utf-8")
    for block in re.finditer(r"^(`{3,})text\n(.*?)\n\1$", text, re.MULTILINE | re.DOTALL):
        text = text.replace(block[0], "")
    assert "alert(1)" not in text
    assert "evil.example" not in text
    assert "# A heading" not in text


async def test_a_report_says_who_is_better_by_how_much_and_what_was_lost(
    server: EvalServer, tmp_path: Path
) -> None:
    report = await report_of(server, tmp_path)
    text = as_markdown(report)
    # 7 of 8 won: (7.5 - 0.5) / 10 = 0.7, half-width 1.96 * sqrt(8 - 49/10) / 10 = 0.345.
    sentence = (
        "chat@aaaaaaaa is better than other@bbbbbbbb on this set: +87.5% (+35.5 to +100.0) in mean score."
    )
    assert headline(report.comparisons[0]) == sentence
    for words in (
        f"**{sentence}**",
        "| chat@aaaaaaaa | 100.0% (67.6 to 100.0) | 8 | 8 | 0 | 0 | 80 / 32 | 0.0001 |",
        "Flips: 7 won, 0 lost; p = 0.016 (exact McNemar test)",
        "| kind = even | 4 | 100.0% | 0.0% |",
        "| exact | 8 of 8 | 1 of 8 |",
        "1 were asked word by word",
        "The vault has 3 prompts of users; 20 or more are needed",
        "licence MIT",
    ):
        assert words in text, words
    assert text.count("### Won: ") == 7


async def test_a_large_run_makes_a_report_that_still_opens(server: EvalServer, tmp_path: Path) -> None:
    """Inspect #1375, #2249: a viewer died of large logs. Words are shown of at most 200 items a list."""
    small = await report_of(server, tmp_path)
    page = as_html(replace(small, runs=tuple(summarize(copied(run.evidence, 40)) for run in small.runs)))
    assert page.count('<details class="item won">') == MOST_SHOWN
    assert f"The first {MOST_SHOWN} of 280" in page
    assert len(page) < 1_000_000


def copied(evidence: RunEvidence, times: int) -> RunEvidence:
    """The same run with so many copies of each item."""
    rows = {
        (f"{item}-{n}", sample): replace(row, item=row.item.model_copy(update={"id": f"{item}-{n}"}))
        for (item, sample), row in evidence.rows.items()
        for n in range(times)
    }
    return replace(evidence, rows=rows)


def test_contamination_is_found_in_other_writing_and_unlike_texts_are_not() -> None:
    items = [
        Item.model_validate({"id": name, "turns": [text], "cluster": cluster})
        for name, text, cluster in (
            ("sky", "Why is the sky blue during the day and red in the evening?", None),
            ("sky-2", "Why is the sky blue during the day and red in the evenings?", None),
            ("zh", "請用兩句話解釋為什麼白天的天空是藍色的，傍晚卻是紅色的。", None),
            ("ferry-1", "The ferry leaves at nine and carries ten cars. When does it leave?", "ferry"),
            ("ferry-2", "The ferry leaves at nine and carries ten cars. How many cars?", "ferry"),
            ("short", "hello there", None),
        )
    ]
    seen = [
        Seen("gen_1", "WHY is the sky blue, during the day — and red in the evening"),
        Seen("gen_2", "请用两句话解释为什么白天的天空是蓝色的"),
        Seen("gen_3", "請用兩句話解釋為什麼白天的天空是藍色的，傍晚卻是紅色的呢？"),
        Seen("gen_4", "Why is the sea salty and why are rivers not salty at all?"),
        Seen("gen_5", "hello there you"),
    ]
    found = find_contamination(items, seen)
    assert [(match.item, match.where, match.kind) for match in found.matches] == [
        ("sky", "gen_1", "exact"), ("sky-2", "gen_1", "near"), ("zh", "gen_3", "near"),
    ]  # fmt: skip
    assert [(match.item, match.where) for match in found.duplicates] == [("sky-2", "sky")]
    for match in found.matches[1:]:
        text = next(item.turns[0] for item in items if item.id == match.item)
        other = next(one.text for one in seen if one.where == match.where)
        assert match.similarity == similarity(text, other) >= 0.7
    assert "1 were asked word by word and 2 nearly so among the last 5 prompts" in found.sentence
    assert isinstance(found, Contamination)


def test_drift_names_the_slices_to_add_and_how_many() -> None:
    items = [
        Item.model_validate({"id": f"e{n}", "turns": [f"What is the number of day {n}?"]}) for n in range(9)
    ]
    items.append(Item.model_validate({"id": "z", "turns": ["天空為什麼是藍色的？"]}))
    prompts = ["為什麼天空是藍色的？"] * 50 + ["What is the name of this star?"] * 50
    drift = find_drift(items, prompts)
    assert drift.distances["language"] == pytest.approx(0.4)
    row = next(row for row in drift.rows if row.value == "zh-Hant")
    # (1 + k) / (10 + k) = 1/2 has k = 8.
    assert (row.users, row.items, row.to_add) == (0.5, 0.1, 8)
    assert [(one.value, one.items) for one in drift.to_add if one.trait == "language"] == [("zh-Hant", 8)]
    assert traits_of("Write a Python function.") == {
        "language": "en",
        "task": "code",
        "length": "up to 40 letters",
    }
    assert find_drift(items, prompts[:5]).rows == ()


def judged_by(generation: str) -> JudgmentMade:
    words = ContentRef(id="c", subject="ann", digest="hmac-sha256:0", size_bytes=1)
    return JudgmentMade(
        judgment="jdg_1", judge="sha256:1", judge_name="m", answered_as="m", judge_generation=generation, rubric="sha256:2",
        mode="single", item="itm_1", item_id="1", question="qst_1", collection="sha256:3", sides=(), order="single", asked="only",
        seed=0, verdict=None, score=7.0, held="grammar", prompt=words, raw=words, prompt_tokens=1, completion_tokens=1, total_ms=1.0,
    )  # fmt: skip


def test_users_prompts_leave_out_our_own_and_those_that_were_erased(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        for number, (subject, text) in enumerate(
            [
                ("ann", "first"),
                (SUBJECT, "ours"),
                (f"acme:{SUBJECT}", "ours"),
                ("bob", "second"),
                ("eve", "erased"),
                ("judge-set", "a judge's"),
                ("ann", "a judge's, of ann's battle"),
            ]
        ):
            words = log.content(
                subject,
                orjson.dumps(
                    {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": text}]}
                ),
            )
            said = log.content(subject, b"{}")
            event = GenerationFinished(
                generation=f"gen_{number}", endpoint="chat.completions", behaviour="sha256:1", deployment="sha256:2", alias="chat", identity="m",
                worker="w", prompt=words.ref, response=said.ref, prompt_token_digest=None, sampling=DefaultSampling(), seed=1, stream=False,
                choices=(ChoiceOutcome(index=0, finish_reason="stop", completion_tokens=1),), prompt_tokens=1, cached_tokens=0, completion_tokens=1, total_ms=1.0,
            )  # fmt: skip
            log.append_blocking(
                event, subject=event.generation, source="tiltyard/tests", contents=[words, said]
            )
        log.erase_subject("eve")
        log.append_blocking(judged_by("gen_6"), subject="jdg_1", source="tiltyard/tests")
        assert [one.text for one in users_prompts(log)] == ["second", "first"]
        assert [one.where for one in users_prompts(log, most=4)] == ["gen_3"]
