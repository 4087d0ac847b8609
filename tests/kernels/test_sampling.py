"""The sampler against its specification in Python integers, known random numbers, and plain statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tiltyard.kernels import _native as native
from tiltyard.kernels import (
    add_bias,
    apply_penalties,
    available_isas,
    choose_rows,
    log_probabilities,
    sample_rows,
    score_tokens,
    top_log_probabilities,
)
from tiltyard.kernels import reference_sampling as reference

INF = float("inf")


def draw(
    logits: NDArray[np.float32],
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    positions: int = 1,
    isa: str = "",
) -> NDArray[np.int32]:
    """Tokens at positions 0 .. positions - 1 from one row of logits."""
    n = positions
    return sample_rows(
        np.tile(np.asarray(logits, np.float32), (n, 1)),
        np.full(n, temperature, np.float32),
        np.full(n, top_k, np.int32),
        np.full(n, top_p, np.float32),
        np.full(n, min_p, np.float32),
        np.full(n, seed, np.uint64),
        np.arange(n, dtype=np.int64),
        isa=isa,
    )


# The known answers of the Random123 distribution (kat_vectors, philox4x32 with 10 rounds).
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_gives_its_published_numbers(counter: Any, key: Any, expected: Any) -> None:
    assert tuple(native.philox4x32(counter, key)) == expected
    assert reference.philox4x32(counter, key) == expected


SETTINGS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 1e-6, 0.3, 0.7, 1.0, 2.5, 100.0]),
        "top_k": st.sampled_from([0, 1, 2, 5, 50, 10**6]),
        "top_p": st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.95, 1.0]),
        "min_p": st.sampled_from([0.0, 0.02, 0.5, 1.0]),
        "seed": st.integers(0, 2**64 - 1),
        "position": st.integers(0, 2**62),
    }
)


@settings(max_examples=150, deadline=None)
@given(
    asked=SETTINGS,
    vocab=st.sampled_from([1, 2, 7, 8, 9, 31, 203]),
    spread=st.sampled_from([0.0, 0.01, 1.0, 5.0, 40.0]),
    coarse=st.booleans(),
)
def test_every_isa_draws_the_token_of_the_reference(
    asked: dict[str, Any], vocab: int, spread: float, coarse: bool
) -> None:
    logits = np.random.default_rng(asked["seed"] % 1000).standard_normal(vocab) * spread
    row = (np.round(logits) if coarse else logits).astype(np.float32)  # coarse: many ties
    expected = reference.sample(row, **asked)
    for isa in available_isas():
        got = sample_rows(
            row[None],
            np.array([asked["temperature"]], np.float32),
            np.array([asked["top_k"]], np.int32),
            np.array([asked["top_p"]], np.float32),
            np.array([asked["min_p"]], np.float32),
            np.array([asked["seed"]], np.uint64),
            np.array([asked["position"]], np.int64),
            isa=isa,
        )
        assert got.tolist() == [expected], isa


def test_the_reference_agrees_on_a_whole_vocabulary() -> None:
    row = (np.random.default_rng(1).standard_normal(49152) * 3).astype(np.float32)
    cases: list[dict[str, Any]] = [
        {},
        {"top_p": 0.9},
        {"top_k": 1000},
        {"top_k": 40, "top_p": 0.9},  # fewer than there are blocks
        {"temperature": 0.2, "top_p": 0.99999},  # most blocks have no mass
        {"temperature": 0.2},
        {"temperature": 1.5, "min_p": 0.05},
    ]
    for case in cases:
        expected = [reference.sample(row, **case, seed=5, position=p) for p in range(2)]
        assert draw(row, **case, seed=5, positions=2).tolist() == expected


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    assert draw(np.array([1, 5, 5, 2], np.float32), temperature=0).tolist() == [1]
    assert draw(np.array([-INF, -3, -INF], np.float32), temperature=0).tolist() == [1]
    wide = np.zeros(1000, np.float32)
    wide[[700, 701, 999]] = 1
    assert draw(wide, temperature=0).tolist() == [700]


def test_frequencies_follow_the_softmax() -> None:
    """Chi-square over 20,000 draws: 5 degrees of freedom exceed 20.5 once in a thousand."""
    probability = np.array([0.4, 0.3, 0.15, 0.1, 0.04, 0.01])
    tokens = draw(np.log(probability).astype(np.float32), positions=20000, seed=7)
    counts = np.bincount(tokens, minlength=6)
    expected = probability * 20000
    assert ((counts - expected) ** 2 / expected).sum() < 20.5


def test_filters_keep_what_they_say() -> None:
    logits = np.log(np.array([0.05, 0.5, 0.2, 0.15, 0.1])).astype(np.float32)
    drawn = {
        name: set(draw(logits, positions=3000, **kwargs).tolist())  # type: ignore[arg-type]
        for name, kwargs in {
            "top_k": {"top_k": 2},
            "top_p": {"top_p": 0.75},
            "min_p": {"min_p": 0.25},
            "top_k, then top_p of what is left": {"top_k": 3, "top_p": 0.8},
            "all": {},
        }.items()
    }
    assert drawn == {
        "top_k": {1, 2},
        "top_p": {1, 2, 3},
        "min_p": {1, 2, 3},
        "top_k, then top_p of what is left": {1, 2},  # 0.5 / 0.85 = 0.59, 0.7 / 0.85 = 0.82
        "all": {0, 1, 2, 3, 4},
    }


def test_masked_tokens_are_never_drawn() -> None:
    logits = np.full(500, -INF, np.float32)
    logits[[3, 400]] = 0
    assert set(draw(logits, temperature=5, positions=500).tolist()) == {3, 400}


def test_seed_and_position_name_one_number() -> None:
    flat = np.zeros(5000, np.float32)
    first, again, other = (draw(flat, positions=40, seed=s).tolist() for s in (1, 1, 2))
    assert first == again != other
    assert len(set(first)) > 35


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": -1.0}, "row 0: temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": INF}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"min_p": 2.0}, "min_p"),
        ({"isa": "abacus"}, "isa 'abacus'"),
    ],
)
def test_a_bad_setting_is_refused_by_name(change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(np.zeros(4, np.float32), **change)


@pytest.mark.parametrize(
    ("logits", "temperature"),
    [
        ([-INF, -INF], 1.0),
        ([-INF, -INF], 0.0),
        ([float("nan")] * 2, 0.0),
        ([0.0, float("nan")], 1.0),
        ([0.0, INF], 1.0),
    ],
)
def test_a_row_that_names_no_distribution_is_refused(logits: list[float], temperature: float) -> None:
    with pytest.raises(ValueError, match="row 0: "):
        draw(np.array(logits, np.float32), temperature=temperature)


def test_penalties_are_those_of_vllm() -> None:
    """Repetition divides logits above 0 and multiplies others; then frequency and presence are taken off."""
    row = np.array([2.0, -2.0, 4.0, 1.0], np.float32)
    apply_penalties(row, np.array([0, 1, 2], np.int32), np.array([0, 3, 1], np.int32), 2.0, 0.5, 0.25)
    assert row.tolist() == [1.0, -4.0 - 0.75 - 0.5, 2.0 - 0.25 - 0.5, 1.0]


def test_bias_is_added_and_may_mask() -> None:
    row = np.zeros(3, np.float32)
    add_bias(row, np.array([0, 2], np.int32), np.array([1.5, -INF], np.float32))
    assert row.tolist() == [1.5, 0.0, -INF]


def test_tokens_outside_the_vocabulary_change_nothing() -> None:
    row = np.zeros(3, np.float32)
    bad, counts = np.array([0, 3], np.int32), np.ones(2, np.int32)
    with pytest.raises(ValueError, match="token 3 is outside the vocabulary of 3"):
        add_bias(row, bad, np.ones(2, np.float32))
    with pytest.raises(ValueError, match="token 3"):
        apply_penalties(row, bad, counts, 1.1, 0.0, 0.0)
    with pytest.raises(ValueError, match="token -1"):
        log_probabilities(row, np.array([-1], np.int32))
    with pytest.raises(ValueError, match="k is 4"):
        top_log_probabilities(row, 4)
    with pytest.raises(ValueError, match="repetition"):
        apply_penalties(row, bad[:1], counts[:1], 0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="output_counts has 1 elements; expected 2"):
        apply_penalties(row, bad, counts[:1], 1.0, 0.0, 0.0)
    assert row.tolist() == [0, 0, 0]


@pytest.mark.parametrize("vocab", [1, 5, 256, 257, 49152])
def test_log_probabilities_are_exact_to_float32_on_every_isa(vocab: int) -> None:
    row = (np.random.default_rng(vocab).standard_normal(vocab) * 4).astype(np.float32)
    ids = np.arange(vocab, dtype=np.int32)
    results = [log_probabilities(row, ids, isa=isa) for isa in available_isas()]
    np.testing.assert_allclose(results[0], reference.log_probabilities(row), rtol=2e-7, atol=1e-6)
    assert len({r.tobytes() for r in results}) == 1


def test_top_log_probabilities_are_ranked_with_ties_by_id() -> None:
    row = np.array([1, 3, 3, -INF, 2, 3], np.float32)
    ids, values = top_log_probabilities(row, 5)
    assert ids.tolist() == [1, 2, 5, 4, 0]
    assert values.tolist() == log_probabilities(row, ids).tolist()
    assert log_probabilities(row, np.array([3], np.int32)).tolist() == [-INF]
    assert top_log_probabilities(row, 0)[0].tolist() == []
    wide = np.random.default_rng(3).standard_normal(5000).astype(np.float32)
    assert top_log_probabilities(wide, 20)[0].tolist() == np.argsort(-wide, kind="stable")[:20].tolist()


def choose(
    logits: NDArray[np.float32], allowed: dict[int, set[int]], top: list[int], isa: str = "", **row: float
) -> tuple[list[int], NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
    """`choose_rows` of a copy of the logits, all rows with the same settings, at their own positions."""
    n, vocab = logits.shape
    words = np.zeros((len(allowed), -(-vocab // 32)), np.uint32)
    for i, ids in enumerate(allowed.values()):
        for token in ids:
            words[i, token // 32] |= np.uint32(1 << token % 32)
    tokens, *scores = choose_rows(
        logits.copy(),
        np.full(n, row.get("temperature", 1.0), np.float32),
        np.full(n, row.get("top_k", 0), np.int32),
        np.full(n, row.get("top_p", 1.0), np.float32),
        np.full(n, row.get("min_p", 0.0), np.float32),
        np.full(n, 7, np.uint64),
        np.arange(n, dtype=np.int64),
        np.array(list(allowed), np.int32),
        words,
        np.array(top, np.int32),
        isa=isa,
    )
    return tokens.tolist(), *scores


@settings(deadline=None, max_examples=60)
@given(
    vocab=st.integers(1, 1400),
    seed=st.integers(0, 2**32),
    share=st.sampled_from([1, 2, 5, 40, 300, 10_000]),
    temperature=st.sampled_from([0.0, 0.05, 0.8, 3.0]),
    top_k=st.sampled_from([0, 1, 3, 40]),
    top_p=st.sampled_from([0.2, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.02]),
)
def test_a_masked_row_gives_the_token_of_the_row_with_minus_infinities(  # noqa: PLR0917
    vocab: int, seed: int, share: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((4, vocab)) * 5).astype(np.float32)
    allowed = {row: {i for i in range(vocab) if rng.integers(share) == 0} for row in (0, 2)}
    row = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    for isa in available_isas():
        tokens, logprobs, ids, values = choose(logits, allowed, [-1, min(2, vocab), 1, 0], isa, **row)
        for r in range(4):
            masked = reference.apply_mask(logits[r], allowed[r]) if r in allowed else logits[r]
            empty = r in allowed and not allowed[r]
            expected = -1 if empty else reference.sample(masked, seed=7, position=r, **row)
            assert tokens[r] == expected
            if r > 0 and not empty:  # of the logits before the mask
                own = np.array(tokens[r : r + 1], np.int32)
                assert logprobs[r] == log_probabilities(logits[r], own, isa=isa)[0]
        for r, k in ((1, min(2, vocab)), (2, 1)):
            best_ids, best = top_log_probabilities(logits[r], k, isa=isa)
            assert ids[r, :k].tolist() == best_ids.tolist()
            assert values[r, :k].tobytes() == best.tobytes()


@pytest.mark.parametrize("isa", available_isas())
def test_scores_are_log_probability_rank_and_the_likeliest(isa: str) -> None:
    rng = np.random.default_rng(3)
    logits = np.round(rng.standard_normal((6, 1000)) * 4, 1).astype(np.float32)  # with many equals
    tokens = rng.integers(0, 1000, 6).astype(np.int32)
    logprobs, ranks, ids, values = score_tokens(logits, tokens, 7, isa=isa)
    for r, token in enumerate(tokens.tolist()):
        assert logprobs[r] == log_probabilities(logits[r], tokens[r : r + 1], isa=isa)[0]
        assert ranks[r] == reference.rank_of(logits[r], token)
        expected_ids, expected = top_log_probabilities(logits[r], 7, isa=isa)
        assert ids[r].tolist() == expected_ids.tolist()
        assert [reference.rank_of(logits[r], i) for i in ids[r].tolist()] == [1, 2, 3, 4, 5, 6, 7]
        assert values[r].tobytes() == expected.tobytes()


def test_scores_of_no_row_or_a_wrong_token_are_refused_or_empty() -> None:
    assert score_tokens(np.zeros((0, 9), np.float32), np.zeros(0, np.int32), 2)[2].shape == (0, 2)
    with pytest.raises(ValueError, match="token 9 is outside"):
        score_tokens(np.zeros((1, 9), np.float32), np.array([9], np.int32), 0)
    row = np.zeros((1, 33), np.float32)
    with pytest.raises(ValueError, match="row 0: top is 34; the vocabulary has 33"):
        choose(row, {}, [34])
    with pytest.raises(ValueError, match="masked has row 1; there are 1"):
        choose(row, {1: {0}}, [0])
    with pytest.raises(ValueError, match="row 0: a logit is NaN"):
        choose(np.where(np.arange(300) == 299, np.nan, 1.0).astype(np.float32)[np.newaxis], {}, [-1])


@settings(deadline=None, max_examples=60)
@given(
    shape=st.sampled_from(["flat", "equal", "spread", "steps"]),
    temperature=st.sampled_from([0.01, 0.8, 3.0, 1000.0]),
    top_k=st.sampled_from([0, 1, 7, 300, 600, 5000]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 0.999999, 1.0]),
    min_p=st.sampled_from([0.0, 1e-12, 0.1]),
    seed=st.integers(0, 2**64 - 1),
)
def test_rows_of_any_shape_and_of_several_blocks_are_drawn_as_specified(
    *, shape: str, temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    rng = np.random.default_rng(seed % 1000)
    n = 777
    logits = {
        "flat": rng.standard_normal(n) * 0.01,
        "equal": np.full(n, 3.0),
        "spread": rng.standard_normal(n) * 12,
        "steps": rng.integers(-4, 5, n) * 7.0,
    }[shape].astype(np.float32)
    logits[rng.integers(0, n, 50)] = -INF
    cuts = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
    drawn = draw(logits, **cuts, positions=3).tolist()  # type: ignore[arg-type]
    assert drawn == [reference.sample(logits, **cuts, position=p) for p in range(3)]  # type: ignore[arg-type]
