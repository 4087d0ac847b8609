from __future__ import annotations

import hashlib

from tiltyard.arena.voter import Voter, token_digest, token_matches


def test_neither_the_id_nor_a_token_shows_the_secret() -> None:
    voter = Voter.new()
    token = voter.vote_token("bat_1")
    assert voter.secret not in voter.id + token + repr(voter)
    # the published parts are digests: the id of the secret, the token of secret and battle
    assert voter.id == "voter_" + hashlib.sha256(b"tiltyard voter\0" + voter.secret.encode()).hexdigest()[:32]


def test_a_token_fits_its_own_battle_and_voter_only() -> None:
    voter, other = Voter.new(), Voter.new()
    digest = token_digest(voter.vote_token("bat_1"))
    assert token_matches(voter.vote_token("bat_1"), digest)
    assert not token_matches(voter.vote_token("bat_2"), digest)
    assert not token_matches(other.vote_token("bat_1"), digest)
    assert not token_matches("", digest)
    assert not token_matches("ü" * 64, digest)


def test_a_secret_that_a_browser_sends_back_is_the_same_voter() -> None:
    voter = Voter.new()
    assert Voter.from_secret(voter.secret) == voter


def test_what_cannot_be_a_secret_is_no_voter() -> None:
    for wrong in (None, "", "short", "a" * 42, "a" * 44, "a" * 42 + "!", "a" * 42 + "\n"):
        assert Voter.from_secret(wrong) is None
