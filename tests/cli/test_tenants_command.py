"""`tiltyard tenants` and `tiltyard keys`: what they print, and what a gateway makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tiltyard.cli import keys, tenants
from tiltyard.cli.main import main
from tiltyard.events.log import EventLog
from tiltyard.gateway.gate import Gate
from tiltyard.gateway.keyring import KeyRing
from tiltyard.router.tenants import UNLIMITED, TenantTerms


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (keys, tenants):
        monkeypatch.setattr(module, "TRUSTED_S", 0.0)


def run(data: Path, *words: str) -> Result:
    return CliRunner().invoke(main, [words[0], "--data", str(data), *words[1:]])


async def test_terms_of_the_log_stand_before_those_of_the_file_until_they_are_unset(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        in_file = {"acme": TenantTerms(concurrency=1), "default": TenantTerms(concurrency=9)}
        ticks = iter(range(100))
        gate = Gate(KeyRing(log, monotonic=lambda: float(next(ticks))), in_file)

        async def concurrency(tenant: str) -> int | None:
            await gate.closed()
            return gate.terms_of(tenant).concurrency

        assert await concurrency("acme") == 1
        done = run(tmp_path, "tenants", "set", "acme", "concurrency=5", 'models=["chat"]')
        assert done.exit_code == 0, done.output
        assert await concurrency("acme") == 5
        assert await concurrency("other") == 9
        assert run(tmp_path, "tenants", "set", "default", "concurrency=7").exit_code == 0
        assert await concurrency("other") == 7
        listed = run(tmp_path, "tenants", "list").output
        assert "concurrency = 5, models = ['chat']" in listed
        assert run(tmp_path, "tenants", "unset", "acme").exit_code == 0
        assert await concurrency("acme") == 1
        assert Gate(KeyRing(log), {}).terms_of("acme") == UNLIMITED


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("concurrency=0",), "tenants.acme.concurrency: this is 0; it must be at least 1"),
        (("rpm=6",), "tenants.acme.rpm: there is no key rpm here; known: requests_per_minute"),
        (("models=chat",), "the terms are not KEY=VALUE as in tiltyard.toml"),
        (("prompt_price=0.00001",), "a price is 1e-05; write at most three decimals"),
    ],
)
def test_wrong_terms_are_one_line_and_set_nothing(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = run(tmp_path, "tenants", "set", "acme", *words)
    assert done.exit_code == 1
    assert said in done.output
    assert len(done.output.splitlines()) == 1


def test_the_key_alone_is_on_standard_output(tmp_path: Path) -> None:
    made = run(tmp_path, "keys", "create", "--tenant", "acme", "--scope", "admin", "--expires", "90d")
    assert made.exit_code == 0
    assert len(made.stdout.splitlines()) == 1
    key = "key_" + made.stdout.split("-")[3]
    assert f"{key}: production key of tenant acme for admin until " in made.stderr
    rotated = run(tmp_path, "keys", "rotate", key, "--overlap", "0s")
    assert rotated.exit_code == 0
    listed = run(tmp_path, "keys", "list").output
    assert "expired" in listed
    assert "active" in listed
    assert made.stdout.strip() not in listed
    assert run(tmp_path, "keys", "revoke", key).exit_code == 0
    for words, said in (
        (("rotate", "key_nope"), "there is no API key 'key_nope'"),
        (("create", "--tenant", "a b"), "tenant 'a b' is no name"),
        (("create", "--tenant", "a", "--research", "--scope", "admin"), "a research key cannot have"),
    ):
        refused = run(tmp_path, "keys", *words)
        assert refused.exit_code == 1
        assert said in refused.output
