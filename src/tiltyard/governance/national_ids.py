"""Numbers by which states know people, each by its own check digits, dates and ranges.

A format whose check digit random digits pass one time in ten is taken only with a word beside it that says what it
is, unless it is written in its own way (separators, letters), which order numbers and the like are not.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Callable
from typing import Final

from tiltyard.governance.checksums import digits_of, luhn, mod11_2, mod11_10, verhoeff, weighted
from tiltyard.governance.finding import Rule, words

_A: Final = r"(?<![\w.\-/])"
"""Nothing before that would make this the middle of something longer."""
_Z: Final = r"(?![\w/]|[-.]\d)"


def is_date(year: int, month: int, day: int) -> bool:
    """Is there such a day?

    >>> is_date(2000, 2, 29), is_date(1999, 2, 29)
    (True, False)
    """
    return 1 <= month <= 12 and 1 <= day <= monthrange(year, month)[1]


def _date_in_some_century(digits: list[int]) -> bool:
    year, month, day = (digits[i] * 10 + digits[i + 1] for i in (0, 2, 4))
    return is_date(1900 + year, month, day) or is_date(2000 + year, month, day)


def _varied(digits: list[int]) -> bool:
    return len(set(digits)) > 1


def taiwan(text: str) -> bool:
    """身分證統一編號 and the resident numbers of 2021 (8 or 9 behind the letter): the letter as two digits, weights 1 9 8 ... 1 1.

    >>> taiwan("A123456789"), taiwan("A123456788")
    (True, False)
    """
    letter = "ABCDEFGHJKLMNPQRSTUVXYWZIO".index(text[0].upper()) + 10
    return (
        weighted([letter // 10, letter % 10, *digits_of(text)], (1, 9, 8, 7, 6, 5, 4, 3, 2, 1, 1)) % 10 == 0
    )


def china(text: str) -> bool:
    """居民身份证: region, date of birth, MOD 11-2 (GB 11643-1999)."""
    digits = digits_of(text[:17])
    year = int(text[6:10])
    born = 1850 <= year <= 2100 and is_date(year, int(text[10:12]), int(text[12:14]))
    return 1 <= digits[0] <= 8 and born and mod11_2(text)


def hong_kong(text: str) -> bool:
    """One or two letters, six digits, and a check digit: letters count from A = 10, a missing first one 36; MOD 11.

    >>> hong_kong("A123456(3)"), hong_kong("A123456(4)")
    (True, False)
    """
    plain = re.sub(r"[^A-Z0-9]", "", text.upper())
    values = [int(c, 36) for c in plain[:-1]]
    values = [36] * (8 - len(values)) + values
    check = 10 if plain[-1] == "A" else int(plain[-1])
    return (weighted(values, (9, 8, 7, 6, 5, 4, 3, 2)) + check) % 11 == 0


def us_ssn(text: str) -> bool:
    """Areas 000, 666 and 9xx, group 00 and serial 0000 were never given out; nor were those of advertisements."""
    area, group, serial = (int(part) for part in re.split(r"[-. ]", text))
    advertised = (area, group, serial) in {(78, 5, 1120), (219, 9, 9999)}
    return 0 < area < 900 and area != 666 and group > 0 and serial > 0 and not advertised


def us_itin(text: str) -> bool:
    """9xx, and a group of 50-65, 70-88, 90-92 or 94-99."""
    group = int(re.split(r"[- ]", text)[1])
    return 50 <= group <= 65 or 70 <= group <= 88 or 90 <= group <= 92 or 94 <= group <= 99


def korea(text: str) -> bool:
    """주민등록번호: a date, and the century and sex in the seventh digit. No check digit since October 2020."""
    digits = digits_of(text)
    year = 1900 if digits[6] in (1, 2, 5, 6) else 2000
    return is_date(year + digits[0] * 10 + digits[1], digits[2] * 10 + digits[3], digits[4] * 10 + digits[5])


def japan(text: str) -> bool:
    """個人番号, 12 digits: weights 6 5 4 3 2 7 6 5 4 3 2, MOD 11 (ordinance 85 of 2014)."""
    digits = digits_of(text)
    rest = weighted(digits[:11], (6, 5, 4, 3, 2, 7, 6, 5, 4, 3, 2)) % 11
    return digits[11] == (0 if rest <= 1 else 11 - rest)


def singapore(text: str) -> bool:
    """NRIC and FIN: weights 2 7 6 5 4 3 2, an offset by the first letter, a letter to check.

    >>> singapore("S1234567D"), singapore("S1234567E")
    (True, False)
    """
    first, last = text[0].upper(), text[-1].upper()
    total = weighted(digits_of(text), (2, 7, 6, 5, 4, 3, 2))
    offset, letters = {
        "S": (0, "JZIHGFEDCBA"),
        "T": (4, "JZIHGFEDCBA"),
        "F": (0, "XWUTRQPNMLK"),
        "G": (4, "XWUTRQPNMLK"),
        "M": (3, "XWUTRQPNJLK"),
    }[first]
    return letters[(total + offset) % 11] == last


def thailand(text: str) -> bool:
    """13 digits, weights 13 to 2, MOD 11."""
    digits = digits_of(text)
    return _varied(digits) and (11 - weighted(digits[:12], tuple(range(13, 1, -1))) % 11) % 10 == digits[12]


def india(text: str) -> bool:
    """Aadhaar: 12 digits, the first 2 to 9, Verhoeff; no palindromes."""
    digits = digits_of(text)
    return digits[0] >= 2 and digits != digits[::-1] and verhoeff(digits)


def turkey(text: str) -> bool:
    """T.C. kimlik no: tenth digit 7 times the odd places minus the even ones, eleventh the sum of all, MOD 10."""
    d = digits_of(text)
    tenth = (7 * sum(d[0:9:2]) - sum(d[1:8:2])) % 10
    return d[0] > 0 and d[9] == tenth and d[10] == sum(d[:10]) % 10


def south_africa(text: str) -> bool:
    """13 digits: date, serial, citizenship 0 to 2, Luhn."""
    digits = digits_of(text)
    return _date_in_some_century(digits) and digits[10] <= 2 and luhn(digits)


def finland(text: str) -> bool:
    """Henkilötunnus: date, a sign for the century, and a check letter: the nine digits MOD 31."""
    digits = digits_of(text[:6] + text[7:10])
    century = 1800 if text[6] == "+" else 1900 if text[6] in "-YXWVU" else 2000
    day, month, year = (digits[i] * 10 + digits[i + 1] for i in (0, 2, 4))
    number = int("".join(map(str, digits)))
    return (
        is_date(century + year, month, day)
        and "0123456789ABCDEFHJKLMNPRSTUVWXY"[number % 31] == text[10].upper()
    )


def sweden(text: str) -> bool:
    """Personnummer: date (days from 61 on for coordination numbers), serial, Luhn over the last ten digits."""
    digits = digits_of(text)[-10:]
    day = digits[4] * 10 + digits[5]
    day -= 60 if day > 60 else 0
    return _date_in_some_century([*digits[:4], day // 10, day % 10]) and luhn(digits)


def spain(text: str) -> bool:
    """NIF and NIE: a letter by the number MOD 23; X, Y, Z stand for 0, 1, 2.

    >>> spain("12345678Z"), spain("X1234567L"), spain("12345678A")
    (True, True, False)
    """
    plain = re.sub(r"[^A-Z0-9]", "", text.upper())
    number = plain[:-1].translate(str.maketrans("XYZ", "012"))
    return "TRWAGMYFPDXBNJZSQVHLCKE"[int(number) % 23] == plain[-1]


_ITALIAN_ODD: Final = dict(
    zip(
        "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        (
            1,
            0,
            5,
            7,
            9,
            13,
            15,
            17,
            19,
            21,
            1,
            0,
            5,
            7,
            9,
            13,
            15,
            17,
            19,
            21,
            2,
            4,
            18,
            20,
            11,
            3,
            6,
            8,
            12,
            14,
            16,
            10,
            22,
            25,
            24,
            23,
        ),
        strict=True,
    )
)


def italy(text: str) -> bool:
    """Codice fiscale: odd places by a table, even ones by value, MOD 26 as a letter (decree of 23 December 1976)."""
    plain = text.upper()
    total = sum(
        _ITALIAN_ODD[c] if place % 2 == 0 else (int(c) if c.isdigit() else ord(c) - 65)
        for place, c in enumerate(plain[:15])
    )
    return chr(65 + total % 26) == plain[15]


def poland(text: str) -> bool:
    """PESEL: date with the century in the month, weights 1 3 7 9, MOD 10."""
    digits = digits_of(text)
    month, day = digits[2] * 10 + digits[3], digits[4] * 10 + digits[5]
    century = {80: 1800, 0: 1900, 20: 2000, 40: 2100, 60: 2200}[month // 20 * 20]
    born = is_date(century + digits[0] * 10 + digits[1], month % 20, day)
    return born and weighted(digits, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1)) % 10 == 0


def germany(text: str) -> bool:
    """Steuerliche Identifikationsnummer: of ten digits one occurs two or three times, MOD 11,10."""
    digits = digits_of(text)
    most = max(digits[:10].count(d) for d in digits[:10])
    return digits[0] > 0 and 2 <= most <= 3 and mod11_10(digits)


def france(text: str) -> bool:
    """NIR: 13 digits and a key of 97 minus their rest; Corsica's 2A and 2B count as 19 and 18."""
    plain = re.sub(r"[^0-9AB]", "", text.upper())
    number = int(plain[:13].replace("2A", "19").replace("2B", "18"))
    return 97 - number % 97 == int(plain[13:])


