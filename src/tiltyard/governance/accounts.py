"""Payment cards and bank accounts."""

from __future__ import annotations

import re
from typing import Final

from tiltyard.governance.checksums import digits_of, luhn, mod97
from tiltyard.governance.finding import Rule, words

_BETWEEN: Final = r"(?:[ \t]{1,3}|[.-])"
_CARD: Final = re.compile(
    rf"(?<![\w.-])(?:\d{{4}}{_BETWEEN}(?:\d{_BETWEEN}?){{8,14}}|\d{{8}}{_BETWEEN}\d{{7}}|\d{{12,18}})\d(?!\w|[-.]\d)",
    re.ASCII,
)
_CARD_SAID: Final = re.compile(r"(?<![\w.-])(?:\d[ -]?){11,18}\d(?!\w|[-.]\d)", re.ASCII)
_CARD_WORDS: Final = words(
    "card",
    "cards",
    "cc",
    "visa",
    "mastercard",
    "amex",
    "maestro",
    "卡",
    "カード",
    "카드",
    "tarjeta",
    "carte",
    "karte",
)
_CARD_STARTS: Final = re.compile(r"[45]|2[2-7]|3(?:[0568]|[47])|6|1800|2131|81")
"""ISO/IEC 7812: 3 travel, 4 and 5 banks, 6 merchants and banks, 22 to 27 Mastercard and Mir, 81 UnionPay, and JCB's oldest."""
_IBAN: Final = re.compile(
    r"(?<![\w])[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]{4}){2,7}(?:[ -]?[A-Z0-9]{1,3})?(?!\w)", re.IGNORECASE | re.ASCII
)
IBAN_LENGTHS: Final = {
    pair[:2]: int(pair[3:])
    for pair in [
        "AD:24",
        "AE:23",
        "AL:28",
        "AT:20",
        "AZ:28",
        "BA:20",
        "BE:16",
        "BG:22",
        "BH:22",
        "BI:27",
        "BR:29",
        "BY:28",
        "CH:21",
        "CR:22",
        "CY:28",
        "CZ:24",
        "DE:22",
        "DJ:27",
        "DK:18",
        "DO:28",
        "EE:20",
        "EG:29",
        "ES:24",
        "FI:18",
        "FK:18",
        "FO:18",
        "FR:27",
        "GB:22",
        "GE:22",
        "GI:23",
        "GL:18",
        "GR:27",
        "GT:28",
        "HN:28",
        "HR:21",
        "HU:28",
        "IE:22",
        "IL:23",
        "IQ:23",
        "IS:26",
        "IT:27",
        "JO:30",
        "KW:30",
        "KZ:20",
        "LB:28",
        "LC:32",
        "LI:21",
        "LT:20",
        "LU:20",
        "LV:21",
        "LY:25",
        "MC:27",
        "MD:24",
        "ME:22",
        "MK:19",
        "MN:20",
        "MR:27",
        "MT:31",
        "MU:30",
        "NI:28",
        "NL:18",
        "NO:15",
        "OM:23",
        "PK:24",
        "PL:28",
        "PS:29",
        "PT:25",
        "QA:29",
        "RO:24",
        "RS:22",
        "RU:33",
        "SA:24",
        "SC:31",
        "SD:18",
        "SE:24",
        "SI:19",
        "SK:24",
        "SM:27",
        "SO:23",
        "ST:25",
        "SV:28",
        "TL:23",
        "TN:24",
        "TR:26",
        "UA:29",
        "VA:22",
        "VG:24",
        "XK:20",
        "YE:30",
    ]
}
"""Characters of an IBAN by country (SWIFT's registry, release 99)."""


def is_card(text: str) -> bool:
    """Does it begin as some network's cards do, has 13 to 19 digits, and passes Luhn's test?

    >>> is_card("4012-8888-8888-1881"), is_card("9999 9999 9999 9995"), is_card("4012888888881882")
    (True, False, False)
    """
    digits = digits_of(text)
    said = "".join(map(str, digits))
    return (
        13 <= len(digits) <= 19
        and len(set(digits)) > 1
        and _CARD_STARTS.match(said) is not None
        and luhn(digits)
    )


def has_card_digits(text: str) -> bool:
    """Are these 12 to 19 digits, not all the same, that pass Luhn's test? Beside the word *card* that is enough."""
    digits = digits_of(text)
    return 12 <= len(digits) <= 19 and len(set(digits)) > 1 and luhn(digits)


def is_iban(text: str) -> bool:
    """Has it its country's length, and the right check digits?

    >>> is_iban("GB29 NWBK 6016 1331 9268 19"), is_iban("GB29 NWBK 6016 1331 9268")
    (True, False)
    """
    plain = re.sub(r"[ -]", "", text).upper()
    return len(plain) == IBAN_LENGTHS.get(plain[:2]) and mod97(plain)


ACCOUNT_RULES: Final = (
    Rule("iban", "IBAN", _IBAN, is_iban),
    Rule("card", "CARD", _CARD, is_card),
    Rule("card-said", "CARD", _CARD_SAID, has_card_digits, _CARD_WORDS),
)
