"""A fixed set asked of the real thing: killed, gone on with, repeated, and its report read in a real browser."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright
from running_tiltyard import ROOT, Tiltyard

from tiltyard.events.log import EventLog
from tiltyard.events.schema import EvalItemFinished, EventData, GenerationFinished

CHROMIUM = Path("/usr/bin/chromium")
ITEMS = 5
COMMAND = ("eval", "run", "core", "chat", "--limit", str(ITEMS), "--max-tokens", "24", "--temperature", "0.8")
COMPARE = ("--compare", "smollm2-int4")


def events(yard: Tiltyard, kind: type[EventData]) -> list[EventData]:
    with EventLog.open(yard.data / "log.db", keys=yard.data / "keys.db", create=False) as log:
        return [event.data for event in log.read(types=(kind,))]


def asked(yard: Tiltyard) -> list[GenerationFinished]:
    """Answers that were made for fixed sets."""
    return [
        one
        for one in events(yard, GenerationFinished)
        if isinstance(one, GenerationFinished) and one.prompt and one.prompt.subject == "tiltyard-eval"
    ]


@pytest.fixture(scope="module")
def report(yard: Tiltyard, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What the run says at its end, after it was killed in the middle."""
    out = tmp_path_factory.mktemp("report") / "core"
    command = (*COMMAND, *COMPARE, "--url", yard.url, "--out", str(out), "--concurrency", "2")
    process = subprocess.Popen(
        [sys.executable, "-m", "tiltyard.cli.main", *command],
        cwd=ROOT,
        env=yard.environment,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while len(events(yard, EvalItemFinished)) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
    process.send_signal(signal.SIGKILL)
    assert process.wait(10) == -signal.SIGKILL
    kept = events(yard, EvalItemFinished)
    assert len(kept) < ITEMS
    done = yard.run(*command, "--json")
    assert done.returncode == 0, done.stderr
    assert events(yard, EvalItemFinished)[: len(kept)] == kept
    said: dict[str, object] = json.loads(done.stdout)
    return said


def test_what_was_killed_goes_on_and_nothing_is_generated_twice(
    yard: Tiltyard, report: dict[str, object]
) -> None:
    """Inspect #913, PR #4933, #5343: retries lost or ran finished samples again. Here each answer is made once, by the gateway's own log."""
    made = asked(yard)
    assert len({(one.identity, one.seed) for one in made}) == len(made) == 2 * ITEMS
    rows = [one for one in events(yard, EvalItemFinished) if isinstance(one, EvalItemFinished)]
    assert len({(row.run, row.item, row.sample) for row in rows}) == len(rows) == 2 * ITEMS
    assert sorted(generation for row in rows for generation in row.generations) == sorted(
        one.generation for one in made
    )
    runs = report["runs"]
    assert isinstance(runs, list)
    assert [run["samples"] for run in runs] == [ITEMS, ITEMS]
    digests = [run["behaviour"] for run in runs]
    assert {one.behaviour for one in made} == set(digests)


def test_the_same_run_again_is_the_same_bytes_at_any_temperature(
    yard: Tiltyard, report: dict[str, object], tmp_path: Path
) -> None:
    """lm-eval #2077, #1213, #367, AlpacaEval #382: the same evaluation gave other results."""
    done = yard.run(
        *COMMAND,
        "--url",
        yard.url,
        "--out",
        str(tmp_path / "r"),
        "--repeat",
        "1",
        "--concurrency",
        "5",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [(one["same"], one["both"]) for one in said["repetitions"]] == [(ITEMS, ITEMS)]
    assert said["runs"] == report["runs"][:1]  # type: ignore[index]
    assert len(asked(yard)) == 3 * ITEMS
    text = (tmp_path / "r.md").read_text("utf-8")
    assert f"{ITEMS} of {ITEMS} outputs are the same bytes; the digest of all outputs is equal" in text


def test_choices_are_scored_by_the_models_own_log_probabilities(yard: Tiltyard, tmp_path: Path) -> None:
    before = len(asked(yard))
    done = yard.run(
        "eval",
        "run",
        "core",
        "chat",
        "--slice",
        "skill=choices",
        "--limit",
        "2",
        "--url",
        yard.url,
        "--out",
        str(tmp_path / "r"),
        "--json",
    )
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert (run["samples"], run["unscored"], run["mean"]) == (2, {}, 1.0)
    assert all(one.choices[0].completion_tokens == 1 for one in asked(yard)[before:])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip("no /usr/bin/chromium; apt-get install chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu", "--no-first-run"]
        )
        yield started
        started.close()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_a_browser_reads_the_report_offline(
    report: dict[str, object], browser: Browser, scheme: str, width: int
) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True, java_script_enabled=False
    )  # type: ignore[arg-type]
    page = context.new_page()
    fetched: list[str] = []
    faults: list[str] = []
    page.on("request", lambda request: fetched.append(request.url))
    page.on("console", lambda message: faults.append(message.text))
    page.goto(f"file://{report['html']}")
    assert page.title().startswith("core: chat@")
    assert fetched == [page.url]
    assert faults == []
    assert page.locator("h1").inner_text().count("@") == 2
    assert page.get_by_role("heading", name="The same again").is_visible()
    item = page.locator("details.item").first
    assert not item.locator("pre").first.is_visible()
    item.locator("summary").click()
    assert item.locator("pre").first.is_visible()
    box = page.locator("main").bounding_box()
    assert box is not None
    assert box["width"] <= width
    assert all(one.bounding_box()["width"] <= width for one in page.locator("section").all())  # type: ignore[index]
    context.close()