def netherlands(text: str) -> bool:
    """BSN: weights 9 to 2 and -1, MOD 11."""
    digits = digits_of(text)
    return _varied(digits) and weighted(digits, (9, 8, 7, 6, 5, 4, 3, 2, -1)) % 11 == 0


def uk_nhs(text: str) -> bool:
    """NHS number: weights 10 to 2, MOD 11."""
    digits = digits_of(text)
    check = (11 - weighted(digits[:9], tuple(range(10, 1, -1))) % 11) % 11
    return _varied(digits) and check == digits[9]


def brazil(text: str) -> bool:
    """CPF: two check digits, weights 10 to 2 and 11 to 2, MOD 11."""
    digits = digits_of(text)

    def check(of: list[int]) -> int:
        rest = weighted(of, tuple(range(len(of) + 1, 1, -1))) * 10 % 11
        return rest % 10

    return _varied(digits) and check(digits[:9]) == digits[9] and check(digits[:10]) == digits[10]


def australia_tfn(text: str) -> bool:
    """Tax file number: weights 1 4 3 7 5 8 6 9 10, MOD 11."""
    digits = digits_of(text)
    return _varied(digits) and weighted(digits, (1, 4, 3, 7, 5, 8, 6, 9, 10)) % 11 == 0


def australia_medicare(text: str) -> bool:
    """Medicare: first digit 2 to 6, weights 1 3 7 9 1 3 7 9, MOD 10, then the issue."""
    digits = digits_of(text)
    return 2 <= digits[0] <= 6 and weighted(digits[:8], (1, 3, 7, 9, 1, 3, 7, 9)) % 10 == digits[8]


