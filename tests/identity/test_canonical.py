"""Canonical JSON against RFC 8785's own examples, and digests against FIPS 180-4's."""

from __future__ import annotations

import io
import math

import pytest
import rfc8785

from tiltyard.identity.canonical import (
    canonical_json,
    digest_of,
    digest_of_json,
    digest_of_stream,
)


def test_the_example_of_rfc_8785_section_3_2() -> None:
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\u0022/",
        "literals": [None, True, False],
    }
    expected = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    assert canonical_json(value).decode() == expected


def test_keys_are_sorted_by_utf16_units_as_in_rfc_8785_section_3_2_3() -> None:
    value = {
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis",
    }
    order = ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    text = canonical_json(value).decode()
    positions = [text.index(value[key]) for key in order]
    assert positions == sorted(positions)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        # RFC 8785, appendix B.
        (float.fromhex("0x0p+0"), "0"),
        (-0.0, "0"),
        (5e-324, "5e-324"),
        (-5e-324, "-5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (9007199254740992.0, "9007199254740992"),
        (295147905179352830000.0, "295147905179352830000"),
        (9.999999999999997e22, "9.999999999999997e+22"),
        (1e23, "1e+23"),
        (1.0000000000000001e23, "1.0000000000000001e+23"),
        (999999999999999700000.0, "999999999999999700000"),
        (1e21, "1e+21"),
        (9.999999999999997e-7, "9.999999999999997e-7"),
        (0.000001, "0.000001"),
        (333333333.3333332, "333333333.3333332"),
        (333333333.33333343, "333333333.33333343"),
        (-0.0000033333333333333333, "-0.0000033333333333333333"),
        (1424953923781206.25, "1424953923781206.2"),
    ],
)
def test_numbers_are_written_as_in_appendix_b(number: float, text: str) -> None:
    assert canonical_json(number).decode() == text


@pytest.mark.parametrize("value", [math.nan, math.inf, 2**53 + 1])
def test_what_json_cannot_carry_exactly_is_refused(value: float) -> None:
    with pytest.raises(rfc8785.CanonicalizationError):
        canonical_json(value)


def test_digests_are_sha256_in_the_form_of_oci() -> None:
    # FIPS 180-4's example for "abc".
    abc = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert digest_of(b"abc") == digest_of_stream(io.BytesIO(b"abc")) == abc
    assert digest_of_json({"b": 1, "a": 2}) == digest_of(b'{"a":2,"b":1}')
