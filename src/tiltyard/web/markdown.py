"""Turn a model's Markdown into HTML that is safe to put into a page.

Three walls: raw HTML in the text stays text, what the renderer makes is sanitised again against a short list
of tags, and the page's Content-Security-Policy runs no script but ours. Pictures are not fetched: an address
inside an answer could tell a third party who reads it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from tiltyard.web.maths import MATHML_ATTRIBUTES, MATHML_TAGS, MATHML_VALUE, formulas

HIGHLIGHT_CHARACTERS = 20_000
"""Longer code is shown without colours: some lexers are slow on hostile input."""

_TAGS = frozenset(
    {
        *("a", "blockquote", "br", "code", "del", "div", "em", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p"),
        *("pre", "s", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"),
    }
)
_ATTRIBUTES = {
    "a": {"href", "title"},
    "span": {"class", "tabindex"},
    "div": {"class", "tabindex"},
    "ol": {"start"},
    **{tag: set(MATHML_ATTRIBUTES) for tag in MATHML_TAGS},
}
_CLASSES = re.compile(r"(?:(?:tok-[a-z0-9]+|code-block|code-language|picture|formula) ?)+")
_FORMATTER = HtmlFormatter(nowrap=True, classprefix="tok-")
_LANGUAGE = re.compile(r"[A-Za-z0-9_+#.-]{1,30}")


def render_markdown(text: str) -> Markup:
    r"""Return sanitised HTML.

    >>> str(render_markdown("**hi** <script>alert(1)</script>"))
    '<p><strong>hi</strong> &lt;script&gt;alert(1)&lt;/script&gt;</p>\n'
    """
    return Markup(  # noqa: S704 - this is the one place that vouches for HTML; nh3 has just cleaned it
        nh3.clean(
            _PARSER.render(text),
            tags=set(_TAGS | MATHML_TAGS),
            attributes=_ATTRIBUTES,
            attribute_filter=_keep_attribute,
            url_schemes={"http", "https", "mailto"},
            link_rel="nofollow noopener noreferrer",
            set_tag_attribute_values={"a": {"target": "_blank"}, "pre": {"tabindex": "0"}},
        )
    )


def _keep_attribute(tag: str, attribute: str, value: str) -> str | None:
    if tag in MATHML_TAGS:
        return value if MATHML_VALUE.fullmatch(value) else None
    if attribute == "tabindex" and value != "0":
        return None
    if attribute == "class" and not _CLASSES.fullmatch(value):
        return None
    return value


def _coloured(code: str, language: str) -> str:
    if language and len(code) <= HIGHLIGHT_CHARACTERS:
        try:
            return str(highlight(code, get_lexer_by_name(language, stripnl=False), _FORMATTER))
        except ClassNotFound:
            pass  # a language that nobody knows: plain text
    return escape(code)


def _fence(
    _renderer: RendererHTML, tokens: Sequence[Token], index: int, _options: OptionsDict, _env: EnvType
) -> str:
    token = tokens[index]
    words = token.info.split(maxsplit=1)
    language = words[0] if words and _LANGUAGE.fullmatch(words[0]) else ""
    label = f'<span class="code-language">{escape(language)}</span>' if language else ""
    return (
        f'<div class="code-block">{label}<pre><code>{_coloured(token.content, language)}</code></pre></div>\n'
    )


def _picture(
    _renderer: RendererHTML, tokens: Sequence[Token], index: int, _options: OptionsDict, _env: EnvType
) -> str:
    return (
        f'<span class="picture">picture not shown: {escape(tokens[index].content or "no description")}</span>'
    )


def _lower_headings(state: StateCore) -> None:
    """The page has the first two heading levels; an answer's own start at the third."""
    for token in state.tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + 2)}"


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
    formulas(parser)
    parser.core.ruler.push("lower_headings", _lower_headings)
    for rule, function in (("fence", _fence), ("code_block", _fence), ("image", _picture)):
        parser.add_render_rule(rule, function)
    return parser


_PARSER = _parser()
