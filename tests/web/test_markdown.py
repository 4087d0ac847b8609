from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.web.markdown import HIGHLIGHT_CHARACTERS, render_markdown

SAFE_TAGS = {
    *(
        "a",
        "blockquote",
        "br",
        "code",
        "del",
        "div",
        "em",
        "h3",
        "h4",
        "h5",
        "h6",
        "hr",
        "li",
        "ol",
        "p",
        "pre",
    ),
    *("s", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"),
}


class Seen(HTMLParser):
    """Every tag and attribute of a piece of HTML, as a parser sees it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str, str]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]


ATTACKS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[click](javascript:alert(1))",
    "[click](JaVaScRiPt:alert(1))",
    "[click](java\tscript:alert(1))",
    "[click](&#106;avascript:alert(1))",
    "[click](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    "[click](vbscript:msgbox(1))",
    "<javascript:alert(1)>",
    "![x](javascript:alert(1))",
    '![x" onerror="alert(1)](http://a.example/x.png)',
    '[x](http://a.example "\\" onmouseover=\\"alert(1)")',
    "```<img src=x onerror=alert(1)>\ncode\n```",
    '```python" onload="alert(1)\ncode\n```',
    "<svg><a xlink:href='javascript:alert(1)'>",
    "<details open ontoggle=alert(1)>",
    "<style>*{background:url(http://a.example)}</style>",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "<form action=//a.example><button>",
    "<base href=//a.example>",
    "<!-- --><meta http-equiv=refresh content='0;url=//a.example'>",
    "[ref]\n\n[ref]: javascript:alert(1)",
    "<div data-key='ArrowLeft'>",
]


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_becomes_words(attack: str) -> None:
    check(render_markdown(attack))


@given(
    st.lists(st.sampled_from([*ATTACKS, "\n", "\n\n", "```", "`", "> ", "* ", "|", "**", "\x00", "]("])).map(
        "".join
    )
)
def test_no_mixture_of_attacks_gets_through(text: str) -> None:
    check(render_markdown(text))


@given(st.text())
def test_any_text_gives_safe_html(text: str) -> None:
    check(render_markdown(text))


def check(html: str) -> None:
    seen = Seen(html)
    assert seen.tags <= SAFE_TAGS
    for tag, name, value in seen.attributes:
        assert (tag, name) in {
            ("a", "href"),
            ("a", "title"),
            ("a", "rel"),
            ("a", "target"),
            ("span", "class"),
            ("div", "class"),
            ("ol", "start"),
            ("pre", "tabindex"),
        }
        if name == "href" and ":" in value.split("/")[0]:
            assert value.split(":")[0].lower() in ("http", "https", "mailto")


def test_what_people_write_is_rendered() -> None:
    assert render_markdown("**a** *b* ~~c~~ `d`") == (
        "<p><strong>a</strong> <em>b</em> <s>c</s> <code>d</code></p>\n"
    )
    assert "<td>1</td>" in render_markdown("| a |\n|---|\n| 1 |")
    assert render_markdown("one\ntwo") == "<p>one<br>\ntwo</p>\n"


def test_headings_begin_below_those_of_the_page() -> None:
    assert render_markdown("# one\n\n###### six") == "<h3>one</h3>\n<h6>six</h6>\n"


def test_links_leave_without_a_trace() -> None:
    assert 'rel="nofollow noopener noreferrer"' in render_markdown("[a](https://a.example)")


def test_pictures_are_named_and_not_fetched() -> None:
    html = render_markdown("![a cat](https://tracker.example/cat.png)")
    assert "tracker.example" not in html
    assert "picture not shown: a cat" in html


def test_code_is_coloured_when_its_language_is_known() -> None:
    assert '<span class="tok-k">def</span>' in render_markdown("```python\ndef f(): ...\n```")
    assert "tok-" not in render_markdown("```no-such-language\ndef f(): ...\n```")


def test_an_unfinished_code_block_is_a_code_block_already() -> None:
    assert "<pre" in render_markdown("```python\ndef f")


def test_very_long_code_is_shown_without_colours() -> None:
    code = "x = 1\n" * (HIGHLIGHT_CHARACTERS // 6 + 1)
    assert "tok-" not in render_markdown(f"```python\n{code}```")
