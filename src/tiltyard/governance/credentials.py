"""What opens doors: keys of services, tokens, private keys, and passwords inside URLs."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Final

from tiltyard.governance.finding import Rule

_FORMATS: Final = (
    ("openai-key", r"sk-(?:proj-|svcacct-|admin-)?[A-Za-z0-9_-]{20,}"),
    ("anthropic-key", r"sk-ant-[A-Za-z0-9_-]{20,}"),
    ("tiltyard-key", r"ty-[A-Za-z0-9_-]{24,}"),
    ("huggingface-token", r"hf_[A-Za-z0-9]{30,}"),
    ("github-token", r"(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,})"),
    ("gitlab-token", r"glpat-[A-Za-z0-9_-]{20,}"),
    ("aws-key", r"(?:AKIA|ASIA|AGPA|AIDA|AROA)[A-Z0-9]{16}"),
    ("google-key", r"AIza[A-Za-z0-9_-]{35}"),
    ("slack-token", r"xox[abeoprs]-[A-Za-z0-9-]{10,}"),
    ("stripe-key", r"(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,}"),
    ("sendgrid-key", r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    ("npm-token", r"npm_[A-Za-z0-9]{36}"),
    ("pypi-token", r"pypi-[A-Za-z0-9_-]{50,}"),
    ("telegram-token", r"\d{8,10}:AA[A-Za-z0-9_-]{33}"),
    ("jwt", r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
)
_PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN (?P<what>[A-Z ]*PRIVATE KEY(?: BLOCK)?)-----.*?(?:-----END (?P=what)-----|\Z)", re.DOTALL
)
_URL: Final = re.compile(
    r"\b[a-z][a-z0-9+.-]{1,20}://(?P<it>[^\s/@:?#'\"<>]{0,256}:[^\s/?#'\"<>]{1,256})@", re.IGNORECASE
)
_ASSIGNED: Final = re.compile(
    r"(?:api[_-]?key|secret(?:[_-]?(?:access[_-]?)?key)?|access[_-]?token|auth[_-]?token|token|passw(?:or)?d|pwd|密码|密碼)"
    r"[\"']?\s*(?:[:=]|：|\bis\b|是)\s*[\"']?(?P<it>[^\s\"',;。，]{8,200})",
    re.IGNORECASE,
)
_SAID: Final = r"(?:passw(?:or)?d|pwd|passphrase|密码|密碼)[\"']?\s*(?:[:=]|：|\bis\b|是)\s*"
_PASSWORD: Final = re.compile(_SAID + r"(?P<it>[^\s\"'。]{7,199}[^\s\"'。.,;:!?)，；])", re.IGNORECASE)
"""A password may hold commas and semicolons, and in quotes spaces: its tail must not stay."""
_PASSWORD_QUOTED: Final = re.compile(
    _SAID + r"(?P<quote>[\"'])(?P<it>[^\"'\n]{6,200})(?P=quote)", re.IGNORECASE
)
_BEARER_ALONE: Final = re.compile(r"\bbearer\s+(?P<it>[A-Za-z0-9._~+/=-]{16,})", re.IGNORECASE)
_BEARER: Final = re.compile(
    r"\bauthorization\s*:\s*(?:bearer|basic)\s+(?P<it>[A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE
)
SECRET_BITS: Final = 2.5
"""Shannon entropy a character from which an assigned value is no word: `changeme` has 2.8, `password` 2.8."""


def looks_random(text: str) -> bool:
    """Letters and digits both, and no placeholder such as `<your key>` or `${KEY}`.

    >>> looks_random("hunter2hunter2"), looks_random("your_api_key_here"), looks_random("${API_KEY_1}")
    (True, False, False)
    """
    if re.match(r"[<$%{\[(*]|your|os\.|process\.|env|xxx|example|None|null|true|false", text, re.IGNORECASE):
        return False
    letters, digits = any(c.isalpha() for c in text), any(c.isdigit() for c in text)
    counts = Counter(text)
    bits = -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values())
    return letters and digits and bits >= SECRET_BITS


SECRET_RULES: Final = (
    Rule("private-key", "SECRET", _PRIVATE_KEY),
    Rule("url-credentials", "URL_CREDENTIALS", _URL),
    *(
        Rule(name, "SECRET", re.compile(rf"(?<![\w-]){pattern}(?![\w-])", re.ASCII))
        for name, pattern in _FORMATS
    ),
    Rule("assigned-secret", "SECRET", _ASSIGNED, looks_random),
    Rule("authorization", "SECRET", _BEARER),
    Rule("password", "SECRET", _PASSWORD, looks_random),
    Rule("password-quoted", "SECRET", _PASSWORD_QUOTED, looks_random),
    Rule("bearer", "SECRET", _BEARER_ALONE, looks_random),
)
"""From the formats that services publish for scanners of secrets; no check digits exist but in GitHub's."""
