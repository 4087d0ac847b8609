"""What kind of work a prompt asks for, told from its words: a coarse slice, the same for votes and for fixed sets.

The first kind whose words occur is taken, in the order below. Words are English and Chinese; a prompt without any of them is `other`.
"""

from __future__ import annotations

import re
from typing import Final

_KINDS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("code", r"```|\b(?:code|function|python|javascript|typescript|java|c\+\+|rust|golang|sql|regex|bug|compile|script|html|css|api|class|algorithm|程式|代碼|代码|函數|函数|編程|编程)\b|程式|代碼|代码|函數|函数"),
        ("translation", r"\btranslat|翻譯|翻译|übersetz|traduis|traduce|\bin (?:english|chinese|german|french|spanish)\b"),
        ("mathematics", r"\d\s*[-+*/×÷=^]\s*\d|\b(?:solve|equation|integral|derivative|probability|how many|how much|percent|sum of|calculate)\b|計算|计算|多少|方程|幾個|几个"),
        ("editing", r"\b(?:summar|rewrite|paraphras|proofread|shorten|edit|correct the grammar|improve)|摘要|總結|总结|改寫|改写|潤飾|润色"),
        ("writing", r"\b(?:write|compose|draft|poem|story|essay|email|letter|blog|speech|lyrics|haiku)\b|寫一|写一|作文|詩|诗|信|故事"),
        ("advice", r"\b(?:should i|recommend|advice|suggest|tips|best way|how (?:can|do|should) i)\b|建議|建议|推薦|推荐|怎麼辦|怎么办|如何"),
        ("explanation", r"\b(?:what|why|how|explain|who|when|where|describe|define|difference)\b|什麼|什么|為什麼|为什么|解釋|解释|介紹|介绍|是誰|是谁"),
    )
)  # fmt: skip

OTHER: Final = "other"
CATEGORIES: Final = (*(name for name, _ in _KINDS), OTHER)
"""Every kind, in the order in which they are looked for."""


def category_of(prompt: str) -> str:
    """Return the kind of a prompt.

    >>> category_of("Write a Python function."), category_of("為什麼天空是藍色的?"), category_of("Hello!")
    ('code', 'explanation', 'other')
    """
    return next((name for name, pattern in _KINDS if pattern.search(prompt)), OTHER)
