r"""How text that others wrote goes out: one function for each place where a text could become more than text.

| place | function | what a text could do there |
| --- | --- | --- |
| a terminal | `for_terminal`, `one_line` | move the cursor, hide or reverse text, set the title, answer for the user |
| a CSV cell | `for_csv` | run as a formula in a spreadsheet |
| Markdown | `for_markdown`, `fenced` | become a link, a picture that tells who reads it, HTML, a row of a table, the end of a fence |
| HTML | Jinja's autoescape; answers: `web/markdown.py` | become markup |

JSON and Parquet need none: their writers have one way to write a string, and it holds for every string.
"""

from __future__ import annotations

import re
from typing import Final

_STEERS: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]|[\ud800-\udfff]"
)
"""Control characters but line feed and tab; marks and overrides of direction, what is invisible, separators of lines, tags, and
lone halves of surrogate pairs, which no terminal can be sent."""
_JOINED: Final = re.compile("[\u200c\u200d]")
"""Joiners: Persian and Indic words and emoji need them, and they steer nothing."""
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\0", "＝", "＋", "－", "＠")
"""What a spreadsheet may run (OWASP, CSV injection), full-width forms with it."""
_MARKUP: Final = re.compile(
    r"([\\`*\[\]<>|~&$]|(?<![a-z0-9])_|_(?![a-z0-9])|@(?=[\w-]+\.)|:(?=//)|(?<=\bwww)\.|^\s*[#+=\-](?=[#+=\-]*(?:\s|$))|^\s*\d{1,9}[.)](?=\s|$))",
    re.IGNORECASE,
)
"""Inline marks, addresses that become links by themselves, and what makes a heading or a list at the beginning of a line."""
_FENCE: Final = re.compile(r"`{3,}")


def for_terminal(text: str) -> str:
    r"""Write what could steer a terminal as its number; line breaks and tabs stay.

    >>> for_terminal("a\x1b[2Jb\u202ec") == "a\\u001b[2Jb\\u202ec"
    True
    """
    return _STEERS.sub(_numbered, text)


def one_line(text: str) -> str:
    r"""The same in one line.

    >>> one_line("a\nb\tc") == "a\\nb\\tc"
    True
    """
    return for_terminal(text).replace("\n", "\\n").replace("\t", "\\t")


def for_csv(value: object) -> object:
    """Prefix a text that a spreadsheet would run as a formula with an apostrophe, which `from_csv` takes away again.

    >>> for_csv("=HYPERLINK(1)"), for_csv(-1.5), for_csv("  =1"), for_csv("'=1")
    ("'=HYPERLINK(1)", -1.5, "'  =1", "''=1")
    """
    return f"'{value}" if isinstance(value, str) and _runs(value.lstrip("'")) else value


def from_csv(cell: str) -> str:
    """Return the text for which `for_csv` wrote a cell.

    >>> from_csv("'=HYPERLINK(1)"), from_csv("'tis")
    ('=HYPERLINK(1)', "'tis")
    """
    return cell[1:] if cell.startswith("'") and _runs(cell.lstrip("'")) else cell


def _runs(text: str) -> bool:
    return text.startswith(_FORMULA) or text.lstrip(" \u00a0").startswith(_FORMULA)


def for_markdown(text: str) -> str:
    r"""One line of Markdown that shows the text itself: no link, picture, HTML, code, table or list comes of it.

    >>> for_markdown("![x](http://e) | <b> gpt-4.1")
    '!&#91;x&#93;(http\\://e) \\| \\<b\\> gpt-4.1'
    """
    return _MARKUP.sub(_escaped, one_line(text))


def fenced(text: str, language: str = "") -> str:
    """A fenced block of Markdown whose fence is longer than any in the text.

    >>> fenced("a ``` b")
    '````\\na ``` b\\n````'
    """
    longest = max((len(found) for found in _FENCE.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{for_terminal(text)}\n{fence}"


def _numbered(match: re.Match[str]) -> str:
    letter = match.group()
    if _JOINED.match(letter):
        return letter
    code = ord(letter)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escaped(match: re.Match[str]) -> str:
    """Put a backslash before the mark; what stands before it on the line stays.

    Brackets are written as entities: with a backslash they begin a formula in TeX's way, which our pages and others read.
    """
    found = match.group()
    if found in "[]":
        return f"&#{ord(found)};"
    return f"{found[:-1]}\\{found[-1]}"
