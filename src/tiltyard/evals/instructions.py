"""Instructions whose keeping can be checked from the answer alone, by the names and arguments of IFEval.

Zhou et al. 2023, "Instruction-Following Evaluation for Large Language Models", arXiv:2311.07911, appendix A; written
anew from its description. An answer without words keeps no instruction.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, cast

from pydantic import JsonValue

from tiltyard.rating.language import is_written_in

Arguments = Mapping[str, JsonValue]
Rule = Callable[[str, Arguments], bool]

_FENCE = re.compile(r"^```[a-zA-Z]*\s*\n?|\n?```$")
_ENDINGS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_ABBREVIATIONS = re.compile(
    r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|e\.g|i\.e|Inc|Ltd|No|[A-Z])\.", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s|$)|[。！？]+[」』”]*")


def follows(name: str, arguments: Arguments, answer: str) -> bool:
    """Whether an answer keeps one instruction. Raises `KeyError` for a name that nobody knows.

    >>> follows("punctuation:no_comma", {}, "None here")
    True
    """
    return bool(answer.strip()) and RULES[name].keeps(answer, arguments)


def follows_loosely(name: str, arguments: Arguments, answer: str) -> bool:
    """As IFEval's loose accuracy: also without its first line, its last line, both, and without asterisks."""
    lines = answer.split("\n")
    bodies = [answer, "\n".join(lines[1:]), "\n".join(lines[:-1]), "\n".join(lines[1:-1])]
    return any(
        follows(name, arguments, body.strip()) for kept in bodies for body in (kept, kept.replace("*", ""))
    )


def problem_of(name: str, arguments: Arguments) -> str | None:
    """What is wrong with an instruction as a set has it; `None` where nothing is."""
    rule = RULES.get(name)
    if rule is None:
        return f"there is no instruction {name!r}; known: {', '.join(sorted(RULES))}"
    for key, kind in rule.needs.items():
        value = arguments.get(key)
        right = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
        if not right:
            return f"{name} needs {key}, {_KINDS[kind]}; it is {value!r}"
        if key.endswith("relation") and value not in _RELATIONS:
            return f"{name}: {key} is {value!r}; it must be one of {', '.join(_RELATIONS)}"
    return None


class _Rule:
    """A rule and the arguments that it cannot do without."""

    def __init__(self, keeps: Rule, **needs: type) -> None:
        self.keeps = keeps
        self.needs = needs


_KINDS: Final[Mapping[type, str]] = MappingProxyType(
    {int: "a whole number", str: "text", list: "a list of texts"}
)
_RELATIONS: Final = ("less than", "at least")


