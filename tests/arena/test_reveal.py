from __future__ import annotations

import pytest
from test_transcript import battle, said, turn

from tiltyard.arena.pairing import Entrant
from tiltyard.arena.reveal import Difference, reveal
from tiltyard.arena.transcript import CastVote
from tiltyard.arena.troubles import TROUBLES, trouble_of
from tiltyard.errors import (
    Conflict,
    ContextTooLong,
    InvalidRequest,
    NotFound,
    Overloaded,
    TiltyardError,
    Unavailable,
    UpstreamFailed,
)
from tiltyard.identity.canonical import digest_of
from tiltyard.identity.manifest import Behaviour, DefaultSampling, Weights


def manifest(*, temperature: float, template: bool, requantized: bool = False) -> Behaviour:
    return Behaviour(
        weights=Weights(
            digest=digest_of(b"w"),
            size_bytes=1,
            stored_as=("Q4_1", "F32"),
            served_as="q8_0" if requantized else "as-stored",
        ),
        architecture={"n_layers": 30, "tied_embeddings": True},
        tokenizer=digest_of(b"t"),
        chat_template=digest_of(b"c") if template else None,
        default_sampling=DefaultSampling(temperature=temperature),
    )


def test_a_reveal_before_the_vote_is_refused() -> None:
    with pytest.raises(Conflict, match="unnamed until"):
        reveal(battle(turn(0, said(), said())), [])


def test_a_reveal_names_exactly_the_fields_that_differ() -> None:
    voted = battle(turn(0, said(), said()))
    voted.vote = CastVote("b", "receipt", 0, 1, ("gen_a",), ("gen_b",))
    known = [
        Entrant("x", digest_of(b"x"), manifest=manifest(temperature=0.0, template=True)),
        Entrant("y", digest_of(b"y"), manifest=manifest(temperature=0.75, template=False, requantized=True)),
    ]
    shown = reveal(voted, known)
    assert shown.differences == [
        Difference("chat_template", digest_of(b"c"), "none"),
        Difference("default_sampling.temperature", "0", "0.75"),
        Difference("weights.served_as", "as-stored", "q8_0"),
    ]
    assert shown.a.setting["weights.stored_as"] == "Q4_1, F32"
    assert shown.a.setting["architecture.tied_embeddings"] == "yes"
    assert (shown.a.name, shown.b.name) == ("x", "y")
    assert shown.replay_command == "tiltyard replay bat_1"


def test_a_side_that_is_no_longer_known_is_still_named() -> None:
    voted = battle(turn(0, said(), said()))
    voted.vote = CastVote("tie", "receipt", 0, 1, ("gen_a",), ("gen_b",))
    stranger = Entrant("x", digest_of(b"another behaviour"), description="not the one that fought")
    shown = reveal(voted, [stranger])
    assert (shown.a.name, shown.a.identity, shown.a.description) == ("x", digest_of(b"x"), "")
    assert shown.differences == []


@pytest.mark.parametrize(
    "error",
    [
        ContextTooLong("smollm2@3f2a accepts 8,192"),
        Overloaded("smollm2 is full", retry_after_s=1),
        NotFound("smollm2 does not exist"),
        Unavailable("smollm2 is down"),
        InvalidRequest("smollm2 refuses"),
        UpstreamFailed("smollm2 hung up", code="stream_cut"),
        UpstreamFailed("smollm2 is slow", code="timed_out"),
        UpstreamFailed("smollm2 is another", code="identity_changed"),
        TiltyardError("smollm2"),
    ],
)
def test_a_failure_is_told_without_the_name_of_the_side(error: TiltyardError) -> None:
    told = trouble_of(error)
    assert "smollm2" not in told.words
    assert told.words.endswith(".")
    assert TROUBLES[told.cause] is told


def test_different_causes_are_told_apart() -> None:
    """FastChat #91, #1206, #3503, #3711, #3671: one opaque "network error" for every cause."""
    causes = [
        ContextTooLong(""),
        Overloaded("", retry_after_s=1),
        Unavailable(""),
        InvalidRequest(""),
        UpstreamFailed(""),
        UpstreamFailed("", code="timed_out"),
        UpstreamFailed("", code="identity_changed"),
    ]
    assert len({trouble_of(cause).words for cause in causes}) == len(causes)
    assert len({trouble_of(cause).cause for cause in causes}) == len(causes)
