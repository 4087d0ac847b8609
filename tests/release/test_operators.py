"""Who may order releases: a key, or a session that names one."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from release_stage import Scene

from tiltyard.cli.main import main
from tiltyard.cli.operators import KeyOperators
from tiltyard.gateway.errors import InvalidApiKey
from tiltyard.gateway.keyring import KeyRing


async def test_a_session_ends_after_eight_hours_and_cannot_be_made_longer(scene: Scene) -> None:
    secret = KeyRing(scene.log).issue("ops", ["release"], label="ann").secret
    now_s = [1_800_000_000.0]
    operators = KeyOperators(scene.log, keys_required=False, now_s=lambda: now_s[0])
    session = await operators.sign_in(secret)
    assert session.lives_s == 8 * 3600
    assert (await operators.who({}, session.value)).startswith("ann (key_")
    key, ends, digest = session.value.split(".")
    with pytest.raises(InvalidApiKey, match="the session has ended"):
        await operators.who({}, f"{key}.{int(ends) + 3600}.{digest}")
    now_s[0] += 8 * 3600
    with pytest.raises(InvalidApiKey, match="the session has ended"):
        await operators.who({}, session.value)


def test_the_first_key_says_that_it_closes_the_door(tmp_path: Path) -> None:
    """Who makes a key to approve a release would else lock everybody out of an open API unawares."""

    def made() -> str:
        words = ("keys", "--data", str(tmp_path), "create", "--tenant", "ops", "--scope", "release")
        return CliRunner().invoke(main, words).output

    assert "from now on the API answers nobody without one (401)" in made()
    assert "from now on" not in made()
