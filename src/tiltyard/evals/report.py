"""Writes a comparison as one HTML file and one Markdown file; both open offline and fetch nothing.

Every word of a model or of a set is data there: escaped in HTML, fenced in Markdown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from tiltyard import __version__
from tiltyard.errors import StorageFailed
from tiltyard.evals.comparison import CheckShare, Comparison, Flip, Summary, compare, slices_of_one
from tiltyard.evals.contamination import Contamination
from tiltyard.evals.drift import Drift
from tiltyard.evals.evidence import Row, RunEvidence, set_digest_of
from tiltyard.evals.sets import EvalSet
from tiltyard.rating.paired import Estimate
from tiltyard.wire.escaping import fenced, for_markdown

MOST_SHOWN: Final = 200
"""Items of each list that are shown with their words; a browser has to open the file (Inspect #1375, #2249)."""
MOST_CHARACTERS: Final = 6_000
"""Of one answer; what is longer is cut, and says so."""


@dataclass(frozen=True)
class Repetition:
    """The same run made again: what must be the same bytes."""

    run: str
    repeat: int
    same: int
    both: int
    outputs: str


@dataclass(frozen=True)
class Report:
    """All that a report says."""

    runs: tuple[Summary, ...]
    """The one that was asked about first, then what it is compared with."""
    eval_set: EvalSet | None = None
    """For card and licence, where the set is at hand."""
    repetitions: Mapping[str, Sequence[Repetition]] = field(default_factory=dict)
    """By run."""
    contamination: Contamination | None = None
    drift: Drift | None = None
    command: str = ""
    """How to make it again."""

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """The first run against each of the others."""
        return tuple(compare(self.runs[0], other) for other in self.runs[1:])


def repetition_of(one: RunEvidence, other: RunEvidence) -> Repetition:
    """Compare two runs that should be the same."""
    both = one.rows.keys() & other.rows.keys()
    same = sum(one.rows[at].answer.output == other.rows[at].answer.output for at in both)
    return Repetition(other.run, other.started.repeat, same, len(both), other.outputs)


def write_report(report: Report, out: Path) -> tuple[Path, Path]:
    """Write `<out>.html` and `<out>.md`; raises `StorageFailed`."""
    html, markdown = out.with_name(out.name + ".html"), out.with_name(out.name + ".md")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(as_html(report), encoding="utf-8")
        markdown.write_text(as_markdown(report), encoding="utf-8")
    except OSError as error:
        raise StorageFailed(
            f"{error.filename or out} cannot be written: {error.strerror}. Name another with --out."
        ) from None
    return html, markdown


def as_html(report: Report) -> str:
    """The report as one HTML page."""
    return _environment(True).get_template("report.html").render(**_words(report))


def as_markdown(report: Report) -> str:
    """The report as Markdown."""
    return _environment(False).get_template("report.md").render(**_words(report)).rstrip() + "\n"


def headline(comparison: Comparison) -> str:
    """One sentence: who is better, by how much, and whether these items can tell."""
    one, other = (label(run) for run in (comparison.one, comparison.other))
    if comparison.one.evidence.started.behaviour == comparison.other.evidence.started.behaviour:
        same = f"{comparison.same_outputs} of {comparison.both} outputs are the same bytes"
        return f"{one} and {other} are the same identity; {same}."
    estimate = comparison.difference
    if estimate is None:
        return f"No item has a score for both {one} and {other}."
    if estimate.decided:
        better, worse = (one, other) if estimate.mean > 0 else (other, one)
        return (
            f"{better} is better than {worse} on this set: {interval(estimate, signed=True)} in mean score."
        )
    return f"These {comparison.pairs} items do not tell {one} and {other} apart: {interval(estimate, signed=True)} in mean score."


def label(summary: Summary) -> str:
    """A run's name for people."""
    started = summary.evidence.started
    return f"{started.alias}@{started.behaviour.removeprefix('sha256:')[:8]}"


def percent(value: float | None, *, signed: bool = False) -> str:
    """A score as a percentage.

    >>> percent(0.0625), percent(-0.5, signed=True), percent(None)
    ('6.2%', '−50.0%', '–')
    """
    if value is None:
        return "–"
    text = f"{value * 100:+.1f}" if signed else f"{value * 100:.1f}"
    return text.replace("-", "−") + "%"


def interval(estimate: Estimate | None, *, signed: bool = False) -> str:
    """A mean with its interval: `62.5% (45.0 to 77.1)`."""
    if estimate is None:
        return "–"
    ends = (percent(end, signed=signed).removesuffix("%") for end in (estimate.lower, estimate.upper))
    return f"{percent(estimate.mean, signed=signed)} ({' to '.join(ends)})"


@cache
def _environment(escaped: bool) -> Environment:
    made = Environment(
        loader=PackageLoader("tiltyard.evals"),
        autoescape=escaped,  # noqa: S701  # Markdown is not HTML; its words are fenced
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"label": label, "headline": headline}
    made.filters |= {
        "percent": percent,
        "interval": interval,
        "short": _short,
        "cut": _cut,
        "fenced": _fenced,
        "cell": _cell,
        "when": _when,
        "seconds": _seconds,
        "thousands": lambda number: f"{number:,}",
        "signed": lambda value: percent(value, signed=True),
        "signed_interval": lambda estimate: interval(estimate, signed=True),
        "place": _place,
        "p_value": lambda p: "< 0.001" if p < 0.001 else f"{p:.3f}",
        "reason": _reason,
    }
    return made


def _words(report: Report) -> dict[str, object]:
    first = report.runs[0].evidence
    same_set = report.eval_set is not None and first.started.set_digest == report.eval_set.digest
    wrong = [row for _, row in sorted(first.rows.items()) if row.score is not None and row.score < 1.0]
    unscored = [
        row for run in report.runs for _, row in sorted(run.evidence.rows.items()) if row.score is None
    ]
    return {
        "report": report,
        "first": report.runs[0],
        "comparisons": report.comparisons,
        "eval_set": report.eval_set if same_set else None,
        "whole": first.started.items == len(first.items)
        and set_digest_of(first.items) == first.started.set_digest,
        "slices": slices_of_one(report.runs[0]),
        "kinds": kinds_of(report.runs),
        "wrong": wrong[:MOST_SHOWN],
        "wrong_count": len(wrong),
        "unscored": unscored[:MOST_SHOWN],
        "unscored_count": len(unscored),
        "most": MOST_SHOWN,
        "said": _said,
        "asked": _asked,
        "version": __version__,
        "flips_shown": _flips_shown,
        "ways": METHODS,
    }


def kinds_of(runs: Sequence[Summary]) -> list[tuple[str, list[CheckShare]]]:
    """Each kind of check with how it went in each run."""
    by_run = [{check.kind: check for check in run.checks} for run in runs]
    kinds = sorted({kind for found in by_run for kind in found})
    return [(kind, [found.get(kind, CheckShare(kind, 0, 0, 0, 0)) for found in by_run]) for kind in kinds]


METHODS: Final = {
    "wilson": "Wilson's interval",
    "agresti-min": "Agresti and Min's interval for matched pairs",
    "t-clustered": "Student's t with errors by cluster",
    "none": "one cluster only; the spread is unknown",
}


def _flips_shown(comparison: Comparison) -> list[Flip]:
    """Losses first: they are what a release has to explain."""
    return list(comparison.flipped)[:MOST_SHOWN]


def _asked(row: Row) -> str:
    item = row.item
    parts = [f"[system] {item.system}"] if item.system else []
    return "\n\n".join([*parts, *item.turns])


def _said(row: Row) -> str:
    """The answers of a row, and the scores of its choices."""
    parts = []
    for turn in row.answer.turns:
        calls = "".join(f"\n→ {call.name}({call.arguments})" for call in turn.calls)
        parts.append((turn.text or ("(no words)" if not calls else "")) + calls)
    for scored in row.answer.choices.values():
        parts += [f"{one.logprob:9.3f} nats  {one.text}" for one in scored]
    return "\n\n".join(parts) or (row.error or "(no answer)")


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:12]


