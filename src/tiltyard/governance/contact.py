"""E-mail addresses, telephone numbers, and addresses of machines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Final

from phonenumbers import Leniency, PhoneNumberMatcher

from tiltyard.governance.checksums import digits_of, weighted
from tiltyard.governance.finding import Finding, Rule, near, words

PHONE_REGIONS: Final = (
    "US",
    "GB",
    "TW",
    "CN",
    "HK",
    "JP",
    "KR",
    "SG",
    "IN",
    "DE",
    "FR",
    "ES",
    "IT",
    "BR",
    "AU",
)
"""Whose national ways of writing a number are known; numbers with a country code are known of all."""

# Letters of any script in an address; elsewhere the borders are ASCII's, since Chinese writes no spaces.
_EMAIL: Final = re.compile(
    r"(?<![\w.+%'-])[\w+%'-]+(?:\.[\w+%'-]+)*@(?:[^\W_](?:[\w-]*[^\W_])?\.)+(?:[^\W\d_]{2,}|xn--[\w-]+[^\W_])(?![\w@])"
)
_OCTET: Final = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_IPV4: Final = re.compile(
    rf"(?<![\w.])(?:{_OCTET}\.){{3}}{_OCTET}(?![\w]|\.\d)(?:/\d{{1,2}}(?!\d))?", re.ASCII
)
_IPV6: Final = re.compile(
    r"(?<![\w:.])(?:[0-9a-f]{0,4}:){2,7}(?:[0-9a-f]{1,4}|(?:\d{1,3}\.){3}\d{1,3})?(?![\w:]|\.\d)",
    re.IGNORECASE | re.ASCII,
)
_MAC: Final = re.compile(
    r"(?<![\w:.-])(?:[0-9a-f]{2}(?P<s>[:-])(?:[0-9a-f]{2}(?P=s)){4}[0-9a-f]{2}|[0-9a-f]{4}\.[0-9a-f]{4}\.[0-9a-f]{4})(?![\w:-])",
    re.IGNORECASE | re.ASCII,
)
_VERSIONED: Final = words(
    "version", "versions", "release", "firmware", "build", "chrome", "safari", "版本", "v"
)
_PHONE_WORDS: Final = words(
    "phone", "phones", "telephone", "tel", "mobile", "cell", "fax", "call", "call me at", "whatsapp", "sms", "answering at", "messages to",
    "office", "contact number", "my number", "telefon", "téléphone", "telefono", "teléfono", "móvil", "handy", "電話", "手機", "手机", "电话", "联系方式",
    "聯絡", "传真", "傳真", "携帯", "전화", "휴대폰",
)  # fmt: skip
_LOOSE_PHONE: Final = re.compile(
    r"(?<![\w.])(?:\+|00)?(?:\(\d{1,5}\)[ -]?)?\d{1,5}(?:(?:[ .-]|\(0\))?\(?\d{2,5}\)?){1,5}(?!\w)",
    re.ASCII,
)
PHONE_LEAST, PHONE_MOST = 7, 15
"""Digits of a subscriber's number, and of E.164."""


_MOBILE: Final = re.compile(r"(?<![\w.+-])(?:1[3-9]\d{9}|0[4-9]\d{8}|0[1-9]\d{9})(?!\w|[-.]\d)", re.ASCII)
"""As people write them without any grouping: eleven digits in China; ten or eleven behind a zero elsewhere."""


def _is_mobile(text: str) -> bool:
    """Not ten digits that are an ISBN (ISO 2108): weights 10 to 1, MOD 11."""
    return len(text) != 10 or weighted(digits_of(text), tuple(range(10, 0, -1))) % 11 != 0


def _is_address(text: str) -> bool:
    """Of a machine that somebody may own: no loopback, nobody, everybody; no `::2`, which is a slice of a list."""
    try:
        address = ip_address(text)
    except ValueError:
        return False  # leading zeros, too many groups
    written_out = "." in text or len([group for group in text.split(":") if group]) > 1
    return written_out and not (address.is_loopback or address.is_unspecified or text == "255.255.255.255")


CONTACT_RULES: Final = (
    Rule("email", "EMAIL", _EMAIL, lambda text: not text.startswith("git@")),
    Rule("phone-mobile", "PHONE", _MOBILE, _is_mobile),
    Rule("ipv6", "IP_ADDRESS", _IPV6, _is_address),
    Rule("mac", "MAC_ADDRESS", _MAC, lambda text: len(set(re.sub("[:.-]", "", text))) > 1),
)


def ipv4(text: str) -> Iterator[Finding]:
    """IPv4 addresses, but not versions with four parts."""
    for match in _IPV4.finditer(text):
        said_version = _VERSIONED.search(text, max(0, match.start() - 12), match.start()) is not None
        if _is_address(match.group().partition("/")[0]) and not said_version:
            yield Finding("IP_ADDRESS", "ipv4", *match.span())


def phones(text: str) -> Iterator[Finding]:
    """Telephone numbers.

    With a country code, or grouped as a country groups its own, a number must be one that its country's plan allows
    (libphonenumber's). Beside a word such as *phone*, any number of fitting length is one.
    """
    for match in PhoneNumberMatcher(text, None, leniency=Leniency.VALID):
        yield Finding("PHONE", "phone-international", match.start, match.end)
    if sum("0" <= c <= "9" for c in text) < PHONE_LEAST:
        return
    for region in PHONE_REGIONS:
        for match in PhoneNumberMatcher(text, region, leniency=Leniency.STRICT_GROUPING):
            written = text[match.start : match.end]
            if not written.isdigit() and ".." not in written:
                yield Finding("PHONE", f"phone-{region.lower()}", match.start, match.end)
    for loose in _LOOSE_PHONE.finditer(text):
        enough = PHONE_LEAST <= len(digits_of(loose.group())) <= PHONE_MOST
        if enough and near(_PHONE_WORDS, text, *loose.span()):
            yield Finding("PHONE", "phone-said", *loose.span())
