"""What a log says of costs: small logs, each figure worked by hand in its comment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from log_diary import DAY_US, HOUR_US, MACHINE, NOW_US, PLUM, QUINCE, Diary, diary
from tiltyard.cli.main import main
from tiltyard.costs.attribution import shared_seconds
from tiltyard.costs.look import Costs
from tiltyard.costs.report import CostReport
from tiltyard.costs.stretch import since_us
from tiltyard.costs.sums import sums_by
from tiltyard.errors import InvalidRequest
from tiltyard.events.schema import (
    BattleTurnFinished,
    ContentRef,
    EvalItemFinished,
    IdentityRegistered,
    ReleaseEnded,
    ReleaseStarted,
    TextsEmbedded,
    VoteWithdrawn,
    WorkerReady,
    WorkerStopped,
)
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import Behaviour, DefaultSampling, Deployment, Weights
from tiltyard.rating.costs import CostSettings, TokenPrices

XEON = "Intel Xeon"
SECOND_US = 1_000_000


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Diary]:
    (tmp_path / "data").mkdir()
    with diary(tmp_path / "data") as opened:
        yield opened


def register(book: Diary, hardware: str = XEON, deployment: str = MACHINE) -> None:
    behaviour = Behaviour(
        weights=Weights(digest=PLUM, size_bytes=1, stored_as=("F32",), served_as="as-stored"),
        architecture={}, tokenizer=PLUM, chat_template=None, default_sampling=DefaultSampling(),
    )  # fmt: skip
    machine = Deployment(
        behaviour=PLUM, engine_build="1", isa="avx2", threads=2, block_tokens=16, kv_blocks=8, max_batch_tokens=32,
        hardware=hardware,
    )  # fmt: skip
    registered = IdentityRegistered(
        name="plum", behaviour=PLUM, deployment=deployment, behaviour_manifest=behaviour,
        deployment_manifest=machine, declaration=IdentityDeclaration(model="m"),
    )  # fmt: skip
    book.write(registered, "plum")


def worked(book: Diary, begin_s: float, first_s: float, last_s: float, **more: object) -> str:
    """A generation whose prompt was worked on from one second on, with its first and last token; seconds before NOW."""
    return book.answer(
        NOW_US - round(last_s * SECOND_US),
        prefill_ms=(begin_s - first_s) * 1e3,
        decode_ms=(first_s - last_s) * 1e3,
        first_ms=(begin_s - first_s) * 1e3 + 7000,  # seven seconds in the queue are nobody's
        total_ms=(begin_s - last_s) * 1e3 + 7000,
        **more,  # type: ignore[arg-type]
    )


def look(book: Diary, costs: CostSettings | None = None, since: int = DAY_US) -> CostReport:
    return Costs(book.log, costs or CostSettings()).look(since_us=NOW_US - since, until_us=NOW_US)


def test_each_second_is_shared_by_those_who_are_there() -> None:
    """Three stretches: 0-6, 2-4 and 2-6. Alone for 2 s; by three for 2 s; by two for 2 s."""
    charged = shared_seconds(np.array([0.0, 2.0, 2.0]), np.array([6.0, 4.0, 6.0]))
    assert charged.tolist() == pytest.approx([2 + 2 / 3 + 1, 2 / 3, 2 / 3 + 1])
    assert charged.sum() == pytest.approx(6)


def test_charges_add_up_to_the_time_in_which_anybody_worked() -> None:
    rng = np.random.default_rng(7)
    starts = rng.integers(0, 500, 200).astype(float)
    ends = starts + rng.integers(0, 6, 200)
    covered = {second for a, b in zip(starts, ends, strict=True) for second in range(int(a), int(b))}
    assert shared_seconds(starts, ends).sum() == pytest.approx(len(covered))


def test_prefill_and_decode_are_charged_apart_and_a_neighbour_shares(book: Diary) -> None:
    register(book)
    # one: prompt from 100 to 90 s ago, answer until 70. other: prompt from 80 to 70, answer until 50.
    worked(book, 100, 90, 70, prompt_tokens=1000, tokens=200)
    worked(book, 80, 70, 50, prompt_tokens=3000, cached_tokens=2000, tokens=100, service_class="batch")
    report = look(book, CostSettings(hours={XEON: 36.0}))  # a hundredth a second
    by_class = {line.service_class: line for line in report.lines}
    one, other = by_class["interactive"], by_class["batch"]
    # from 80 to 70 they share: one has 10 s of prefill and 10 + 5 of decode; other 5 and 20
    assert (one.prefill_s, one.decode_s) == (pytest.approx(10), pytest.approx(15))
    assert (other.prefill_s, other.decode_s) == (pytest.approx(5), pytest.approx(20))
    assert (one.prefill_amount, one.decode_amount) == (pytest.approx(0.10), pytest.approx(0.15))
    assert one.prefill_million == pytest.approx(100)  # 0.10 for 1,000 tokens
    assert one.decode_million == pytest.approx(750)  # 0.15 for 200
    assert (other.saved_s, other.saved_amount) == (
        pytest.approx(10),
        pytest.approx(0.10),
    )  # twice the 1,000 computed
    assert one.hardware == XEON
    assert report.unpriced == ()
    (both,) = sums_by(report.lines, ())
    assert (both.requests, both.prefill_s + both.decode_s) == (2, pytest.approx(50))
    assert both.amount == pytest.approx(0.5)


def test_workers_share_nothing_with_each_other(book: Diary) -> None:
    worked(book, 20, 10, 0, worker="w-0")
    worked(book, 20, 10, 0, worker="w-1")
    report = look(book, CostSettings(hours={"w-0": 3600.0, "w-1": 7200.0}))
    (line,) = report.lines
    assert line.prefill_s + line.decode_s == pytest.approx(40)
    assert line.amount == pytest.approx(20 * 1 + 20 * 2)
    assert [(one.worker, one.busy_s, one.hour_price) for one in report.workers] == [
        ("w-0", pytest.approx(20), 3600.0),
        ("w-1", pytest.approx(20), 7200.0),
    ]


def test_prices_by_tokens_go_first_and_the_cache_saves_what_its_price_says(book: Diary) -> None:
    worked(book, 20, 10, 0, prompt_tokens=1_000_000, cached_tokens=400_000, tokens=50_000)
    prices = TokenPrices(prompt_million=2.0, completion_million=8.0, cached_million=0.5)
    (line,) = look(book, CostSettings(prices={"plum": prices}, machine_hour=99.0)).lines
    assert line.priced_by == "tokens"
    assert line.prefill_amount == pytest.approx(0.6 * 2 + 0.4 * 0.5)
    assert line.decode_amount == pytest.approx(0.05 * 8)
    assert line.saved_amount == pytest.approx(0.4 * 1.5)
    full = TokenPrices(prompt_million=2.0, completion_million=8.0)
    (line,) = look(book, CostSettings(prices={"plum": full})).lines
    assert (line.prefill_amount, line.saved_amount) == (pytest.approx(2.0), 0)


def test_without_a_price_there_are_seconds_and_the_setting_to_fill_in(book: Diary) -> None:
    register(book)
    worked(book, 20, 10, 0)
    report = look(book)
    (line,) = report.lines
    assert (line.priced_by, line.amount, line.prefill_million) == ("nothing", None, None)
    assert (line.prefill_s, line.decode_s) == (pytest.approx(10), pytest.approx(10))
    assert report.unpriced == ('costs.hours."Intel Xeon"',)


def test_an_engine_that_tells_no_times_needs_prices_by_tokens(book: Diary) -> None:
    book.answer(identity="theirs", prefill_ms=None, worker="vllm")
    report = look(book, CostSettings(machine_hour=1.0))
    (line,) = report.lines
    assert (line.amount, line.untimed, report.unpriced) == (None, 1, ("costs.prices.theirs",))


def test_what_was_cut_off_before_its_first_token_costs_nothing(book: Diary) -> None:
    worked(book, 20, 10, 0)
    book.answer(first_ms=None, decode_ms=None, tokens=0, finish="cancelled")
    (line,) = look(book, CostSettings(machine_hour=3600.0)).lines
    assert (line.amount, line.untimed) == (pytest.approx(20), 1)


def test_a_name_under_hours_that_is_nobody_is_said(book: Diary) -> None:
    register(book)
    worked(book, 20, 10, 0)
    report = look(book, CostSettings(hours={XEON: 1.0, "w": 1.0, "Intel Xenon": 2.0}))
    assert report.unmatched == ("Intel Xenon",)


def test_idle_hours_cost_and_are_nobodys_request(book: Diary) -> None:
    ready = WorkerReady(worker="w", identities={"plum": PLUM}, load_ms=5.0)
    book.write(ready, "w", at_us=NOW_US - 30 * HOUR_US)
    worked(book, 3600 * 2, 3600 * 1.5, 3600)
    book.write(WorkerStopped(worker="w", reason="stopped"), "w", at_us=NOW_US - HOUR_US // 2)
    (one,) = look(book, CostSettings(machine_hour=2.0)).workers
    # there for 23.5 of the last 24 hours, busy for one of them
    assert (one.ready_s, one.busy_s) == (pytest.approx(23.5 * 3600), pytest.approx(3600))
    assert one.idle_amount == pytest.approx(22.5 * 2)


def test_embeddings_are_counted_by_their_tokens(book: Diary) -> None:
    embedded = TextsEmbedded(
        alias="plum",
        identity="plum",
        behaviour=PLUM,
        worker="w",
        texts=2,
        prompt_tokens=500_000,
        total_ms=9.0,
    )
    book.write(embedded)
    prices = {"plum": TokenPrices(prompt_million=2.0, completion_million=8.0)}
    (line,) = look(book, CostSettings(prices=prices)).lines
    assert (line.service_class, line.amount, line.untimed) == ("embeddings", pytest.approx(1.0), 1)


def finish(book: Diary, battle: str, a: str, b: str | None, turn: int = 0) -> None:
    ended = BattleTurnFinished(
        battle=battle, turn=turn, attempt=0, generation_a=a, generation_b=b, finish_a="stop", finish_b="stop"
    )
    book.write(ended, battle)


SECOND = CostSettings(machine_hour=3600.0)  # one a second


def test_a_vote_costs_its_answers_and_the_battles_that_brought_none(book: Diary) -> None:
    book.at_us = NOW_US - 100 * SECOND_US
    book.battle("bat_1")
    finish(book, "bat_1", worked(book, 90, 88, 86), worked(book, 85, 84, 83))  # 4 s and 2 s
    finish(book, "bat_1", worked(book, 80, 79, 78), None, turn=1)  # 2 s
    book.vote("bat_1")
    book.battle("bat_2")
    finish(book, "bat_2", worked(book, 70, 65, 60), worked(book, 50, 45, 40))  # 20 s, and nobody voted
    found = look(book, SECOND).votes
    assert (found.votes, found.own.generations, found.without_vote.generations) == (1, 3, 2)
    assert found.own_amount == pytest.approx(8)
    assert found.full_amount == found.full_s == pytest.approx(28)
    withdrawn = VoteWithdrawn(battle="bat_1", voter="voter-1", vote="x", reason="slip")
    book.write(withdrawn, "bat_1", at_us=NOW_US)
    assert look(book, SECOND).votes.votes == 0
    assert look(book, SECOND).votes.full_amount is None


def started(book: Diary) -> None:
    plan = ReleaseStarted(
        release="rel_1", alias="chat", number=1, candidate="plum", candidate_behaviour=PLUM, production="quince",
        production_behaviour=QUINCE, plan={}, plan_digest=MACHINE, by="ann", why="better",
    )  # fmt: skip
    book.write(plan, "rel_1")


def test_a_release_decision_costs_what_would_not_have_been_spent_without_it(book: Diary) -> None:
    book.at_us = NOW_US - 3 * DAY_US
    worked(book, 3600 * 24 * 3 + 10, 3600 * 24 * 3 + 5, 3600 * 24 * 3)  # before it began
    started(book)
    worked(book, 1000, 999, 998, release="rel_1", arm="shadow", shadow_of="gen_x")  # 2 s
    worked(book, 990, 985, 980, release="rel_1", arm="candidate")  # 10 s that users wanted
    item = worked(book, 970, 968, 967)  # 3 s
    book.write(
        EvalItemFinished(
            run="evr_1", item="1", item_digest=MACHINE, alias="plum", behaviour=PLUM, sample=0, generations=(item,),
            transcript=ContentRef(id="x", subject="house", digest="d", size_bytes=1), output_digest="d", score=1.0, verdicts=(),
            finish_reason="stop", prompt_tokens=1, cached_tokens=0, completion_tokens=1, total_ms=1.0, tries=0,
        )
    )  # fmt: skip
    judging = worked(book, 960, 957, 953)  # 7 s
    book.judgment(judge_generation=judging)
    book.judgment(cost_usd=0.25)
    book.battle("bat_1")
    finish(book, "bat_1", worked(book, 940, 938, 935), None)  # 5 s
    book.vote("bat_1")
    ended = ReleaseEnded(release="rel_1", outcome="promoted", why="all passed")
    book.write(ended, "rel_1", at_us=NOW_US - 60 * SECOND_US)
    worked(book, 50, 49, 48, release="", arm="production")
    (found,) = look(book, SECOND, since=HOUR_US).decisions
    assert (found.outcome, found.votes) == ("promoted", 1)
    parts = (found.shadow, found.evals, found.judging, found.people, found.traffic)
    assert [part.amount for part in parts] == [
        pytest.approx(2), pytest.approx(3), pytest.approx(7.25), pytest.approx(5), pytest.approx(10),
    ]  # fmt: skip
    assert found.judging.judge_calls == 2
    assert found.total.amount == pytest.approx(17.25)
    euro = SECOND.model_copy(update={"currency": "EUR"})
    (found,) = look(book, euro, since=HOUR_US).decisions
    assert (found.judging.amount, found.judging.unpriced) == (pytest.approx(7), 1)  # dollars are no euros


def test_looking_again_reads_on_and_an_older_stretch_is_read_when_asked_for(book: Diary) -> None:
    worked(book, 7200 + 10, 7200 + 5, 7200)
    costs = Costs(book.log, SECOND)
    assert costs.look(since_us=NOW_US - HOUR_US, until_us=NOW_US).lines == ()
    worked(book, 30, 20, 10)
    (line,) = costs.look(since_us=NOW_US - HOUR_US, until_us=NOW_US).lines
    assert line.amount == pytest.approx(20)
    whole = costs.look(since_us=NOW_US - DAY_US, until_us=NOW_US)
    assert whole.lines[0].amount == pytest.approx(30)
    assert whole == Costs(book.log, SECOND).look(since_us=NOW_US - DAY_US, until_us=NOW_US)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30m", 1800), ("24h", 86_400), ("7d", 604_800), ("2w", 1_209_600), ("2026-11-28", None)],
)
def test_a_stretch_is_written_as_people_do(text: str, seconds: int | None) -> None:
    now_us = 1_796_000_000_000_000  # 2026-11-30 00:53:20 UTC
    began = since_us(text, now_us)
    assert began == (now_us - seconds * SECOND_US if seconds else 1_795_824_000_000_000)


@pytest.mark.parametrize("text", ["", "7", "0d", "-3d", "9999999w", "yesterday", "2999-01-01", "1960-01-01"])
def test_a_stretch_that_is_none_says_how_one_is_written(text: str) -> None:
    with pytest.raises(InvalidRequest, match="write a time up to now such as 30m") as refused:
        since_us(text, 1_796_000_000_000_000)
    assert refused.value.param == "since"


def run(tmp_path: Path, settings: str, *words: str) -> str:
    (tmp_path / "tiltyard.toml").write_text(settings)
    place = ["--data", str(tmp_path / "data"), "--config", str(tmp_path / "tiltyard.toml")]
    done = CliRunner().invoke(main, ["cost", *place, *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_shows_money_where_there_are_prices_and_seconds_where_not(
    book: Diary, tmp_path: Path
) -> None:
    register(book)
    worked(book, 20, 10, 0, prompt_tokens=1000, tokens=100)
    book.battle()
    book.vote()
    shown = run(tmp_path, '[costs.hours]\n"Intel Xeon" = 36\n', "--since", "2026-11-01")
    assert "prefill USD" in shown
    assert " 0.1 " in shown  # ten seconds of each kind
    assert " 100 " in shown  # a million prompt tokens
    assert "a vote: 0 USD" in shown
    bare = run(tmp_path, "", "--since", "2026-11-01")
    assert "1e+04 s" in bare  # seconds of a million prompt tokens
    assert 'no price: fill in costs.hours."Intel Xeon" (docs/cost.md)' in bare


def test_the_command_adds_up_by_what_is_asked(book: Diary, tmp_path: Path) -> None:
    worked(book, 20, 10, 0)
    worked(book, 40, 30, 20, service_class="batch")
    shown = json.loads(run(tmp_path, "", "--json", "--since", "2026-11-01", "--by", "identity"))
    (line,) = shown["sums"]
    assert {key: line[key] for key in ("service_class", "identity", "requests", "prefill_s", "amount")} == {
        "service_class": "all", "identity": "plum", "requests": 2, "prefill_s": 20.0, "amount": None,
    }  # fmt: skip
    assert len(shown["lines"]) == 2
