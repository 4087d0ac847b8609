"""The pages in three languages: negotiation, the picker, and catalogs that are whole and current."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from arena_standin import Gate
from arena_yard import CONTESTANTS, Yard, listen

from tiltyard.arena.troubles import TROUBLES, Trouble
from tiltyard.web.languages import LANGUAGES, language_named, negotiated, translations

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import catalogs

NAMES = [one.name for one in CONTESTANTS]


@pytest.fixture(scope="module")
def wanted() -> object:
    return catalogs.extracted()


@pytest.mark.parametrize("path", sorted(catalogs.CATALOGS.glob("*.po")), ids=lambda path: path.stem)
def test_a_catalog_has_every_text_that_a_page_can_say_and_no_other(path: Path, wanted: object) -> None:
    assert catalogs.faults(path, wanted) == []  # `python tools/catalogs.py` brings them up to date
    assert path.read_bytes() == catalogs.updated(path, wanted)


def test_every_language_but_english_has_a_catalog() -> None:
    assert {path.stem for path in catalogs.CATALOGS.glob("*.po")} == {one.tag for one in LANGUAGES} - {"en"}


def test_a_text_without_a_translation_and_one_that_nobody_says_are_told(
    tmp_path: Path, wanted: object
) -> None:
    path = tmp_path / "zh-Hant.po"
    path.write_text('msgid "Arena"\nmsgstr ""\n\nmsgid "Nobody says this"\nmsgstr "x"\n', encoding="utf-8")
    told = catalogs.faults(path, wanted)
    assert "zh-Hant.po: not translated: 'Arena'" in told
    assert "zh-Hant.po: nobody says it: 'Nobody says this'" in told
    assert "zh-Hant.po: not in it: 'Leaderboard'" in told


def test_a_merge_with_conflicts_keeps_the_texts_of_both_sides(tmp_path: Path, wanted: object) -> None:
    whole = (catalogs.CATALOGS / "zh-Hant.po").read_text(encoding="utf-8")
    head, *entries = whole.split("\n\n")
    half = len(entries) // 2
    ours, theirs = "\n\n".join(entries[:half]), "\n\n".join(entries[half:])
    path = tmp_path / "zh-Hant.po"
    path.write_text(f"{head}\n\n<<<<<<< a\n{ours}\n=======\n{theirs}\n>>>>>>> b\n", encoding="utf-8")
    assert catalogs.updated(path, wanted).decode() == whole


@pytest.mark.parametrize(
    ("accept", "tag"),
    [
        ("", "en"),
        ("fr, de;q=0.9", "en"),
        ("zh-TW, en;q=0.8", "zh-Hant"),
        ("zh-HK", "zh-Hant"),
        ("zh-Hant-CN", "zh-Hant"),
        ("zh", "zh-Hans"),
        ("zh-CN;q=0.5, en-US;q=0.4", "zh-Hans"),
        ("zh-CN;q=0.5, en-US;q=0.6", "en"),
        ("zh;q=0, en", "en"),
        ("zh;q=bad, zh-TW;q=0.1", "zh-Hant"),
    ],
)
def test_the_language_is_the_best_that_the_browser_asks_for(accept: str, tag: str) -> None:
    assert negotiated(accept).tag == tag


def test_the_picker_is_remembered_and_leads_back(yard: Yard) -> None:
    with yard.visitor(**{"accept-language": "zh-TW"}) as visitor:
        assert '<html lang="zh-Hant">' in visitor.get("/").text
        chosen = visitor.post(
            "/language",
            data={"language": "zh-Hans"},
            headers={"referer": f"{yard.url}/leaderboard?window=30d"},
        )
        assert (chosen.status_code, chosen.headers["location"]) == (303, "/leaderboard?window=30d")
        page = visitor.get("/")
        assert '<html lang="zh-Hans">' in page.text
        assert page.headers["content-language"] == "zh-Hans"
        assert visitor.post("/language", data={"language": "tlh"}).status_code == 400


@pytest.mark.parametrize(
    "referer", ["https://evil.example//evil.example/x", "http://[", "x:/\\evil.example", ""]
)
def test_the_picker_leads_to_no_other_place(yard: Yard, referer: str) -> None:
    with yard.visitor(referer=referer) as visitor:
        assert visitor.post("/language", data={"language": "en"}).headers["location"] == "/"


@pytest.mark.parametrize("tag", ["zh-Hant", "zh-Hans"])
def test_no_english_is_left_on_a_page(yard: Yard, tag: str) -> None:
    gate = Gate()
    for name in NAMES:
        yard.models.answers[name] = lambda _messages: ["答", gate]
    with yard.visitor(cookie=f"tiltyard_language={tag}") as visitor:
        pages = [visitor.get("/").text, visitor.get("/nowhere").text]
        # the voter's cookie by hand: httpx2 sends this header in place of its own jar
        reply = visitor.post("/battles", data={"content": "問", "consent": "2"})
        visitor.headers["cookie"] += "; " + reply.headers["set-cookie"].partition(";")[0]
        battle = reply.headers["location"]
        api = f"/api/arena{battle}"
        listen(visitor, battle.rpartition("/")[2], until=lambda heard: all(heard.text.values()))
        pages.append(visitor.get(battle).text)  # while both write
        visitor.post(f"{api}/stop")
        gate.open()
        pages += [visitor.get(battle).text, visitor.post(f"{battle}/turns", data={"content": " "}).text]
        token = re.findall(r'name="vote_token" value="(\w+)"', pages[-1])[0]
        visitor.post(f"{battle}/vote", data={"vote_token": token, "choice": "a"})
        link = visitor.post(f"{api}/share").json()["link"]
        pages += [visitor.get(battle).text, visitor.get(link).text]
        visitor.post(f"{battle}/withdraw", data={"vote_token": token, "reason": "slip"})
        pages.append(visitor.get(battle).text)
        assert gettext_in(tag, "You took your vote back") in pages[-1]
        pages += [visitor.get("/arena/health").text, visitor.get("/leaderboard/sensors").text]
        pages.append(visitor.get("/my-data").text)
        pages.append(visitor.post("/my-data/delete", data={"sure": "yes"}).text.partition("<pre")[0])
    for page in pages:
        assert english_in(page) == []


def gettext_in(tag: str, words: str) -> str:
    language = language_named(tag)
    assert language is not None
    said = translations(language).gettext(words)
    assert said != words
    return said


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=lambda trouble: trouble.cause)
def test_every_cause_of_a_failure_has_words_in_every_language(trouble: Trouble) -> None:
    """FastChat #91, #1206, #3503, #3711, #3671: one opaque "network error" for every cause."""
    assert (
        len({gettext_in("zh-Hant", trouble.words), gettext_in("zh-Hans", trouble.words), trouble.words}) == 3
    )


OURS = frozenset(
    [
        "tiltyard",
        "English",
        "Python",
        "list",
        "tuple",
        "Enter",
        "Esc",
        "token",
        "tokens",
        "UTC",
        "JSON",
        "not_found",
    ]
)
"""Names, which are the same in every language."""


def english_in(page: str) -> list[str]:
    """Words in Latin letters that a person would read: texts, titles and labels."""
    body = re.sub(r"(?s)<head>.*?</head>|<(code|kbd)\b.*?</\1>", " ", page)
    body = re.sub(r'(?s)<(dd|td) class="digest".*?</\1>|<(p|th|span)\b[^>]* lang="en">.*?</\2>', " ", body)
    body = re.sub(r"sha256:[0-9a-f]+", " ", body)
    said = re.findall(r'(?:aria-label|title|placeholder|alt)="([^"]*)"', body) + re.findall(r">([^<]+)", body)
    for model in CONTESTANTS:
        said = [text.replace(model.name, " ").replace(model.organization, " ") for text in said]
        said = [text.replace(model.license, " ") for text in said]
    words = {word for text in said for word in re.findall(r"[A-Za-z][A-Za-z'_-]+", text)}
    return sorted(words - OURS)
