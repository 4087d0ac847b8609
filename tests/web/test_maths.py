from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiltyard.web.markdown import render_markdown
from tiltyard.web.maths import mathml


@pytest.mark.parametrize("source", [r"$x^2$", r"\(x^2\)"])
def test_a_formula_in_a_line_becomes_mathml(source: str) -> None:
    html = render_markdown(f"so {source} it is")
    assert html == (
        '<p>so <math display="inline"><mrow><msup><mi>x</mi><mn>2</mn></msup></mrow></math> it is</p>\n'
    )


@pytest.mark.parametrize(
    "source", ["$$\na\n- b\n= c\n$$", "\\[\na\n- b\n= c\n\\]", "text\n$$\na\n- b\n= c\n$$"]
)
def test_no_line_of_a_formula_is_taken_for_a_list_or_a_heading(source: str) -> None:
    html = render_markdown(source)
    assert '<div class="formula" tabindex="0"><math display="block"' in html
    assert "<li>" not in html
    assert "<h" not in html


@pytest.mark.parametrize(
    "text",
    [
        "It costs $5 and $10.",
        "From $5-$10.",
        "US$ 5 to US$ 6",
        "an open $x + 1",
        "`$x$` is code",
        "a \\$x\\$ escaped",
        "```\n$x$\n```",
    ],
)
def test_what_is_no_formula_stays_text(text: str) -> None:
    assert "<math" not in render_markdown(text)


@pytest.mark.parametrize("latex", [r"\frac{", "x^", "a_b_c", "{" * 300 + "}" * 300, "x" * 3000])
def test_what_nobody_can_read_is_shown_as_it_was_written(latex: str) -> None:
    assert mathml(latex, block=False) is None
    assert "<math" not in render_markdown(f"\\({latex}\\)")


def test_lines_that_are_aligned_are_rows() -> None:
    made = mathml(r"\begin{aligned}x&=1\\y&=2\end{aligned}", block=True)
    assert made is not None
    assert made.count("<mtr>") == 2


@pytest.mark.parametrize(
    "latex",
    [
        r"\href{javascript:alert(1)}{x}",
        r"\style{background:url(//evil)}{x}",
        r"\class{dock}{x}",
        r"\text{<img src=x onerror=alert(1)>}",
        r"</math><script>alert(1)</script>",
        r"\color{red}{x}",
    ],
)
def test_a_formula_brings_no_address_style_or_script(latex: str) -> None:
    html = render_markdown(f"$${latex}$$")
    assert set(re.findall(r"<(\w+)", html)) <= {
        *("div", "span", "p", "math", "mrow", "mi", "mo", "mn", "mtext", "mstyle", "mspace", "code"),
    }
    assert not re.search(r'<[^>]* (?:href|src|style|onerror|class="(?!formula"))', html)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.sampled_from(["x", "^", "_", "{", "}", "\\frac", "\\left(", "\\right)", "\\begin{matrix}", "&",
    "\\\\", "\\end{matrix}", "\\sqrt", "[", "]", "\\text{a}", "\\", "'", "\\sum", "\\limits", "\\overline", "%", "#", " ",
    "\\hline", "\\binom", "\\substack", "\\operatorname", "\\mathbf", "\\not", "\\middle|"]), max_size=14))  # fmt: skip
def test_no_formula_breaks_an_answer(pieces: list[str]) -> None:
    html = render_markdown(f"before $${''.join(pieces)}$$ after")
    assert "before" in html
    assert "after" in html
