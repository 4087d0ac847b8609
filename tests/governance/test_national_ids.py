"""Each format by numbers that states or their offices publish as examples, and by the same with one digit changed."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.governance.checksums import digits_of, luhn
from tiltyard.governance.personal_data import find

EXAMPLES = [
    ("tw-id", "A123456789", "the specimen of the Ministry of the Interior"),
    ("tw-id", "A800000014", "the specimen of the resident numbers of 2021"),
    ("cn-id", "11010519491231002X", "GB 11643-1999, appendix"),
    ("hk-id", "A123456(3)", "the specimen of the Immigration Department"),
    ("us-ssn", "536-22-8726", "a number of the synthetic set of presidio-research"),
    ("us-itin", "912-70-1234", "the shape in IRS publication 1915"),
    ("kr-rrn", "960121-1234567", "presidio's test of its recognizer"),
    ("sg-nric", "S1234567D", "common specimen"),
    ("sg-nric", "M4332674T", "presidio's test of its recognizer"),
    ("th-id", "1-2345-67890-12-1", "presidio's test of its recognizer, written with dashes"),
    ("in-pan", "ABCPD1234Z", "the shape of the Income Tax Department: P for a person"),
    ("tr-id", "10000000146", "the specimen of the Nüfus İdaresi"),
    ("za-id", "8001015009087", "presidio's test of its recognizer"),
    ("fi-id", "131052-308T", "the specimen of the Digital and Population Data Services Agency"),
    ("se-personnummer", "811228-9874", "the specimen of Skatteverket"),
    ("es-nif", "12345678Z", "the specimen of the Ministerio del Interior"),
    ("es-nif", "X1234567L", "the specimen of the NIE"),
    ("it-codice-fiscale", "RSSMRA85T10A562S", "the specimen of the Agenzia delle Entrate"),
    ("fr-nir", "2 55 08 14 168 025 38", "the specimen of the INSEE"),
    ("br-cpf", "529.982.247-25", "common specimen"),
]
SAID = [
    ("jp-my-number", "マイナンバーは 1234 5678 9018 です"),
    ("in-aadhaar", "Aadhaar: 2341 2341 2346"),
    ("pl-pesel", "PESEL 44051401359"),
    ("de-steuer-id", "Steuer-ID: 86 095 742 719"),
    ("nl-bsn", "BSN 111222333"),
    ("uk-nhs", "NHS number 943 476 5919"),
    ("au-tfn", "my TFN is 876 543 210"),
    ("au-medicare", "Medicare 2123 45670 1"),
    ("us-ssn", "social security 078051121"),
]


def rules(text: str) -> list[str]:
    return [one.rule for one in find(text)]


@pytest.mark.parametrize(("rule", "number"), [(r, n) for r, n, _ in EXAMPLES])
def test_a_published_example_is_found_without_any_word_beside_it(rule: str, number: str) -> None:
    (found,) = find(f"It is {number}, you know.")
    assert (found.kind, found.rule, found.start, found.end) == ("NATIONAL_ID", rule, 6, 6 + len(number))


@pytest.mark.parametrize(("rule", "text"), SAID)
def test_a_number_whose_check_is_weak_is_found_beside_the_word_for_it_only(rule: str, text: str) -> None:
    assert rules(text) == [rule]
    bare = "".join(c for c in text if c.isdigit())
    assert rule not in rules(f"Add 1 to {bare} and say it.")


@pytest.mark.parametrize(
    "number",
    [
        n
        for r, n, _ in EXAMPLES
        if r in ("tw-id", "cn-id", "hk-id", "tr-id", "za-id", "fi-id", "es-nif", "br-cpf", "fr-nir")
    ],
)
def test_one_wrong_digit_is_no_number_of_anybody(number: str) -> None:
    place = max(i for i, c in enumerate(number) if c.isdigit())
    wrong = f"{number[:place]}{(int(number[place]) + 1) % 10}{number[place + 1 :]}"
    assert "NATIONAL_ID" not in [one.kind for one in find(f"It is {wrong}, you know.")]


def test_social_security_numbers_that_were_never_given_out_are_none() -> None:
    """Area 000, 666 and from 900 on, group 00, serial 0000; and two that stood in advertisements."""
    for never in ("000-12-3456", "666-12-3456", "123-00-4567", "123-45-0000", "078-05-1120", "219-09-9999"):
        assert "us-ssn" not in rules(f"SSN {never}")


@given(st.text(alphabet=string.digits, min_size=12, max_size=18))
def test_luhn_accepts_exactly_one_check_digit(front: str) -> None:
    assert sum(luhn(digits_of(f"{front}{last}")) for last in range(10)) == 1
