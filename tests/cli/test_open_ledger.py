"""The accounts of a new process begin with what the log says."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tiltyard.cli.serving import open_ledger
from tiltyard.cli.settings import load_settings
from tiltyard.events.log import EventLog
from tiltyard.events.schema import TextsEmbedded
from tiltyard.gateway.keyring import KeyRing
from tiltyard.router.ledger import Account
from tiltyard.router.redis_ledger import RedisLedger
from tiltyard.router.tenants import TenantTerms


def embedded(tokens: int) -> TextsEmbedded:
    return TextsEmbedded(
        alias="a", identity="a", behaviour="sha256:" + "a" * 64, worker="w", texts=1, prompt_tokens=tokens,
        total_ms=1.0,
    )  # fmt: skip


def test_what_was_spent_before_a_restart_is_still_spent(tmp_path: Path) -> None:
    """LiteLLM #26672: a budget that forgets."""
    path = tmp_path / "tiltyard.toml"
    path.write_text(
        "[models]\n[identities]\n[tenants.acme]\nprompt_price = 2.0\n[tenants.default]\nprompt_price = 3.0\n"
    )
    settings = load_settings(path, data_dir=tmp_path)
    with EventLog.open(settings.log_place, keys=settings.keys_place) as log:
        KeyRing(log).set_terms("other", TenantTerms(prompt_price=5.0))
        for tenant in ("acme", "acme", "other", "third"):
            log.append_blocking(embedded(1000), subject="a", source="tiltyard/tests", tenant=tenant)
        ledger = open_ledger(settings, log)
        accounts = [asyncio.run(ledger.account(tenant)) for tenant in ("acme", "other", "third", "nobody")]
    assert accounts == [Account(0, 0, spent, spent) for spent in (4_000_000, 5_000_000, 3_000_000, 0)]


def test_a_url_puts_the_accounts_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "tiltyard.toml"
    path.write_text('[models]\n[identities]\n[server]\nlimits_url = "redis://127.0.0.1:1"\n')
    settings = load_settings(path, data_dir=tmp_path)
    with EventLog.open(settings.log_place, keys=settings.keys_place) as log:
        assert isinstance(open_ledger(settings, log), RedisLedger)
