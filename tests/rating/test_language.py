"""The guess at a text's language, against sentences whose language is known."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from tiltyard.rating.language import LANGUAGES, UNDECIDED, is_written_in, language_of


@pytest.mark.parametrize(
    ("message", "language"),
    [
        ("Hello", "en"),
        ("Write a haiku about a slow computer.", "en"),
        ("Hola, ¿cómo estás?", "es"),
        ("Erkläre mir, warum der Himmel blau ist.", "de"),
        ("請寫一首關於秋天的詩", "zh-Hant"),
        ("请写一首关于秋天的诗", "zh-Hans"),
        ("你好", "zh"),  # written alike in both forms
        ("秋についての俳句を書いて", "ja"),
        ("가을에 대한 시를 써 줘", "ko"),
        ("Почему небо голубое?", "ru"),
        ("Чому небо блакитне? Поясніть.", "uk"),
        ("لماذا السماء زرقاء؟", "ar"),
        ("Защо небето е синьо, обясни на български език", "bg"),
        ("آسمان نیلا کیوں ہے؟", "ur"),
        ("आसमान नीला क्यों है?", "hi"),
        ("आकाश निळे का आहे?", "mr"),
        ("आकाश किन नीलो छ?", "ne"),
        ("請用 JavaScript 的 Array.prototype.map 寫一個函式", "zh-Hant"),
        ("他在日本吃了一碗“うどん”，觉得很好吃，还想再去一次，因为那里的风景也很美", "zh-Hans"),
        ("他說三公里外有游泳池", "zh-Hant"),  # 里 and 游 are written in both
        ("2 + 2 = ?", UNDECIDED),
        ("", UNDECIDED),
        ("fizzbuzz", UNDECIDED),
        ("```python\nfor the_word in of_the: print('is what this does')\n```", UNDECIDED),
        ("請解釋\n```python\nprint('what is this and why is it here')\n```", "zh-Hant"),
    ],
)
def test_languages_are_told_or_said_to_be_undecided(message: str, language: str) -> None:
    assert language_of(message) == language
    assert language in LANGUAGES


def test_of_3300_sentences_in_22_languages_at_most_one_in_a_hundred_gets_a_wrong_language(
    shared_data: Path,
) -> None:
    """The test sentences of lingua-py; measured: 2,968 right, 316 undecided, 16 wrong."""
    seen: Counter[str] = Counter()
    for file in sorted((shared_data / "serving/pii_langid/lingua").glob("sentences_*.txt")):
        language = file.stem.removeprefix("sentences_")
        for sentence in file.read_text(encoding="utf-8").splitlines():
            guess = language_of(sentence)
            right = guess.split("-")[0] == language
            seen["right" if right else "undecided" if guess == UNDECIDED else "wrong"] += 1
    assert seen.total() == 3300
    assert seen["wrong"] <= 16
    assert seen["right"] >= 2968


@pytest.mark.parametrize(
    ("file", "field", "language", "asked", "right"),
    [
        ("belle_eval/eval_set.json", "question", "zh", 1000, 971),
        ("cvalues_zh/cvalues_responsibility_prompts.jsonl", "prompt", "zh", 664, 664),
        ("ifeval/input_data.jsonl", "prompt", "en", 541, 541),
        ("gsm8k/test.jsonl", "question", "en", 1319, 1318),
    ],
)
def test_what_people_ask_is_told_with_code_and_foreign_words_in_it(
    shared_data: Path, file: str, field: str, language: str, *, asked: int, right: int
) -> None:
    """Most of the 28 of BELLE that are taken for English are English texts to translate."""
    path = shared_data / "serving" / "questions" / file
    prompts = [json.loads(line)[field] for line in path.read_text("utf-8").splitlines()]
    assert len(prompts) == asked
    assert sum(language_of(prompt).split("-")[0] == language for prompt in prompts) == right


def test_traditional_and_simplified_chinese_are_told_apart(shared_data: Path) -> None:
    """OpenCC's own pairs: what is Simplified there is not taken for Traditional, nor the other way round."""
    text = (shared_data / "serving" / "pii_langid" / "opencc" / "testcases.json").read_text("utf-8")
    cases = json.loads(re.sub(r",(\s*[}\]])", r"\1", text))["cases"]  # it has commas before closing brackets
    pairs = [(case["input"], case["expected"]["s2t"]) for case in cases if "s2t" in case["expected"]]
    pairs = [pair for pair in pairs if pair[0] != pair[1]]
    assert len(pairs) >= 5
    for simplified, traditional in pairs:
        assert language_of(simplified) != "zh-Hant" or language_of(traditional) == "zh-Hant"
        assert language_of(traditional) != "zh-Hans"
    assert is_written_in("水", "zh-Hant")
    assert is_written_in("水", "zh-Hans")
    assert not is_written_in("汉语", "zh-Hant")