def _rule(
    name: str, pattern: str, check: Callable[[str], bool] | None = None, beside: re.Pattern[str] | None = None
) -> Rule:
    compiled = re.compile(_A + f"(?P<it>{pattern})" + _Z, re.IGNORECASE | re.ASCII)
    return Rule(name, "NATIONAL_ID", compiled, check or (lambda _: True), beside)


_SSN: Final = words("ssn", "social security", "ss#", "ssns")
_TAX_DE: Final = words(
    "steuer-id", "steuerid", "steuer-identifikationsnummer", "identifikationsnummer", "idnr", "tin", "tax id"
)

NATIONAL_ID_RULES: Final = (
    _rule("tw-id", r"[A-Z][1289]\d{8}", taiwan),
    _rule("cn-id", r"\d{17}[\dX]", china),
    _rule("hk-id", r"[A-Z]{1,2}\d{6}(?:\([\dA]\))", hong_kong),
    _rule("us-ssn", r"\d{3}-\d{2}-\d{4}|\d{3} \d{2} \d{4}", us_ssn),
    _rule("us-ssn", r"\d{3}[-. ]?\d{2}[-. ]?\d{4}", lambda t: us_ssn(_grouped(t)), _SSN),
    _rule("us-itin", r"9\d{2}[- ]\d{2}[- ]\d{4}", us_itin),
    _rule("kr-rrn", r"\d{6}-[1-8]\d{6}", korea),
    _rule(
        "kr-rrn",
        r"\d{6}[1-8]\d{6}",
        korea,
        words("rrn", "korean", "주민등록번호", "주민번호", "외국인등록번호"),
    ),
    _rule(
        "jp-my-number",
        r"\d{4}[- ]?\d{4}[- ]?\d{4}",
        japan,
        words("my number", "mynumber", "マイナンバー", "個人番号"),
    ),
    _rule("sg-nric", r"[STFGM]\d{7}[A-Z]", singapore),
    _rule("th-id", r"\d-\d{4}-\d{5}-\d{2}-\d", thailand),
    _rule("th-id", r"\d{13}", thailand, words("thai", "tnin", "pin", "บัตรประชาชน", "เลขประจำตัวประชาชน")),
    _rule(
        "in-aadhaar", r"\d{4}[ -]\d{4}[ -]\d{4}", india, words("aadhaar", "aadhar", "uidai", "uid", "आधार")
    ),
    _rule("in-aadhaar", r"\d{12}", india, words("aadhaar", "aadhar", "uidai", "आधार")),
    _rule("in-pan", r"[A-Z]{3}[ABCFGHJLPT][A-Z]\d{4}[A-Z]"),
    _rule("tr-id", r"[1-9]\d{10}", turkey),
    _rule("za-id", r"\d{13}", south_africa),
    _rule("fi-id", r"\d{6}[-+A-FYXWVU]\d{3}[0-9A-Y]", finland),
    _rule("se-personnummer", r"(?:19|20)?\d{6}[-+]\d{4}", sweden),
    _rule("es-nif", r"\d{7,8}[- ]?[A-Z]|[XYZ][- ]?\d{7}[- ]?[A-Z]", spain),
    _rule(
        "it-codice-fiscale",
        r"[A-Z]{6}[0-9LMNPQRSTUV]{2}[ABCDEHLMPRST][0-9LMNPQRSTUV]{2}[A-Z][0-9LMNPQRSTUV]{3}[A-Z]",
        italy,
    ),
    _rule("pl-pesel", r"\d{11}", poland, words("pesel")),
    _rule("de-steuer-id", r"\d{2} ?\d{3} ?\d{3} ?\d{3}", germany, _TAX_DE),
    _rule(
        "fr-nir", r"[1-478] ?\d{2} ?(?:0[1-9]|1[0-2]|[2-9]\d) ?(?:\d{2}|2[AB]) ?\d{3} ?\d{3} ?\d{2}", france
    ),
    _rule(
        "nl-bsn", r"\d{9}|\d{4}\.\d{2}\.\d{3}", netherlands, words("bsn", "burgerservicenummer", "sofinummer")
    ),
    _rule("uk-nhs", r"\d{3}[- ]?\d{3}[- ]?\d{4}", uk_nhs, words("nhs", "national health")),
    _rule(
        "uk-nino", r"(?!BG|GB|KN|NK|NT|TN|ZZ)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D]"
    ),
    _rule("br-cpf", r"\d{3}\.\d{3}\.\d{3}-\d{2}", brazil),
    _rule("br-cpf", r"\d{11}", brazil, words("cpf")),
    _rule("au-tfn", r"\d{3} ?\d{3} ?\d{3}", australia_tfn, words("tfn", "tax file")),
    _rule("au-medicare", r"[2-6]\d{3} ?\d{5} ?\d", australia_medicare, words("medicare")),
)
"""Every format that is known, by country."""


def _grouped(text: str) -> str:
    digits = "".join(map(str, digits_of(text)))
    return f"{digits[:3]}-{digits[3:5]}-{digits[5:]}"
