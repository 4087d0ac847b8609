"""What a release leaves behind: the account, the report that opens offline, the model card, the signature over all of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from release_stage import CANARY, Scene

from tiltyard.cli.main import main
from tiltyard.errors import NotFound
from tiltyard.events.schema import ReleaseOrdered
from tiltyard.identity.signature import BadSignature
from tiltyard.release.account import Account, account_of
from tiltyard.release.card import model_card
from tiltyard.release.gate_chart import Words, gate_chart
from tiltyard.release.report import as_html, as_markdown
from tiltyard.release.signed_report import CARD, HTML, report_files, verify_report, write_report


def told(scene: Scene, plan: str = CANARY) -> Account:
    """A canary of whose candidate's requests one of five failed; ended by hand."""
    scene.start(plan)
    scene.settled()
    for _ in range(6):
        scene.now_us += 60_000_000
        scene.serve("baseline", 10)
        scene.serve("candidate", 8, tenant="acme")
        scene.serve("candidate", 2, finish="failed", tenant="acme")
        scene.settled()
    return account_of(scene.log, scene.settled())


def test_an_account_keeps_every_look_every_slice_and_every_failure(scene: Scene) -> None:
    account = told(scene)
    (gate,) = account.stages[0].gates
    # at the start, then whenever it has 10 more and half as many again
    assert [look.judged.samples for look in gate.looks] == [0, 10, 20, 30, 50]
    assert gate.newest is not None
    assert gate.newest.effect == pytest.approx(0.2)
    assert (gate.threshold, gate.kind, gate.more_is_better, gate.paired) == (0.2, "service", False, False)
    arm = account.tally.arms["candidate"]
    assert (arm.requests, arm.failed, arm.first_ms(0.5)) == (60, 12, 50.0)
    (acme,) = (row for row in account.tally.slices() if row.kind == "tenant")
    assert (acme.value, acme.candidate.requests, acme.other.requests, acme.apart) == ("acme", 60, 0, False)
    assert account.tally.failed == 12
    assert [one.field for one in account.differences or ()] == ["behaviour.default_sampling.temperature"]


def test_a_tally_that_was_kept_reads_only_what_is_new(scene: Scene) -> None:
    account = told(scene)
    scene.serve("candidate", 3)
    again = account_of(scene.log, account.state, account.tally)
    assert again.tally.arms["candidate"].requests == 63
    assert account_of(scene.log, account.state).tally.arms["candidate"].requests == 63


def test_a_request_that_the_client_ended_is_no_failure_and_one_that_was_diverted_is(scene: Scene) -> None:
    scene.start()
    scene.settled()
    scene.serve("candidate", 2, finish="cancelled")
    scene.serve("production", 1, diverted_from="candidate")
    account = account_of(scene.log, scene.settled())
    arm = account.tally.arms["candidate"]
    assert (arm.requests, arm.failed) == (1, 1)
    assert [one.why for one in account.tally.failures] == ["diverted"]


def test_a_chart_cuts_what_is_far_away_and_says_in_words_what_it_shows(scene: Scene) -> None:
    (gate,) = told(scene).stages[0].gates
    words = Words("<t>", "d & e", "at most", str, lambda value: f"{value:g}")
    svg = gate_chart(gate, words, name="g")
    assert svg.count('class="look"') == 4
    assert '<title id="g-t">&lt;t&gt;</title>' in svg
    assert "d &amp; e" in svg
    assert "NaN" not in svg
    assert "inf" not in svg
    assert "style=" not in svg  # a page's policy refuses inline styles
    empty = type(gate)(gate.gate)
    assert gate_chart(empty, words, name="g") == ""


def test_what_others_wrote_is_text_in_both_reports_and_the_page_fetches_nothing(scene: Scene) -> None:
    why = "<script>alert(1)</script> | ![x](http://e)"
    scene.start(CANARY.replace("alias: chat", f"alias: chat\nwhy: '{why}'"))
    scene.log.append_blocking(
        ReleaseOrdered(release=scene.started.release, order="pause", index=0, by="<b>", why=why),
        subject=scene.started.release,
        source="test",
    )
    account = account_of(scene.log, scene.settled())
    markdown, page = as_markdown(account), as_html(account)
    assert "alert" in markdown
    assert markdown.count("<") == markdown.count("\\<")
    assert "](" not in markdown
    assert "&lt;script&gt;alert(1)&lt;/script&gt; | ![x](http://e)" in page
    for live in ("<script", "<b>", "<img", "<link", "href=", "src=", "url("):
        assert live not in page


def test_files_are_held_to_their_signature(scene: Scene, tmp_path: Path) -> None:
    account = told(scene)
    files = report_files(scene.log, account)
    assert files == report_files(scene.log, account_of(scene.log, account.state))
    write_report(files, tmp_path / "r")
    signed = verify_report(tmp_path / "r")
    assert signed.predicate["release"] == account.state.id
    assert verify_report(tmp_path / "r", signed.public_key) == signed
    with pytest.raises(BadSignature, match="the key that signed is"):
        verify_report(tmp_path / "r", "00" * 32)
    page = tmp_path / "r" / HTML
    page.write_bytes(page.read_bytes().replace(b"20.00 points", b"2.00 points"))
    with pytest.raises(BadSignature, match=r"report\.html was changed"):
        verify_report(tmp_path / "r")
    page.unlink()
    with pytest.raises(NotFound, match=r"lacks report\.html"):
        verify_report(tmp_path / "r")


def test_the_card_is_a_bill_of_materials_by_the_official_schema(scene: Scene) -> None:
    """CycloneDX 1.6 as OWASP publishes it, through its own library's strict validator."""
    card = model_card(scene.log, told(scene))
    value = json.loads(card)
    (model,) = value["components"]
    metrics = {one["type"]: one for one in model["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]}
    gate = metrics["gate error_rate worse_by 0.2: hold"]
    assert (gate["value"], gate["slice"]) == ("0.2", "stage canary; all; 50 samples")
    assert float(gate["confidenceInterval"]["lowerBound"]) < 0.2
    assert {"name": "tiltyard:behaviour.default_sampling.temperature", "value": "0.5"} in model["properties"]
    schemas = pytest.importorskip("cyclonedx.validation.json")
    versions = pytest.importorskip("cyclonedx.schema")
    validator = schemas.JsonStrictValidator(versions.SchemaVersion.V1_6)
    assert validator.validate_str(card.decode()) is None
    assert validator.validate_str(card.decode().replace("machine-learning-model", "horse")) is not None


def test_the_command_line_writes_prints_and_verifies(scene: Scene, tmp_path: Path) -> None:
    account = told(scene)
    (tmp_path / "tiltyard.toml").write_text('[models.m]\nsource = "hf:a/b"\n[identities.old]\nmodel = "m"\n')
    place = ["--data", str(tmp_path), "--config", str(tmp_path / "tiltyard.toml")]

    def run(*words: str, data: bool = True) -> str:
        result = CliRunner().invoke(main, ["release", *(place if data else []), *words])
        assert result.exit_code == 0, result.output
        return result.output

    assert run("report", account.state.id) == as_markdown(account)
    assert run("report", "chat", "--html") == as_html(account)
    assert json.loads(run("card", "chat"))["specVersion"] == "1.6"
    written = run("report", "chat", "--out", str(tmp_path / "out"))
    command = written.splitlines()[-1].split()
    assert command[:3] == ["tiltyard", "release", "verify"]
    verified = run(*command[2:], data=False)
    assert f"for release {account.state.id} of chat (under way" in verified
    assert CARD in verified
