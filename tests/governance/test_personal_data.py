"""What is found in real and synthetic texts, and what is not: figures that the documentation repeats."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.governance.folding import fold
from tiltyard.governance.personal_data import find

HERE = Path(__file__).parent
LABELS = {
    "CREDIT_CARD": "CARD",
    "EMAIL_ADDRESS": "EMAIL",
    "IBAN_CODE": "IBAN",
    "IP_ADDRESS": "IP_ADDRESS",
    "PHONE_NUMBER": "PHONE",
    "US_SSN": "NATIONAL_ID",
}
"""presidio-research's names of what we look for."""


def negatives() -> list[str]:
    lines = (HERE / "hard_negatives.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("# ")]


def test_of_the_hard_negatives_one_is_taken_for_an_address() -> None:
    """Nothing but the word before it tells a version of four parts from an address; docs/redaction.md says so."""
    wrong = {line: [one.rule for one in found] for line in negatives() if (found := find(line))}
    assert len(negatives()) == 82
    assert wrong == {"python 3.11.7, numpy 1.26.4, cuda 12.4.1.0": ["ipv4"]}


def test_every_card_phone_address_and_number_of_presidio_research_is_found(shared_data: Path) -> None:
    """1,004 sentences; the three that are wrong are house numbers that look like a phone's."""
    rows = json.loads(
        (shared_data / "serving/pii_langid/presidio-research/synth_dataset_v2.json").read_bytes()
    )
    hit: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    wrong = []
    for row in rows:
        text, spans = row["full_text"], row["spans"]
        found = find(text)
        for span in spans:
            kind = LABELS.get(span["entity_type"])
            if kind is None:
                continue
            inside = [f for f in found if f.start < span["end_position"] and span["start_position"] < f.end]
            (hit if any(f.kind == kind for f in inside) else missed)[span["entity_type"]] += 1
        labelled = [s for s in spans if s["entity_type"] in LABELS]
        wrong += [
            text[f.start : f.end]
            for f in found
            if not any(f.start < s["end_position"] and s["start_position"] < f.end for s in labelled)
        ]
    assert missed == {}
    assert hit == {
        "CREDIT_CARD": 90,
        "PHONE_NUMBER": 58,
        "EMAIL_ADDRESS": 32,
        "US_SSN": 16,
        "IBAN_CODE": 16,
        "IP_ADDRESS": 14,
    }
    assert wrong == ["17031 2202", "9543 1819", "94941 2505"]


@pytest.mark.parametrize(
    ("entity", "ours", "positives", "negatives"),
    [
        # found of expected, wrong of none expected
        ("EMAIL_ADDRESS", "EMAIL", (6, 6), (0, 2)),
        ("MAC_ADDRESS", "MAC_ADDRESS", (15, 15), (0, 5)),
        (
            "IP_ADDRESS",
            "IP_ADDRESS",
            (69, 84),
            (0, 29),
        ),  # the others are nobody's: loopback, `::`, networks, five octets
        ("TR_NATIONAL_ID", "tr-id", (12, 12), (0, 12)),
        ("ZA_ID_NUMBER", "za-id", (6, 6), (0, 9)),
        ("FI_PERSONAL_IDENTITY_CODE", "fi-id", (25, 26), (0, 9)),  # the other: glued to the word before it
        ("ES_NIF", "es-nif", (8, 8), (0, 2)),
        ("PH_MOBILE_NUMBER", "PHONE", (34, 34), (3, 9)),  # three that are numbers elsewhere
        ("TH_TNIN", "th-id", (5, 13), (0, 26)),  # the others: bare digits
    ],
)
def test_presidios_own_cases(
    shared_data: Path, entity: str, ours: str, positives: tuple[int, int], negatives: tuple[int, int]
) -> None:
    lines = (
        (shared_data / "serving/pii_langid/presidio_recognizer_cases.jsonl")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    found, expected, wrong, none = 0, 0, 0, 0
    for case in map(json.loads, lines):
        if entity in case["entities"]:
            hits = [f for f in find(case["text"]) if ours in (f.kind, f.rule)]
            if case["expected_len"]:
                expected += 1
                found += len(hits) >= case["expected_len"]
            else:
                none += 1
                wrong += bool(hits)
    assert ((found, expected), (wrong, none)) == (positives, negatives)


@pytest.mark.parametrize(
    ("text", "kind", "rule", "words"),
    [
        ("寫信到 王小明@例子.台灣 或打 0912-345-678", "EMAIL", "email", "王小明@例子.台灣"),
        ("我的手机是13912345678。", "PHONE", "phone-mobile", "13912345678"),
        ("打 02-2345-6789 找我", "PHONE", "phone-tw", "02-2345-6789"),
        ("+886 2 2345 6789", "PHONE", "phone-international", "+886 2 2345 6789"),
        ("(202) 456-1111", "PHONE", "phone-us", "(202) 456-1111"),
        ("卡号 4111111111111111", "CARD", "card", "4111111111111111"),
        ("DE89 3704 0044 0532 0130 00", "IBAN", "iban", "DE89 3704 0044 0532 0130 00"),
        ("from 192.168.7.21:5432", "IP_ADDRESS", "ipv4", "192.168.7.21"),
        ("2001:db8:85a3::8a2e:370:7334 answered", "IP_ADDRESS", "ipv6", "2001:db8:85a3::8a2e:370:7334"),
        ("postgresql://ann:s3cret@db/app", "URL_CREDENTIALS", "url-credentials", "ann:s3cret"),
        ("curl -H 'Authorization: Bearer abcdef0123456789'", "SECRET", "authorization", "abcdef0123456789"),
        ("password: hunter2hunter2", "SECRET", "assigned-secret", "hunter2hunter2"),
        ("密码是 Tr0ub4dor&3x", "SECRET", "assigned-secret", "Tr0ub4dor&3x"),
    ],
)
def test_where_it_begins_and_ends(text: str, kind: str, rule: str, words: str) -> None:
    found = [(f.kind, f.rule, text[f.start : f.end]) for f in find(text)]
    assert (kind, rule, words) in found


@pytest.mark.parametrize(
    "key",
    [
        "sk-proj-" + "aB3dE6gH9jK2mN5pQ8sT",
        "sk-ant-api03-" + "aB3dE6gH9jK2mN5pQ8sT",
        "ghp_" + "aB3dE6gH9jK2mN5pQ8sTaB3dE6gH9jK2mN5p",
        "hf_" + "aBcdEfgHijKlmNopQrsTuvWxyZabCdefGh",
        "AKIA" + "IOSFODNN7EXAMPLE",
        "AIza" + "SyA1234567890abcdefghijklmnopqrstuv",
        "xoxb-" + "123456789012-abcdefghijkl",
        "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0." + "dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
    ],
)
def test_keys_of_services_are_known_by_their_shape(key: str) -> None:
    (found,) = find(f"use {key} there")
    assert (found.kind, found.start, found.end) == ("SECRET", 4, 4 + len(key))


def test_a_private_key_goes_whole_and_also_when_its_end_was_cut_off() -> None:
    begin, end = "-----BEGIN RSA PRIVATE " + "KEY-----", "-----END RSA PRIVATE " + "KEY-----"
    whole = f"{begin}\nMIIEowIBAAKCAQEA\n{end}"
    assert [(f.rule, f.start, f.end) for f in find(f"a\n{whole}\nb")] == [("private-key", 2, 2 + len(whole))]
    assert [(f.rule, f.end) for f in find(f"{begin}\nMIIEow")] == [("private-key", len(begin) + 7)]


@pytest.mark.parametrize(
    "hostile", ["1-" * 20_000, "a" * 20_000 + "@", "1:" * 20_000, "+" * 20_000, "4 " * 20_000, "(1" * 10_000]
)
@pytest.mark.timeout(60)
def test_a_hostile_text_cannot_hold_it_up(hostile: str) -> None:
    """Each of these would take minutes by a pattern that tries every way of splitting it."""
    assert len(find(hostile)) <= 20_000


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("card 4111\u00a01111\u00a01111\u00a01111.", "CARD", "4111\u00a01111\u00a01111\u00a01111"),
        ("card 4111\u202f1111\u202f1111\u202f1111", "CARD", "4111\u202f1111\u202f1111\u202f1111"),
        ("card 4111.1111.1111.1111.", "CARD", "4111.1111.1111.1111"),
        ("4111  1111\t1111 1111", "CARD", "4111  1111\t1111 1111"),
        ("it is 41111111 11111111, thanks", "CARD", "41111111 11111111"),
        ("4111\u20111111\u20111111\u20111111", "CARD", "4111\u20111111\u20111111\u20111111"),
        ("卡號４１１１１１１１１１１１１１１１", "CARD", "４１１１１１１１１１１１１１１１"),
        ("ann\u200b@exam\u200bple.com wrote", "EMAIL", "ann\u200b@exam\u200bple.com"),
        ("ann＠example．com", "EMAIL", "ann＠example．com"),
        ("https://x.org/?to=ann%40example.com&y=1", "EMAIL", "ann%40example.com"),
        ("my number is +1\u00a0415\u00a0555\u00a02671", "PHONE", "+1\u00a0415\u00a0555\u00a02671"),
        ("Bearer q7Zk29XbT41mPw83LdRs", "SECRET", "q7Zk29XbT41mPw83LdRs"),
        ("password: hunter2,hunter2;x9.", "SECRET", "hunter2,hunter2;x9"),
        ('password = "c0rrect horse, battery 9"', "SECRET", "c0rrect horse, battery 9"),
        ("postgres://bob:p@ss@w0rd@db.example/x", "URL_CREDENTIALS", "bob:p@ss@w0rd"),
    ],
)
def test_what_is_written_in_an_unusual_way_is_found_to_its_last_character(
    text: str, kind: str, said: str
) -> None:
    assert [(f.kind, text[f.start : f.end]) for f in find(text)] == [(kind, said)]


@pytest.mark.parametrize(
    "text",
    [
        "The bearer of this letter, bearer bonds, Bearer authentication-and-authorization",
        "100%40 off, 50%40mm",
        "１２３４５６７８ widgets",
        "41111111 11111112 are two numbers",
        "password: choose_something_long",
        "mailto:someone at example dot com",
    ],
)
def test_what_looks_like_an_unusual_way_of_writing_is_left(text: str) -> None:
    assert find(text) == ()


@given(st.text(alphabet="a1 @.%40\u200b\u00a0４１＠\u2011x", max_size=60))
def test_places_lead_back_into_the_text_that_was_given(text: str) -> None:
    folded = fold(text)
    places = [folded.origin(at, at + 1) for at in range(len(folded.text))]
    assert all(0 <= start < end <= len(text) for start, end in places)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(places))
    for letter, (start, end) in zip(folded.text, places, strict=True):
        assert fold(text[start:end]).text == letter