def words_of(text: str) -> list[str]:
    """Words as IFEval counts them; each Han or kana letter counts as one, where nothing else parts words.

    >>> len(words_of("it's two")), len(words_of("天空"))
    (3, 2)
    """
    return re.findall(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+", text)


def sentences_of(text: str) -> int:
    """How many sentences a text has; what stands behind the last mark counts as one."""
    plain = _ABBREVIATIONS.sub("x", text)
    parts = [part for part in _SENTENCE_END.split(plain) if re.search(r"\w", part)]
    return len(parts)


def _whole(arguments: Arguments, key: str) -> int:
    return cast(int, arguments[key])


def _text(arguments: Arguments, key: str) -> str:
    return cast(str, arguments[key])


def _texts(arguments: Arguments, key: str) -> list[str]:
    return [str(one) for one in cast(list[JsonValue], arguments[key])]


def _related(count: int, relation: JsonValue, bound: int) -> bool:
    return count < bound if relation == "less than" else count >= bound


def _paragraphs(answer: str, arguments: Arguments) -> bool:
    parts = re.split(r"\s?\*\*\*\s?", answer)
    ends = {0, len(parts) - 1}
    if any(not part.strip() for at, part in enumerate(parts) if at not in ends):
        return False
    return sum(bool(part.strip()) for part in parts) == _whole(arguments, "num_paragraphs")


def _nth_paragraph(answer: str, arguments: Arguments) -> bool:
    parts = [part.strip() for part in re.split(r"\n\n", answer) if part.strip()]
    nth = _whole(arguments, "nth_paragraph")
    if len(parts) != _whole(arguments, "num_paragraphs") or not 1 <= nth <= len(parts):
        return False
    word = re.match(r"[\"'“‘*]*([\w'-]+)", parts[nth - 1])
    return word is not None and word[1].lower() == _text(arguments, "first_word").lower()


def _postscript(answer: str, arguments: Arguments) -> bool:
    marker = _text(arguments, "postscript_marker")
    patterns = {"P.P.S": r"^\s*p\.\s?p\.\s?s", "P.S.": r"^\s*p\.\s?s\."}
    pattern = patterns.get(marker, r"^\s*" + re.escape(marker))
    return re.search(pattern, answer, re.IGNORECASE | re.MULTILINE) is not None


def _bullets(answer: str, arguments: Arguments) -> bool:
    stars = re.findall(r"^\s*\*[^*\n].*$", answer, re.MULTILINE)
    dashes = re.findall(r"^\s*-.*$", answer, re.MULTILINE)
    return len(stars) + len(dashes) == _whole(arguments, "num_bullets")


def _highlights(answer: str, arguments: Arguments) -> bool:
    single = [one for one in re.findall(r"\*([^\n*]*)\*", answer) if one.strip()]
    double = [one for one in re.findall(r"\*\*([^\n*]*)\*\*", answer) if one.strip()]
    return len(single) + len(double) >= _whole(arguments, "num_highlights")


def _sections(answer: str, arguments: Arguments) -> bool:
    splitter = re.escape(_text(arguments, "section_spliter").strip())
    return len(re.split(rf"\s?{splitter}\s?\d+\s?", answer)) - 1 >= _whole(arguments, "num_sections")


def _json(answer: str, _: Arguments) -> bool:
    try:
        json.loads(_FENCE.sub("", answer.strip()).strip())
    except ValueError:
        return False
    return True


def _two_responses(answer: str, _: Arguments) -> bool:
    parts = answer.split("******")
    if any(not part.strip() for part in parts[1:-1]):
        return False
    kept = [part.strip() for part in parts if part.strip()]
    return len(kept) == 2 and kept[0] != kept[1]


def _capital_words(answer: str, arguments: Arguments) -> bool:
    count = sum(word.isupper() for word in re.findall(r"[\w'-]+", answer))
    return _related(count, arguments["capital_relation"], _whole(arguments, "capital_frequency"))


def _quoted(answer: str, _: Arguments) -> bool:
    text = answer.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


def _forbidden(answer: str, arguments: Arguments) -> bool:
    return not any(
        re.search(rf"(?<!\w){re.escape(word)}(?!\w)", answer, re.IGNORECASE)
        for word in _texts(arguments, "forbidden_words")
    )


RULES: Final[Mapping[str, _Rule]] = MappingProxyType(
    {
        "keywords:existence": _Rule(
            lambda answer, a: all(word.lower() in answer.lower() for word in _texts(a, "keywords")), keywords=list
        ),
        "keywords:frequency": _Rule(
            lambda answer, a: _related(
                answer.lower().count(_text(a, "keyword").lower()), a["relation"], _whole(a, "frequency")
            ),
            keyword=str, relation=str, frequency=int,
        ),
        "keywords:forbidden_words": _Rule(_forbidden, forbidden_words=list),
        "keywords:letter_frequency": _Rule(
            lambda answer, a: _related(
                answer.lower().count(_text(a, "letter").lower()), a["let_relation"], _whole(a, "let_frequency")
            ),
            letter=str, let_relation=str, let_frequency=int,
        ),
        "language:response_language": _Rule(
            lambda answer, a: is_written_in(answer, _text(a, "language")), language=str
        ),
        "length_constraints:number_sentences": _Rule(
            lambda answer, a: _related(sentences_of(answer), a["relation"], _whole(a, "num_sentences")),
            relation=str, num_sentences=int,
        ),
        "length_constraints:number_paragraphs": _Rule(_paragraphs, num_paragraphs=int),
        "length_constraints:number_words": _Rule(
            lambda answer, a: _related(len(words_of(answer)), a["relation"], _whole(a, "num_words")),
            relation=str, num_words=int,
        ),
        "length_constraints:nth_paragraph_first_word": _Rule(
            _nth_paragraph, num_paragraphs=int, nth_paragraph=int, first_word=str
        ),
        "detectable_content:number_placeholders": _Rule(
            lambda answer, a: len(re.findall(r"\[.*?\]", answer)) >= _whole(a, "num_placeholders"), num_placeholders=int
        ),
        "detectable_content:postscript": _Rule(_postscript, postscript_marker=str),
        "detectable_format:number_bullet_lists": _Rule(_bullets, num_bullets=int),
        "detectable_format:constrained_response": _Rule(lambda answer, _: any(one in answer for one in _ENDINGS)),
        "detectable_format:number_highlighted_sections": _Rule(_highlights, num_highlights=int),
        "detectable_format:multiple_sections": _Rule(_sections, section_spliter=str, num_sections=int),
        "detectable_format:json_format": _Rule(_json),
        "detectable_format:title": _Rule(
            lambda answer, _: any(one.strip() for one in re.findall(r"<<([^\n]+?)>>", answer))
        ),
        "combination:two_responses": _Rule(_two_responses),
        "combination:repeat_prompt": _Rule(
            lambda answer, a: answer.strip().lower().startswith(_text(a, "prompt_to_repeat").strip().lower()),
            prompt_to_repeat=str,
        ),
        "startend:end_checker": _Rule(
            lambda answer, a: answer.strip().strip('"').lower().endswith(_text(a, "end_phrase").strip().lower()),
            end_phrase=str,
        ),
        "startend:quotation": _Rule(_quoted),
        "change_case:english_capital": _Rule(lambda answer, _: answer.isupper()),
        "change_case:english_lowercase": _Rule(lambda answer, _: answer.islower()),
        "change_case:capital_word_frequency": _Rule(_capital_words, capital_relation=str, capital_frequency=int),
        "punctuation:no_comma": _Rule(lambda answer, _: not re.search(r"[,，]", answer)),
    }
)  # fmt: skip
"""Every instruction by its name."""
