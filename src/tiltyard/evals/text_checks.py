"""Checks of an answer's text: exact, contains, regex, numeric, language, instruction. Pure functions."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from tiltyard.evals.checks import Contains, Exact, Instruction, Language, Numeric, Regex
from tiltyard.evals.instructions import follows, follows_loosely
from tiltyard.evals.verdict import Verdict
from tiltyard.rating.language import UNDECIDED, is_written_in, language_of

_MARKS: Final = " \t\n\r.,;:!?。，；：！？、\"'“”‘’「」『』`*_()（）"
_NUMBER: Final = r"[-+−－]?(?:[\d０-９]{1,3}(?:[,，][\d０-９]{3})+|[\d０-９]+)(?:\.[\d０-９]+)?(?:[eE][-+]?\d+)?(?:\s*/\s*\d+)?"
_NUMBERS: Final = re.compile(rf"(?<![\w.]){_NUMBER}|(?<=[$€£¥]){_NUMBER}|(?<=[\u3040-\u9fff]){_NUMBER}")
_FINAL: Final = re.compile(
    r"(?:####|\\boxed\{|(?:final\s+)?answer(?:\s+is)?\s*[:=]?|答案(?:是|為|为)?\s*[:：=]?|=\s*(?=[^=]*$))",
    re.IGNORECASE,
)
_UNIT: Final = re.compile(r"[\s$€£¥%°A-Za-z.\u3400-\u9fff*。]*")


def check_exact(check: Exact, answer: str) -> Verdict:
    """Compare the whole answer with each right one."""
    said = _plain(answer, check)
    right = any(said == _plain(one, check) for one in check.answers)
    return Verdict.of(
        "exact", right, "other", f"said {said[:120]!r}; wanted {' or '.join(map(repr, check.answers))}"
    )


def check_contains(check: Contains, answer: str) -> Verdict:
    """Look for words."""

    def has(word: str) -> bool:
        return word in answer if check.case_sensitive else word.casefold() in answer.casefold()

    if lacking := [word for word in check.all if not has(word)]:
        return Verdict("contains", 0.0, "lacks", f"lacks {lacking}")
    if check.any and not any(map(has, check.any)):
        return Verdict("contains", 0.0, "lacks", f"has none of {list(check.any)}")
    if found := [word for word in check.none if has(word)]:
        return Verdict("contains", 0.0, "has", f"has {found}")
    return Verdict("contains", 1.0)


def check_regex(check: Regex, answer: str) -> Verdict:
    """Search, or match the whole."""
    pattern = re.compile(check.pattern, re.IGNORECASE if check.ignore_case else 0)
    found = pattern.fullmatch(answer.strip()) if check.whole else pattern.search(answer)
    right = (found is not None) == check.found
    return Verdict.of("regex", right, "not_found" if check.found else "found", f"pattern {check.pattern!r}")


def check_numeric(check: Numeric, answer: str) -> Verdict:
    """Compare the number that the answer gives; an answer without one is wrong, since a number was asked for."""
    value = number_in(answer, check.take)
    if value is None:
        return Verdict("numeric", 0.0, "no_number", f"no number; wanted {check.value:g}")
    allowed = max(check.tolerance, check.relative * abs(check.value))
    return Verdict.of(
        "numeric",
        abs(value - check.value) <= allowed,
        "other",
        f"said {value:.12g}; wanted {check.value:.12g}",
    )


def check_language(check: Language, answer: str) -> Verdict:
    """Tell the answer's language. Without letters it is written in none; too few words to tell are no score."""
    found = language_of(answer)
    if found == UNDECIDED and any(letter.isalpha() for letter in answer):
        return Verdict.unscored(
            "language", "undecided", f"too little to tell its language; wanted {check.language}"
        )
    right = is_written_in(answer, check.language)
    return Verdict.of("language", right, "other", f"written in {found}; wanted {check.language}")


def check_instruction(check: Instruction, answer: str) -> Verdict:
    """Look whether an instruction was kept."""
    keeps = follows_loosely if check.loose else follows
    return Verdict.of("instruction", keeps(check.name, check.arguments, answer), "not_kept", check.name)


def number_in(answer: str, take: str) -> float | None:
    """The number that an answer gives: thousands separators, fractions and full-width digits are read; `None` without one.

    >>> number_in("So 3 * 6 = 18. #### 1,234.50", "marked"), number_in("答案是４２。", "marked"), number_in("none", "last")
    (1234.5, 42.0, None)
    """
    if take == "only":
        text = unicodedata.normalize("NFKC", answer).strip()
        found = re.search(_NUMBER, text)
        if (
            found is None
            or not _UNIT.fullmatch(text[: found.start()])
            or not _UNIT.fullmatch(text[found.end() :])
        ):
            return None
        return _value(found[0])
    if take == "marked":
        for mark in reversed(list(_FINAL.finditer(answer))):
            behind = answer[mark.end() :].partition("\n")[0]
            if found := _NUMBERS.search(" " + behind):
                return _value(found[0])
    numbers = _NUMBERS.findall(answer)
    return _value(numbers[-1]) if numbers else None


def _value(text: str) -> float | None:
    plain = unicodedata.normalize("NFKC", text).replace(",", "").replace("−", "-").replace(" ", "")
    top, slash, bottom = plain.partition("/")
    try:
        return float(top) / float(bottom) if slash else float(top)
    except (ValueError, ZeroDivisionError):
        return None


def _plain(text: str, check: Exact) -> str:
    text = unicodedata.normalize("NFC", text)
    text = text.strip(_MARKS if check.ignore == "punctuation" else None)
    text = re.sub(r"\s+", " ", text)
    return text if check.case_sensitive else text.casefold()