def _cut(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:MOST_CHARACTERS]}\n… {len(text) - MOST_CHARACTERS:,} characters more are in the vault"


def _fenced(text: str) -> str:
    """Text as a code block whose fence nothing in it can close."""
    return fenced(_cut(text), "text")


def _cell(text: str) -> str:
    """Text as a cell of a Markdown table, or within a line."""
    return for_markdown(" ".join(text.split()))


def _when(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _seconds(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds < 120 else f"{seconds / 60:,.1f} min"


def _place(value: float) -> str:
    """Where a difference from -1 to 1 lies on an axis from 0 to 100."""
    return f"{50 + 50 * max(-1.0, min(1.0, value)):.2f}"


_REASONS: Final = {
    "no_judge": "no judge was given",
    "no_review": "no expert has reviewed it",
    "awaiting_experts": "it waits for experts",
    "not_needed": "it was wrong already",
    "code_not_allowed": "code is not run without --allow-code",
    "no_log_probabilities": "the server gives no log-probabilities of a prompt",
    "no_checks": "the item has no checks",
    "no_answer": "there was no answer",
    "unsupported_parameter": "the identity cannot be asked so: it has no words for tools",
    "empty_answer": "the answer was empty",
    "context_length_exceeded": "the prompt does not fit the model",
    "package_missing": "a package is missing",
    "no_verdict": "the judge gave no verdict that could be read",
}


def _reason(code: str) -> str:
    return _REASONS.get(code, code.replace("_", " "))
