"""Objectives through their doors: settings, command, API, metrics."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from log_diary import NOW_US, Diary, diary
from tiltyard.cli.main import main
from tiltyard.cli.operators import KeyOperators
from tiltyard.cli.settings import parse
from tiltyard.costs.look import Costs
from tiltyard.errors import ConfigurationError, StorageFailed, TiltyardError
from tiltyard.gateway.keyring import KeyRing
from tiltyard.objectives.declaration import DEFAULTS, in_force
from tiltyard.objectives.figures import Figures
from tiltyard.objectives.look import Objectives
from tiltyard.rating.costs import CostSettings
from tiltyard.telemetry.objective_metrics import ObjectiveMetrics
from tiltyard.web.failures import on_tiltyard_error
from tiltyard.web.operations_api import operations_routes


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Diary]:
    (tmp_path / "data").mkdir()
    with diary(tmp_path / "data") as opened:
        yield opened


def test_settings_come_on_top_of_the_defaults_replace_them_and_take_them_away() -> None:
    said = parse(
        '[objectives.errors]\nkind = "error_rate"\ntarget = 0.999\nwindow_days = 7\n'
        '[objectives.vip]\nkind = "time_to_first_token"\ntarget = 0.99\nthreshold_ms = 500\nslice = { tenant = "acme" }\n'
        '[objectives.data-lag]\nkind = "data_lag"\nenabled = false\n',
        "tiltyard.toml",
    ).objectives
    found = in_force(said)
    assert set(found) == {*DEFAULTS, "vip"} - {"data-lag"}
    assert (found["errors"].target, found["errors"].window_minutes) == (0.999, 7 * 1440)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('kind = "speed"', "objectives.x.kind: this is 'speed'; it must be 'time_to_first_token', "),
        ('kind = "error_rate"', "objectives.x: kind error_rate needs a target, such as target = 0.99"),
        ('kind = "error_rate"\ntarget = 99', "objectives.x.target: this is 99; it must be less than 1"),
        ('kind = "data_lag"\ntarget = 0.9', "objectives.x: kind data_lag has no target: leave it out"),
        ('kind = "time_to_first_token"\ntarget = 0.9', "objectives.x: kind time_to_first_token needs threshold_ms"),
        ('kind = "error_rate"\ntarget = 0.9\nthreshold_ms = 5', "objectives.x: kind error_rate is no latency"),
        (
            'kind = "vote_write"\ntarget = 0.9\nslice = { tenant = "t" }',
            "objectives.x: kind vote_write cannot be sliced by tenant; by: none",
        ),
        (
            'kind = "error_rate"\ntarget = 0.8',
            "objectives.x: with target 0.8 the error budget burns at most 5 times too fast, and nothing pages below 6",
        ),
        ('kind = "error_rate"\ntarget = 0.9\nwindow_days = 1', "objectives.x.window_days: this is 1; it must be at least 3"),
        (
            'kind = "error_rate"\ntarget = 0.9\nslice = { alias = "tchat" }',
            "objectives.x.slice.alias: there is no alias or identity 'tchat'",
        ),
        ('kind = "error_rate"\ntarget = 0.9\ngoal = 1', "objectives.x.goal: there is no key goal here; known: kind, "),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_name_the_key_and_the_fix(text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse(f"[objectives.x]\n{text}\n", "tiltyard.toml")
    assert expected in refused.value.message


def run(tmp_path: Path, *words: str) -> tuple[int, str]:
    settings = tmp_path / "tiltyard.toml"
    settings.touch()
    done = CliRunner().invoke(
        main, ["objectives", "--data", str(tmp_path / "data"), "--config", str(settings), *words]
    )
    return done.exit_code, done.output


def test_the_command_shows_a_table_and_exits_with_3_when_something_pages(book: Diary, tmp_path: Path) -> None:
    code, shown = run(tmp_path)
    assert code == 0
    assert "nothing was seen in its window" in shown
    assert "error rate: 99% good in 30 days" in shown
    book.at_us = time.time_ns() // 1000
    book.battle()
    book.reveal()
    code, shown = run(tmp_path)
    assert code == 3
    assert "this must never happen and did: 1" in shown
    assert "reveal-before-vote: stop the arena: `tiltyard events tail --type sides.revealed`" in shown


def test_the_command_tells_programs_what_the_api_tells(book: Diary, tmp_path: Path) -> None:
    book.at_us = time.time_ns() // 1000
    book.judgment("cut")
    code, shown = run(tmp_path, "--json")
    told = json.loads(shown)
    assert (code, told["state"], told["through"]) == (0, "no data", 1)
    judging = next(one for one in told["objectives"] if one["name"] == "judge-parsing")
    assert {key: judging[key] for key in ("kind", "target", "total", "bad", "good_share", "budget_left", "reason")} == {
        "kind": "judge_parse_failures", "target": 0.95, "total": 1, "bad": 1, "good_share": 0, "budget_left": -19,
        "reason": "too_few",
    }  # fmt: skip


def served(book: Diary) -> TestClient:
    operators = KeyOperators(book.log, keys_required=False, scope="admin")
    routes = operations_routes(
        Objectives(book.log, DEFAULTS), Costs(book.log, CostSettings()), operators, clock_us=lambda: NOW_US
    )
    return TestClient(Starlette(routes=routes, exception_handlers={TiltyardError: on_tiltyard_error}))


def test_the_api_is_for_keys_that_may_look_after_the_server(book: Diary) -> None:
    with served(book) as asked:  # before the first key the server is one's own
        assert asked.get("/api/objectives").json()["state"] == "no data"
    keys = KeyRing(book.log)
    admin, other = keys.issue("t", ("admin",)).secret, keys.issue("t", ("inference",)).secret
    with served(book) as asked:
        assert asked.get("/api/objectives").status_code == 401
        refused = asked.get("/api/objectives", headers={"authorization": f"Bearer {other}"})
        assert refused.status_code == 403
        assert "operations need the scope admin" in refused.json()["error"]["message"]
        told = asked.get("/api/objectives", headers={"authorization": f"Bearer {admin}"})
        assert [one["name"] for one in told.json()["objectives"]] == list(DEFAULTS)


def scrape(figures: Figures) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(ObjectiveMetrics(figures))
    lines = generate_latest(registry).decode().splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


def test_metrics_say_what_the_report_says_and_nothing_of_what_was_not_seen(book: Diary) -> None:
    book.answers(30, NOW_US)
    book.answers(10, NOW_US, finish="failed")
    shown = scrape(Figures(Objectives(book.log, in_force({})), clock_us=lambda: NOW_US))
    assert shown['tiltyard_objective_state{objective="errors"}'] == 3
    assert shown['tiltyard_objective_state{objective="vote-write"}'] == 0
    assert shown['tiltyard_objective_burn_rate{objective="errors",window="5m"}'] == pytest.approx(25)
    assert shown['tiltyard_objective_events{objective="errors",window="6h"}'] == 40
    assert shown['tiltyard_objective_error_budget_left{objective="errors"}'] == pytest.approx(-24)
    assert not any("burn_rate" in name and "vote-write" in name for name in shown)
    assert not any("value" in name for name in shown)


def test_a_scrape_does_not_wait_for_a_long_log_and_has_no_figures_until_it_is_read(
    book: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiltyard.objectives.figures.FIRST_WAIT_S", 0.0)
    go = threading.Event()

    class Slow(Objectives):
        def look(self, now_us: int, *more: object) -> object:  # type: ignore[override]
            go.wait(20)
            return super().look(now_us)

    figures = Figures(Slow(book.log, in_force({})), clock_us=lambda: NOW_US)
    assert scrape(figures) == {}
    go.set()
    figures._first and figures._first.join(20)
    assert len(scrape(figures)) >= len(DEFAULTS)


def test_a_log_that_cannot_be_read_leaves_the_figures_away(book: Diary) -> None:
    class Broken(Objectives):
        def look(self, now_us: int, *more: object) -> object:  # type: ignore[override]
            raise StorageFailed("the disk is gone")

    figures = Figures(Broken(book.log, in_force({})), clock_us=lambda: NOW_US)
    figures._read.set()
    assert scrape(figures) == {}
