"""Names of languages as LMSYS-Chat-1M and LMArena's sets write them, and their BCP 47 tags."""

from __future__ import annotations

import re
from typing import Final

from tiltyard.rating.language import UNDECIDED

_NAMES: Final = {
    "ar": "Arabic", "bg": "Bulgarian", "bn": "Bengali", "ca": "Catalan", "cs": "Czech", "da": "Danish", "de": "German",
    "el": "Greek", "en": "English", "es": "Spanish", "et": "Estonian", "fa": "Persian", "fi": "Finnish", "fr": "French",
    "he": "Hebrew", "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian", "id": "Indonesian", "it": "Italian",
    "ja": "Japanese", "ko": "Korean", "la": "Latin", "lt": "Lithuanian", "lv": "Latvian", "ms": "Malay", "nl": "Dutch",
    "no": "Norwegian", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sk": "Slovak",
    "sl": "Slovenian", "sr": "Serbian", "sv": "Swedish", "ta": "Tamil", "th": "Thai", "tl": "Tagalog", "tr": "Turkish",
    "uk": "Ukrainian", "ur": "Urdu", "vi": "Vietnamese", "zh": "Chinese", "zh-Hans": "Chinese (Simplified)",
    "zh-Hant": "Chinese (Traditional)", UNDECIDED: "unknown",
}  # fmt: skip
_TAGS: Final = {name.lower(): tag for tag, name in _NAMES.items()}
_TAG: Final = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]{2,8}){0,3}")


def language_name(tag: str) -> str:
    """Name a tag in English; one without a name here stays a tag.

    >>> language_name("zh-Hant"), language_name("und"), language_name("gsw")
    ('Chinese (Traditional)', 'unknown', 'gsw')
    """
    return _NAMES.get(tag, tag)


def language_tag(said: str) -> str:
    """Return the tag for what a file calls a language; `und` for what is neither a name nor a tag.

    >>> language_tag("English"), language_tag("zh-Hant"), language_tag("unknown"), language_tag("=cmd()")
    ('en', 'zh-Hant', 'und', 'und')
    """
    known = _TAGS.get(said.strip().lower())
    if known is not None:
        return known
    return said if _TAG.fullmatch(said) else UNDECIDED
