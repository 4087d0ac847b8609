"""Check digits of the numbers that stand for a person, a card or an account: most random digits fail them."""

from __future__ import annotations

from typing import Final

_VERHOEFF_MULTIPLY: Final = (
    (0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
    (1, 2, 3, 4, 0, 6, 7, 8, 9, 5),
    (2, 3, 4, 0, 1, 7, 8, 9, 5, 6),
    (3, 4, 0, 1, 2, 8, 9, 5, 6, 7),
    (4, 0, 1, 2, 3, 9, 5, 6, 7, 8),
    (5, 9, 8, 7, 6, 0, 4, 3, 2, 1),
    (6, 5, 9, 8, 7, 1, 0, 4, 3, 2),
    (7, 6, 5, 9, 8, 2, 1, 0, 4, 3),
    (8, 7, 6, 5, 9, 3, 2, 1, 0, 4),
    (9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
)
_VERHOEFF_PERMUTE: Final = (
    (0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
    (1, 5, 7, 6, 2, 8, 3, 0, 9, 4),
    (5, 8, 0, 3, 7, 9, 6, 1, 4, 2),
    (8, 9, 1, 6, 0, 4, 3, 5, 2, 7),
    (9, 4, 5, 3, 1, 2, 6, 8, 7, 0),
    (4, 2, 8, 6, 5, 7, 3, 9, 0, 1),
    (2, 7, 9, 3, 8, 0, 6, 4, 1, 5),
    (7, 0, 4, 6, 9, 1, 3, 2, 5, 8),
)


def digits_of(text: str) -> list[int]:
    """The ASCII digits of a text, in order.

    >>> digits_of("12-3 4a")
    [1, 2, 3, 4]
    """
    return [ord(c) - 48 for c in text if "0" <= c <= "9"]


def luhn(digits: list[int]) -> bool:
    """ISO/IEC 7812-1, annex B: every second digit from the right doubled, nines cast out, adds up to a multiple of 10.

    >>> luhn(digits_of("4111 1111 1111 1111")), luhn(digits_of("4111 1111 1111 1112"))
    (True, False)
    """
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = digit * 2 if place % 2 else digit
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def mod97(text: str) -> bool:
    """ISO 7064 MOD 97-10 as ISO 13616 uses it: the first four characters at the end, letters as 10 to 35, rest 1.

    >>> mod97("GB29NWBK60161331926819"), mod97("GB28NWBK60161331926819")
    (True, False)
    """
    moved = text[4:] + text[:4]
    return int("".join(str(int(c, 36)) for c in moved)) % 97 == 1


def mod11_2(text: str) -> bool:
    """ISO 7064 MOD 11-2, last character `0` to `9` or `X` for ten; of Chinese resident numbers (GB 11643-1999).

    >>> mod11_2("11010519491231002X"), mod11_2("110105194912310021")
    (True, False)
    """
    rest = 0
    for digit in digits_of(text[:-1]):
        rest = (rest + digit) * 2 % 11
    return (12 - rest) % 11 == (10 if text[-1] in "Xx" else int(text[-1]))


def mod11_10(digits: list[int]) -> bool:
    """ISO 7064 MOD 11,10; of the German tax identification number.

    >>> mod11_10(digits_of("86095742719")), mod11_10(digits_of("86095742718"))
    (True, False)
    """
    product = 10
    for digit in digits[:-1]:
        total = (digit + product) % 10 or 10
        product = 2 * total % 11
    return (11 - product) % 10 == digits[-1]


def verhoeff(digits: list[int]) -> bool:
    """Verhoeff 1969, dihedral group D5; of Aadhaar numbers.

    >>> verhoeff(digits_of("2363")), verhoeff(digits_of("2364"))
    (True, False)
    """
    check = 0
    for place, digit in enumerate(reversed(digits)):
        check = _VERHOEFF_MULTIPLY[check][_VERHOEFF_PERMUTE[place % 8][digit]]
    return check == 0


def weighted(digits: list[int], weights: tuple[int, ...]) -> int:
    """The sum of digits times weights.

    >>> weighted([1, 2, 3], (3, 2, 1))
    10
    """
    return sum(d * w for d, w in zip(digits, weights, strict=True))
