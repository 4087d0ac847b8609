r"""Formulas in answers: `$…$`, `$$…$$`, `\(…\)` and `\[…\]` become MathML, which browsers draw without a script or a font.

What is no formula stays as it was written: a price (`$5 and $10`), one that is not closed yet, one that nobody can
read. What comes out passes the same sanitiser as everything else in an answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from typing import Final

from latex2mathml import exceptions
from latex2mathml.converter import convert
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

FORMULA_CHARACTERS: Final = 2_000
"""A longer formula is shown as it was written."""
FORMULA_DEPTH: Final = 40
"""So is one with more braces inside each other, on which a parser could exhaust itself."""

MATHML_TAGS: Final = frozenset(
    {
        *(
            "math",
            "mrow",
            "mi",
            "mo",
            "mn",
            "mtext",
            "mspace",
            "mfrac",
            "msqrt",
            "mroot",
            "mstyle",
            "mpadded",
        ),
        *(
            "mphantom",
            "menclose",
            "msub",
            "msup",
            "msubsup",
            "munder",
            "mover",
            "munderover",
            "mmultiscripts",
        ),
        *("mprescripts", "mtable", "mtr", "mtd"),
    }
)
MATHML_ATTRIBUTES: Final = frozenset(
    {
        *("accent", "accentunder", "columnalign", "columnlines", "columnspacing", "depth", "display"),
        *(
            "displaystyle",
            "fence",
            "form",
            "height",
            "linethickness",
            "lspace",
            "mathvariant",
            "maxsize",
            "minsize",
        ),
        *(
            "movablelimits",
            "notation",
            "rowlines",
            "rowspacing",
            "rspace",
            "scriptlevel",
            "separator",
            "stretchy",
        ),
        *("symmetric", "voffset", "width"),
    }
)
"""No addresses, classes, colours or styles among them."""
MATHML_VALUE: Final = re.compile(r"[A-Za-z0-9.%+ -]{0,60}")

_UNREADABLE: Final[tuple[type[Exception], ...]] = (
    *(one for one in vars(exceptions).values() if isinstance(one, type) and issubclass(one, Exception)),
    *(AttributeError, IndexError, KeyError, RecursionError, StopIteration, TypeError, ValueError),
)
"""What the converter raises at a formula that it cannot read; also where it did not expect one."""
_ENVIRONMENTS: Final = re.compile(r"\\(begin|end)\{(?:aligned|split|gathered)\}")


@lru_cache(maxsize=2_000)  # while an answer is written, its formulas are rendered again and again
def mathml(latex: str, *, block: bool) -> str | None:
    r"""Return MathML, or `None` for what cannot be read.

    >>> mathml("x^2", block=False)
    '<math xmlns="http://www.w3.org/1998/Math/MathML" display="inline"><mrow><msup><mi>x</mi><mn>2</mn></msup></mrow></math>'
    """
    if len(latex) > FORMULA_CHARACTERS or _depth(latex) > FORMULA_DEPTH or not latex.strip():
        return None
    readable = _ENVIRONMENTS.sub(r"\\\1{align*}", latex)
    try:
        made: str = convert(readable, display="block" if block else "inline")
    except _UNREADABLE:
        return None
    return made


def _depth(latex: str) -> int:
    deepest = depth = 0
    for mark in re.findall(r"[{}]|\\(?:left|begin|sqrt|right|end)", latex):
        depth += -1 if mark in ("}", "\\right", "\\end") else 1
        deepest = max(deepest, depth)
    return deepest


def _inline(state: StateInline, silent: bool) -> bool:
    source, start = state.src, state.pos
    for opening, closing in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")):
        if not source.startswith(opening, start):
            continue
        begin = start + len(opening)
        end = _end_of(source, begin, closing)
        if end < 0 or (opening == "$" and not _is_formula(source, begin, end)):
            continue
        if not silent:
            token = state.push("formula", "math", 0)
            token.content, token.markup = source[begin:end], opening
            token.meta = {"closing": closing, "block": opening in ("$$", "\\[")}
        state.pos = end + len(closing)
        return True
    return False


def _end_of(source: str, begin: int, closing: str) -> int:
    end = source.find(closing, begin, begin + FORMULA_CHARACTERS + len(closing))
    while closing.startswith("$") and end > 0 and source[end - 1] == "\\":  # \$ is a dollar inside a formula
        end = source.find(closing, end + 1, begin + FORMULA_CHARACTERS + len(closing))
    return end


def _is_formula(source: str, begin: int, end: int) -> bool:
    """As Pandoc tells a formula from prices: no space inside the marks, no digit after the second."""
    inside = source[begin:end]
    after = source[end + 1 : end + 2]
    return bool(inside) and not inside[0].isspace() and not inside[-1].isspace() and not after.isdigit()


def _block(state: StateBlock, first: int, last: int, silent: bool) -> bool:
    """A formula that stands alone on its lines, so that no line of it is taken for a list or a heading."""
    start = state.bMarks[first] + state.tShift[first]
    for opening, closing in (("$$", "$$"), ("\\[", "\\]")):
        if not state.src.startswith(opening, start):
            continue
        for line in range(first, min(last, first + 60)):
            text = state.src[state.bMarks[line] : state.eMarks[line]].rstrip()
            begin = start + len(opening)
            end = state.bMarks[line] + len(text) - len(closing)
            if text.endswith(closing) and end >= begin and state.src.find(closing, begin) == end:
                if not silent:
                    token = state.push("formula", "math", 0)
                    token.block, token.map = True, [first, line + 1]
                    token.content, token.markup = state.src[begin:end], opening
                    token.meta = {"closing": closing, "block": True}
                state.line = line + 1
                return True
    return False


def _render(
    _renderer: RendererHTML, tokens: Sequence[Token], index: int, _options: OptionsDict, _env: EnvType
) -> str:
    token = tokens[index]
    made = mathml(token.content, block=token.meta["block"])
    if made is None:
        source = f"<code>{escape(token.markup + token.content + token.meta['closing'])}</code>"
        return f"<p>{source}</p>\n" if token.block else source
    if token.meta["block"]:
        tag = "div" if token.block else "span"
        return f'<{tag} class="formula" tabindex="0">{made}</{tag}>\n'
    return made


def formulas(parser: MarkdownIt) -> None:
    """Teach a Markdown parser to read formulas."""
    parser.inline.ruler.before("escape", "formula", _inline)
    parser.block.ruler.before(
        "fence", "formula", _block, {"alt": ["paragraph", "reference", "blockquote", "list"]}
    )
    parser.add_render_rule("formula", _render)
